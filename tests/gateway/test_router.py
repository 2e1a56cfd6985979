"""The router as clients and workers see it: what is passed on and what is not, where requests go, and the list of workers."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from routing import PROGRAM, QUICK, SECONDS, Engine, MODEL, Router, Server, contents, free_ports, mock, mocks, stream, url

GREEDY = {"temperature": 0}
PREFILL = {"ttft_ms": 1, "ttft_ms_per_token": 0.1, "tpot_ms": 2}  # what is cached is worth its time
LONG = "the quick brown fox jumps over the lazy dog and goes home " * 4


def run(*arguments):
    return subprocess.run([PROGRAM, "router", *map(str, arguments)], capture_output=True, text=True, timeout=SECONDS)


def reply(body, status=200, kind="application/json", **fields):
    """An engine's answer."""

    def answer(handler):
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        for name, value in fields.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


class Gate:
    """A port that leads to another one, and counts the connections that ask for completions."""

    def __init__(self, port):
        self.to, self.asked = port, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                pair = self.listener.accept()[0], socket.create_connection(("127.0.0.1", self.to))
                for ends in (pair, pair[::-1]):
                    threading.Thread(target=self.lead, args=ends, daemon=True).start()

    def lead(self, here, there):
        asks = False
        with contextlib.suppress(OSError):
            while piece := here.recv(1 << 16):
                self.asked += not asks and piece.startswith(b"POST /v1/completions")
                asks |= piece.startswith(b"POST /v1/completions")
                there.sendall(piece)
        for end in (here, there):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        here.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)  # which ends the thread's accept
        self.listener.close()


class Passing(unittest.TestCase):
    def test_as_it_came(self):
        """Answers through the router are those of the worker itself."""
        with mocks(1) as (worker,), Router([worker]) as router:
            for path, body in (
                ("/v1/completions", {"prompt": "x", "max_tokens": 4, "unknown_field": {"a": [1]}} | GREEDY),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4} | GREEDY),
                ("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 4, "n": 2, "logprobs": 1} | GREEDY),
                ("/tokenize", {"prompt": "abc"}),
                ("/v1/completions", {"prompt": "x", "max_tokens": -4}),
                ("/v1/completions", {"prompt": ["x", "y"], "max_tokens": 2, "seed": 4}),
                ("/v1/completions", {}),
                ("/v1/nothing", {}),
            ):
                direct, routed = worker.post(path, body), router.post(path, body)
                for answer in (direct[1], routed[1]):
                    for varies in ("id", "created", "usage"):
                        answer.pop(varies, None)
                self.assertEqual(routed, direct, body)
            self.assertEqual(router.get("/v1/models"), worker.get("/v1/models"))
            self.assertEqual(router.get("/v1/models/mock?x=%20y"), worker.get("/v1/models/mock"))
            status, headers, _ = router.send("HEAD", "/version")
            self.assertEqual(status, 200)
            for path in ("/kv_events/snapshot", "/worker", "/mock", "/v1", "/v2/x"):  # for who runs workers
                self.assertEqual(router.get(path)[0], 404, path)
            status, headers, body = router.send("POST", "/v1/completions", b"{")
            self.assertEqual((status, json.loads(body)["error"]["code"]), (400, "invalid_json"))
            status, headers, _ = router.send("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1}, {"X-Request-Id": "mine"})
            self.assertEqual((headers["X-Request-Id"], headers["X-Worker"]), ("mine", f"127.0.0.1:{worker.port}"))

    def test_streams(self):
        """Events have ids where the client asked for them alone; an engine's own go byte for byte."""
        with mocks(1) as (worker,), Router([worker]) as router:
            body = {"prompt": "x", "max_tokens": 6, "stream_options": {"include_usage": True}} | GREEDY
            plain, hidden, shown = stream(worker, "/v1/completions", body)[1], stream(router, "/v1/completions", body)[1], stream(router, "/v1/completions", body | {"return_token_ids": True})[1]
            self.assertFalse(any("token_ids" in event for event in hidden))
            self.assertEqual(contents(hidden), contents(plain))
            self.assertEqual(contents(shown)[0]["ids"], [ord(c) for c in contents(plain)[0]["text"]])
            for event in zip(plain[:-1], hidden[:-1]):  # written alike
                self.assertEqual(*(list(json.loads(e)) for e in event))
            two = {"n": 2.0, "max_tokens": 6.0}  # whole numbers, however they are written
            self.assertEqual(contents(stream(router, "/v1/completions", body | two)[1]), contents(stream(worker, "/v1/completions", body | two)[1]))
        sent = b': hello\r\n\r\nevent: x\ndata: {"a": 1.50,  "b":2}\n\ndata: [DONE]\n\n'
        with Engine(reply(sent, kind="text/event-stream")) as engine, Router([url(engine)]) as router:
            status, headers, body = router.send("POST", "/v1/completions", {"prompt": "x", "stream": True})
            self.assertEqual((status, body), (200, sent))

    def test_connections_are_kept(self):
        """Streams one after the other share a connection to their worker, which no one of them ends."""
        with mocks(1) as (worker,), Gate(worker.port) as gate, Router([f"http://127.0.0.1:{gate.port}"]) as router:
            for _ in range(5):
                stream(router, "/v1/completions", {"prompt": [1, 2], "max_tokens": 2})
            self.assertEqual(gate.asked, 1)

    def test_what_is_not_passed_on(self):
        """Keys, ranks and continuations of clients; a worker's own key goes to it alone."""
        with tempfile.TemporaryDirectory() as folder, Engine(reply(b'{"choices": []}')) as engine:
            keys, worker_key = pathlib.Path(folder) / "keys", pathlib.Path(folder) / "worker"
            keys.write_text("client-key\n")
            worker_key.write_text("worker-key\n")
            router = Router([url(engine)], "--api-key-file", keys, "--worker-key-file", worker_key)
            router.key = {"Authorization": "Bearer client-key"}
            with router:
                text = b'{"prompt": "x",  "z": 1.50, "continue_token_ids": [[1]], "a":"\\u00e9"}'
                self.assertEqual(router.send("POST", "/v1/completions", text)[0], 401)
                given = {"X-data-parallel-rank": "3", "Cookie": "c", "X-Request-Id": "r", "Content-Type": "application/json"}
                status, _, body = router.send("POST", "/v1/completions", text, router.key | given)
                self.assertEqual((status, body), (200, b'{"choices": []}'))
                self.assertEqual(engine.bodies, [b'{"prompt": "x",  "z": 1.50, "a":"\\u00e9"}'])
                head = engine.heads[0]
                self.assertEqual((head["Authorization"], head["X-data-parallel-rank"], head["Cookie"], head["X-Request-Id"]), ("Bearer worker-key", None, None, "r"))
        with mocks(1) as (worker,), Router([worker]) as router:
            body = {"prompt": "x", "max_tokens": 5} | GREEDY
            whole = worker.complete(**body)["choices"]
            self.assertEqual(router.complete(**body, continue_token_ids=[[65, 66]])["choices"], whole)
            escaped = json.dumps(body)[:-1] + ', "\\u0063ontinue_token_ids": [[65]]}'
            self.assertEqual(json.loads(router.send("POST", "/v1/completions", escaped.encode())[2])["choices"], whole)

    def test_other_engine_breaks(self):
        """A stream that another engine leaves ends in an error, never in a repetition; half an event is not shown."""

        def breaks(handler):
            handler.send_response(200)
            handler.send_header("Content-Type", "text/event-stream")
            handler.send_header("Content-Length", "1000")
            handler.end_headers()
            handler.wfile.write(b'data: {"choices": [{"index": 0, "text": "a"}]}\n\ndata: {"cho')

        with Engine(breaks) as engine, Engine(breaks) as other, Router([url(engine), url(other)]) as router:
            _, events = stream(router, "/v1/completions", {"prompt": "x"})
            self.assertEqual(len(events), 2)
            self.assertEqual(json.loads(events[1])["error"]["code"], "worker_failed")
            self.assertEqual(len(engine.bodies) + len(other.bodies), 1)

    def test_other_engine_floods(self):
        """An event that comes as fast as can be, and never ends, ends in an error, and keeps nobody else waiting."""
        sent = []

        def floods(handler):
            handler.send_response(200)
            handler.send_header("Content-Type", "text/event-stream")
            handler.send_header("Connection", "close")
            handler.end_headers()
            handler.close_connection = True
            with contextlib.suppress(OSError):
                handler.wfile.write(b"data: ")
                while True:
                    sent.append(handler.wfile.write(b"y" * 65536))

        with Engine(floods) as engine, Router([url(engine)]) as router:
            status, _, answer = router.send("POST", "/v1/completions", {"prompt": "x", "stream": True})
            self.assertEqual((status, json.loads(answer)["error"]["code"]), (503, "no_worker"))  # it is suspended
            self.assertLess(sum(sent), 64 << 20)
            self.assertEqual(router.get("/workers")[0], 200)

    def test_other_engine_ends_early(self):
        """A stream whose end is no more than that of its connection ends in an error, too, whatever stands in its texts."""
        whole = b'data: {"choices": [{"index": 0, "text": "data: [DONE]"}]}\n\n'

        def leaves(text):
            def answer(handler):
                handler.send_response(200)
                handler.send_header("Content-Type", "text/event-stream")
                handler.send_header("Connection", "close")
                handler.end_headers()
                handler.wfile.write(text)
                handler.close_connection = True

            return answer

        for text in (whole + b'data: {"cho', whole):
            with self.subTest(text=text), Engine(leaves(text)) as engine, Router([url(engine)]) as router:
                answer = router.send("POST", "/v1/completions", {"prompt": "x", "stream": True})[2]
                self.assertTrue(answer.startswith(whole + b"data: "), answer)
                self.assertEqual(json.loads(answer[len(whole) + 6 :])["error"]["code"], "worker_failed")
        for done in (b"data: [DONE]\n\n", b"data:[DONE]\r\n\r\n"):
            with self.subTest(done=done), Engine(leaves(whole + done)) as engine, Router([url(engine)]) as router:
                self.assertEqual(router.send("POST", "/v1/completions", {"prompt": "x", "stream": True})[2], whole + done)

    def test_leaving(self):
        """Who leaves ends what is computed for him."""
        with mocks(1, {"ttft_ms": 1, "tpot_ms": 50}) as (worker,), Router([worker]) as router:
            with contextlib.closing(router.connect()) as connection:
                connection.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 1000, "stream": True}), {"Content-Type": "application/json"})
                connection.getresponse().readline()
                router.wait(lambda workers: workers[0]["running"] == 1)
            router.wait(lambda workers: workers[0]["running"] == 0)
            end = time.monotonic() + SECONDS
            while worker.metric("vllm:num_requests_running"):
                self.assertLess(time.monotonic(), end)
                time.sleep(0.05)

    def test_no_pages(self):
        """Pages of the web reach neither workers nor the list of them."""
        with mocks(1) as (worker,), Router([worker]) as router:
            self.assertEqual(router.send("POST", "/v1/completions", b"{}", {"Content-Type": "text/plain"})[0], 415)
            self.assertEqual(router.get("/v1/models", Host="evil.example")[0], 403)
            self.assertEqual(router.send("POST", "/workers", b"{}", {"Content-Type": "text/plain"})[0], 415)
            self.assertEqual(router.send("POST", f"/workers/127.0.0.1:{worker.port}/drain")[0], 415)  # a page need not ask before


class Choosing(unittest.TestCase):
    def test_where_it_is_cached(self):
        """A prompt goes where it was computed, others elsewhere; a router that begins anew knows from snapshots."""
        with mocks(3, PREFILL) as servers:
            with Router(servers) as router:
                def ask(prompt, **more):
                    status, headers, body = router.send("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 2} | more)
                    self.assertEqual(status, 200, body)
                    return headers["X-Worker"], json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"]

                homes = {}
                for i in range(6):
                    homes[i], cached = ask(f"{i} {LONG}")
                    self.assertEqual(cached, 0)
                    time.sleep(0.1)  # each is over
                self.assertEqual(len(set(homes.values())), 3)
                for i in (3, 1, 5, 0, 2, 4):
                    worker, cached = ask(f"{i} {LONG} and more")
                    self.assertEqual(worker, homes[i])
                    self.assertGreater(cached, 200)
                salted = [ask(f"0 {LONG}", cache_salt="s") for _ in range(2)]
                self.assertEqual([bool(cached) for _, cached in salted], [False, True])
                self.assertEqual(salted[0][0], salted[1][0])
                self.assertGreater(router.figure("coterie:router_index_blocks"), 6 * 14)
            with Router(servers) as router:
                end = time.monotonic() + SECONDS
                while router.figure("coterie:router_index_blocks") < 6 * 14:
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.05)
                for i in range(6):
                    self.assertEqual(ask(f"{i} {LONG}")[0], homes[i])

    def test_replayed(self):
        """Of an engine that has no snapshot the cache is known by a replay from its beginning."""
        with tempfile.TemporaryDirectory() as folder, mocks(2, PREFILL) as servers:
            entries = []
            for i, server in enumerate(servers):
                server.complete(f"{i} {LONG}", max_tokens=1)
                told = json.loads(server.get("/worker")[1])["kv_events"]
                entries.append({"url": url(server), "engine": "vllm", "kv_events": told["endpoints"][0], "kv_replay": told["replay_endpoints"][0]})
            path = pathlib.Path(folder) / "workers.json"
            path.write_text(json.dumps(entries))
            with Router([str(path)], "--block-size", 16, up=2) as router:
                self.assertFalse(any(w["coterie"] for w in router.workers()))
                end = time.monotonic() + SECONDS
                while router.figure("coterie:router_index_blocks") < 2 * 14:
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.05)
                for i in (1, 0):
                    status, headers, body = router.send("POST", "/v1/completions", {"prompt": f"{i} {LONG}", "max_tokens": 1})
                    self.assertEqual((status, headers["X-Worker"]), (200, f"127.0.0.1:{servers[i].port}"))

    def test_ranks(self):
        """A target is a rank: what it has is asked for there."""
        with mocks(1, PREFILL | {"ranks": 4}) as (worker,), Router([worker]) as router:
            body = {"max_tokens": 1}
            for i in range(8):
                router.complete(f"{i} {LONG}", **body)
                time.sleep(0.05)
            for i in range(8):
                answer = router.complete(f"{i} {LONG}", **body)
                self.assertGreater(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 200)
            (shown,) = router.workers()
            self.assertEqual([t["rank"] for t in shown["targets"]], [0, 1, 2, 3])
            self.assertEqual(json.loads(worker.get("/mock")[1])["requests"], 16)

    def test_tokenizer_here(self):
        """With --model workers are not asked for ids, and find the same blocks."""
        with Server("--kv-events-config", json.dumps({"enable_kv_cache_events": True, "endpoint": f"tcp://127.0.0.1:{free_ports(1)}"})) as worker:
            with Router([worker], "--model", MODEL) as router:
                for body in ({"prompt": LONG}, {"messages": [{"role": "user", "content": LONG}]}):
                    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
                    body |= {"model": "tiny", "max_tokens": 1}
                    before = router.figure("coterie:router_worker_cached_tokens_total")
                    known = router.figure("coterie:router_index_blocks")
                    status, answer = worker.post(path, body)  # not through the router, which knows of it by events alone
                    self.assertEqual(status, 200, answer)
                    end = time.monotonic() + SECONDS
                    while router.figure("coterie:router_index_blocks") < known + answer["usage"]["prompt_tokens"] // 16:
                        self.assertLess(time.monotonic(), end)
                        time.sleep(0.05)
                    status, answer = router.post(path, body)
                    self.assertEqual(status, 200, answer)
                    expected = router.figure("coterie:router_worker_cached_tokens_total") - before
                    self.assertEqual(expected, answer["usage"]["prompt_tokens_details"]["cached_tokens"])
                    self.assertGreater(expected, 0)
                self.assertEqual(router.figure("coterie:router_untokenised_total"), 0)

    def test_policies(self):
        with mocks(3) as servers:
            for policy in ("round-robin", "random", "least", "dynamo", "kv"):
                with self.subTest(policy=policy), Router(servers, "--policy", policy) as router:
                    seen = [router.send("POST", "/v1/completions", {"prompt": f"{i}", "max_tokens": 1})[1]["X-Worker"] for i in range(12)]
                    self.assertGreater(len(set(seen)), 1)
                    if policy == "round-robin":
                        self.assertEqual(sorted(seen.count(w) for w in set(seen)), [4, 4, 4])

    def test_a_full_window(self):
        """More than can be assigned together come at once: a router that was stopped finds them all."""
        with mocks(3) as servers, Router(servers, "--batch-window", 10) as router, contextlib.ExitStack() as stack:
            connections = [stack.enter_context(contextlib.closing(router.connect())) for _ in range(150)]
            for connection in connections:
                connection.connect()
            os.killpg(router.process.pid, signal.SIGSTOP)
            for number, connection in enumerate(connections):
                connection.request("POST", "/v1/completions", json.dumps({"prompt": [number % 4] * 64, "max_tokens": 3, "ignore_eos": True}), {"Content-Type": "application/json"})
            os.killpg(router.process.pid, signal.SIGCONT)
            answers = [connection.getresponse() for connection in connections]
            self.assertEqual({answer.status for answer in answers}, {200})
            self.assertEqual(router.figure("coterie:router_requests_total"), 150)

    def test_a_window(self):
        """Those that come within it are assigned together: all are answered, but for those that leave before it ends."""
        with mocks(3) as servers, Router(servers, "--batch-window", 10) as router:
            answers = []

            def ask(number):
                answers.append(stream(router, "/v1/completions", {"prompt": [number % 4] * 64, "max_tokens": 3, "ignore_eos": True}))

            for burst in range(5):
                threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
                with contextlib.closing(router.connect()) as connection:
                    connection.request("POST", "/v1/completions", json.dumps({"prompt": [9] * 64, "max_tokens": 3}), {"Content-Type": "application/json"})
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            self.assertEqual([len(events) for _, events in answers], [4] * 40)
            self.assertTrue(all(decision["reason"] == "first" for decision in json.loads(router.get("/decisions")[1])["decisions"]))
            router.wait(lambda workers: not any(w["running"] for w in workers))
            self.assertLessEqual(router.figure("coterie:router_requests_total"), 45)
            with contextlib.closing(router.connect()) as connection:  # one by itself waits, too
                connection.request("POST", "/v1/completions", json.dumps({"prompt": [3] * 64, "max_tokens": 3}), {"Content-Type": "application/json"})
                self.assertEqual(connection.getresponse().status, 200)
        with Engine(reply(b"", 429, Retry_After="7")) as a, Engine(reply(b"", 429, Retry_After="4")) as b, Router([url(a), url(b)], "--batch-window", 1) as router:
            status, headers, _ = router.send("POST", "/v1/completions", {"prompt": "x"})
            self.assertEqual((status, headers["Retry-After"]), (429, "4"))

    def test_refusals(self):
        """A worker that refuses is passed over; where all do, the client hears when to come again."""
        refuses = {"faults": [{"fault": "refuse"}]}
        with mocks(1, QUICK | refuses) as (busy,), mocks(1) as (free_one,), Router([busy, free_one], "--policy", "round-robin") as router:
            for _ in range(6):
                self.assertEqual(router.send("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})[0], 200)
            counts = {name: {w: router.metric(f"coterie:router_worker_{name}_total", worker=f"127.0.0.1:{w.port}") for w in (busy, free_one)} for name in ("requests", "refusals", "failures", "prompt_tokens", "cached_tokens")}
            asked = counts["requests"][busy]
            self.assertGreater(asked, 0)
            each = counts["prompt_tokens"][free_one] / 6
            self.assertGreater(each, 0)
            self.assertEqual(counts, {"requests": {busy: asked, free_one: 6}, "refusals": {busy: asked, free_one: 0}, "failures": {busy: 0, free_one: 0}, "prompt_tokens": {busy: asked * each, free_one: 6 * each}, "cached_tokens": {busy: 0, free_one: 0}})
        with mock(PREFILL | {"workers": 2, "faults": [{"fault": "refuse", "every": 2}]}) as first, Router([first, first.worker(1)]) as router:
            body = {"prompt": list(range(200)), "max_tokens": 1}
            begun = router.send("POST", "/v1/completions", body)[1]["X-Worker"]
            status, headers, _ = router.send("POST", "/v1/completions", body)  # refused where it is cached
            self.assertEqual(status, 200)
            self.assertNotEqual(headers["X-Worker"], begun)
        with mock(QUICK | refuses | {"workers": 4}) as first:
            with Router([first.worker(i) for i in range(4)]) as router:
                status, headers, body = router.send("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})
                self.assertEqual((status, headers["Retry-After"], json.loads(body)["error"]["code"]), (429, "1", "overloaded"))
                self.assertEqual(sum(w["refusals"] for w in router.workers()), 3)  # the best, and the two next
        document = {"models": ["m"], "fingerprint": "fp_1", "kv_homes": 1, "block_size": 16, "kv_events": None, "step_reports": None}
        events = b'data: {"choices": [{"index": 0, "text": "A"}]}\n\ndata: [DONE]\n\n'
        with Engine(reply(b"", 429), document=document) as busy, Engine(reply(events, kind="text/event-stream"), model="m") as other:
            with Router([url(busy), url(other)], "--policy", "round-robin") as router:
                for _ in range(4):  # another engine's stream, also behind a refusal of one that would have been Coterie's
                    self.assertEqual(router.send("POST", "/v1/completions", {"prompt": "x", "stream": True})[2], events)
                self.assertTrue(busy.bodies)
        for said, told in (("7", "4"), "4"), (("0", "9"), "1"), (("-3", "9"), "1"):  # the least of all, a second at least
            first, second = (Engine(reply(b"", 429, Retry_After=seconds)) for seconds in said)
            with first as a, second as b, Router([url(a), url(b)]) as router:
                status, headers, _ = router.send("POST", "/v1/completions", {"prompt": "x"})
                self.assertEqual((status, headers["Retry-After"]), (429, told))
                router.wait(lambda workers: not any(w["running"] for w in workers))  # neither answered nor tokenised


NO_PEERS = ("", ",", "tcp://", "tcp://127.0.0.1", "tcp://127.0.0.1:", "tcp://:7000", "tcp://*:7000", "tcp://127.0.0.1:0", "tcp://127.0.0.1:65536", "tcp://127.0.0.1:99999", "tcp://127.0.0.1:7x")


class Lists(unittest.TestCase):
    def test_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "workers.json"
            path.write_text('[{"url": "http://127.0.0.1:1", "wight": 1}]')
            cases = {
                (): (2, "--workers is missing"),
                ("--workers", folder + "/none.json"): (1, "none.json"),
                ("--workers", path): (1, "worker 0: there is no 'wight'"),
                ("--workers", "https://127.0.0.1:1", "--worker-ca-certs", folder + "/none.pem"): (1, "none.pem"),
                ("--workers", "https://"): (1, "'https://' is no URL"),
                ("--workers", "http://127.0.0.1:1", "-w", "http://127.0.0.1:1/v1"): (2, "'127.0.0.1:1' is given twice"),
                ("--workers", "http://127.0.0.1:99999"): (2, "the port is not in 1..65535"),
                ("--workers", "http://127.0.0.1:1", "--policy", "best"): (2, "--policy"),
                ("--workers", "http://127.0.0.1:1", "--peers", "http://127.0.0.1:1"): (2, "is not tcp://HOST:PORT"),
                **{("--workers", "http://127.0.0.1:1", "--peers", peer): (2, f"the peer '{peer}' is not tcp://HOST:PORT, with a port of 1 to 65535") for peer in NO_PEERS},
                ("--workers", "http://127.0.0.1:1", "--peers", "tcp://127.0.0.1:1,tcp://b"): (2, "the peer 'tcp://b' is not tcp://HOST:PORT"),
                ("--workers", "http://127.0.0.1:1", "--peers-no-auth"): (2, "--peers-no-auth is of --peer-endpoint, which is missing"),
                ("--workers", "http://127.0.0.1:1", "--peers", "tcp://127.0.0.1:1,tcp://127.0.0.1:1"): (2, "is given twice"),
                ("--workers", "http://127.0.0.1:1", "--peer-endpoint", "127.0.0.1:1"): (2, "is not tcp://ADDRESS:PORT"),
                ("--workers", "http://127.0.0.1:1", "--peer-endpoint", "tcp://*:7000"): (2, "--peers-no-auth"),
                ("--workers", "http://127.0.0.1:1", "--batch-window", 11): (2, "--batch-window"),
                ("--workers", "http://127.0.0.1:1", "--host", "0.0.0.0"): (2, "--no-auth"),
                ("--workers", path, "-w", path): (1, "names two files"),
                ("--workers", "http://127.0.0.1:1", "--model", folder): (1, folder),
                ("--workers", "http://127.0.0.1:1", "--signature-tables", folder + "/none.safetensors"): (1, "none.safetensors"),
                ("--workers", "http://127.0.0.1:1", "--signature-tables", path): (1, "workers.json"),
            }
            for arguments, (status, says) in cases.items():
                with self.subTest(arguments=arguments):
                    done = run("--port", 0, *arguments)
                    self.assertEqual((done.returncode, done.stdout), (status, ""), done.stderr)
                    self.assertIn(says, done.stderr)
                    self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_file(self):
        """The file is read again when it changes; a bad one leaves things as they were, and that is said."""
        with tempfile.TemporaryDirectory() as folder, mocks(3) as (a, b, c):
            path = pathlib.Path(folder) / "workers.json"

            def write(*workers):
                path.with_suffix(".new").write_text(json.dumps(workers))
                os.replace(path.with_suffix(".new"), path)

            def names(*wanted):
                router.wait(lambda workers: {w["name"] for w in workers if w["state"] == "up"} == set(wanted) == {w["name"] for w in workers})

            write({"url": url(a), "name": "a"})
            with Router([str(path)]) as router:
                names("a")
                write({"url": url(a), "name": "a"}, {"url": url(b), "name": "b"})
                names("a", "b")
                write({"url": url(a), "name": "a"}, {"url": url(b), "nam": "b"})
                end = time.monotonic() + SECONDS
                while not any("workers stay as they were" in line and "'nam'" in line for line in router.log):
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.05)
                names("a", "b")
                write({"url": url(b), "name": "b"}, {"url": url(c), "name": "c"})
                names("b", "c")
                write({"url": url(a), "name": "b"})  # another one of that name
                names("b")
                self.assertEqual(router.workers()[0]["url"], url(a))

    def test_changes(self):
        """Workers are drained and added by requests."""
        with mocks(2) as (a, b), Router([a]) as router:
            name = f"127.0.0.1:{b.port}"
            self.assertEqual(router.post("/workers", {"url": url(b)})[0], 200)
            router.wait(lambda workers: [w["state"] for w in workers] == ["up", "up"])
            self.assertEqual(router.post("/workers", {"url": url(b)})[0], 409)
            self.assertEqual(router.post("/workers", {"url": "x"})[0], 400)
            self.assertEqual(router.post("/workers", {"url": url(b), "name": "x", "key_file": "/etc/hostname"})[0], 400)
            self.assertEqual(router.send("POST", f"/workers/{name}/drain", b"")[0], 200)
            seen = {router.send("POST", "/v1/completions", {"prompt": f"{i}", "max_tokens": 1})[1]["X-Worker"] for i in range(6)}
            self.assertEqual(seen, {f"127.0.0.1:{a.port}"})
            self.assertEqual(router.send("POST", f"/workers/{name}/undrain", b"")[0], 200)
            seen = {router.send("POST", "/v1/completions", {"prompt": f"{i} {LONG}", "max_tokens": 1})[1]["X-Worker"] for i in range(6)}
            self.assertEqual(len(seen), 2)
            self.assertEqual(router.send("POST", "/workers/nobody/drain", b"")[0], 404)
            self.assertEqual(router.send("DELETE", "/workers")[0], 405)
        with tempfile.TemporaryDirectory() as folder, mocks(1) as (a,):
            keys, admin = pathlib.Path(folder) / "keys", pathlib.Path(folder) / "admin"
            keys.write_text("user\n")
            admin.write_text("boss\n")
            user, boss = {"Authorization": "Bearer user"}, {"Authorization": "Bearer boss"}
            path = f"/workers/127.0.0.1:{a.port}/drain"
            router = Router([a], "--api-key-file", keys)
            router.key = user
            with router:
                self.assertEqual(router.send("POST", path, b"", user)[0], 403)
            router = Router([a], "--api-key-file", keys, "--admin-key-file", admin)
            router.key = user
            with router:
                self.assertEqual([router.send("POST", path, b"", h)[0] for h in ({}, user, boss)], [401, 403, 200])
                self.assertEqual(router.send("GET", "/v1/models", headers=boss)[0], 401)

    def test_strangers(self):
        """Workers that do not fit are named and get nothing; the others go on."""
        with mocks(1) as (a,), mocks(1, QUICK | {"block_size": 32}) as (blocks,), Engine(reply(b"{}"), "another-model") as engine:
            with Router([a]) as router:  # the first that is up says what is served
                for other in (url(blocks), url(engine), "http://127.0.0.1:1"):
                    self.assertEqual(router.post("/workers", {"url": other})[0], 200)
                workers = router.wait(lambda workers: sum(w["state"] == "refused" for w in workers) == 2)
                why = [w.get("why", "") for w in workers]
                self.assertIn("blocks have 32 tokens", why[1])
                self.assertIn("it serves 'another-model'", why[2])
                for _ in range(4):
                    status, headers, _ = router.send("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})
                    self.assertEqual((status, headers["X-Worker"]), (200, f"127.0.0.1:{a.port}"))
                router.must_say("another-model")

    def test_no_block_size(self):
        """A size that blocks cannot have is refused, and is not that of the index."""
        for size in (-1, 65537, 10**18):
            document = {"models": ["mock"], "fingerprint": "fp_1", "kv_homes": 1, "block_size": size}
            with self.subTest(size=size), mocks(1) as (a,), Engine(reply(b"{}"), document=document) as engine, Router([url(engine)], up=0) as router:
                (worker,) = router.wait(lambda workers: workers[0]["state"] != "new")
                self.assertEqual(worker["state"], "refused")
                self.assertIn(f"'block_size' is {size}", worker["why"])
                self.assertEqual(router.post("/workers", {"url": url(a)})[0], 200)
                router.wait(lambda workers: workers[1]["state"] == "up")

    def test_names_are_cut(self):
        """One that is refused is shown, however long the name of its model, and whatever characters that has."""
        with mocks(1) as (a,), Router([a]) as router:
            for begin in ("", "a", "ab", "abc"):
                name = begin + "\U0001f600" * 40
                with Engine(reply(b"{}"), name) as engine:
                    self.assertEqual(router.post("/workers", {"url": url(engine), "name": "x" + begin})[0], 200)
                    shown = router.wait(lambda workers: len(workers) == 2 + len(begin) and workers[-1]["state"] == "refused")[-1]
                self.assertIn(f"it serves '{name[: len(begin) + (64 - len(begin)) // 4]}', ", shown["why"])

    def test_silence(self):
        """A worker that takes connections and says nothing is suspended; it holds nobody up."""
        with mocks(1) as (a,), socket.create_server(("127.0.0.1", 0)) as mute:
            with Router([a], "--workers", f"http://127.0.0.1:{mute.getsockname()[1]}", up=1) as router:
                for _ in range(3):
                    self.assertEqual(router.send("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})[0], 200)


if __name__ == "__main__":
    unittest.main()
