"""Workers that are killed, stopped, or whose engine fails, in the midst of streams: clients see the streams of an undisturbed run.

COT_KILLS: how many are killed (default 4)."""

import contextlib
import json
import os
import random
import signal
import threading
import time
import unittest

from routing import QUICK, Engine, Router, Server, contents, kill, mock, mocks, serves, stream, url

KILLS = int(os.environ.get("COT_KILLS", "4"))
GREEDY, SEEDED = {"temperature": 0}, {"temperature": 0.9, "seed": 11}


def shape(events):
    """What is the same of two streams: all but ids, times, and usage of the cache."""
    kept = []
    for event in events:
        if event == "[DONE]":
            kept.append(event)
            continue
        event = json.loads(event)
        del event["id"], event["created"]
        if event.get("usage"):
            del event["usage"]["prompt_tokens_details"]
        kept.append(event)
    return kept


class Kills(unittest.TestCase):
    def undisturbed(self, plain, events):
        """Events are those of the stream that nobody disturbed."""
        self.assertEqual(contents(events), contents(plain))
        heads = {(e["id"], e["created"]) for e in map(json.loads, events[:-1])}
        self.assertEqual((len(heads), events[-1]), (1, "[DONE]"))
        # choices take turns; each one's events are as they were
        def order(event):
            return 2 if event == "[DONE]" else -1 if not event["choices"] else event["choices"][0]["index"]
        self.assertEqual(sorted(shape(events), key=order), sorted(shape(plain), key=order))

    def broken(self, router, servers, path, body, after, number=signal.SIGKILL):
        """The stream, with its first worker killed behind so many events."""
        killed, times = [], []

        def on_event(headers, count):
            if count == after:
                killed.append(serves(servers, headers["X-Worker"]))
                kill(killed[0], number)
            times.append(time.monotonic())

        events = stream(router, path, body, on_event)[1]
        self.assertEqual(len(killed), 1)
        self.silence = max(b - a for a, b in zip(times, times[1:]))
        return killed[0], events

    def test_mock(self):
        draw = random.Random(KILLS)
        chat = {"messages": [{"role": "user", "content": "count"}], "max_tokens": 60, "stream_options": {"include_usage": True}}
        text = {"prompt": "once upon a time", "max_tokens": 60, "stream_options": {"include_usage": True}}
        left, silences = KILLS, []
        while left:
            with mocks(3) as servers, Router(servers) as router:
                for deaths in range(1, 3):
                    path, body = ("/v1/chat/completions", chat) if left % 2 else ("/v1/completions", text)
                    body = body | draw.choice([GREEDY, SEEDED]) | {"n": draw.choice([1, 4])} | draw.choice([{}, {"return_token_ids": True}])
                    plain = stream(router, path, body)[1]
                    dead, events = self.broken(router, servers, path, body, draw.randint(1, 25))
                    self.undisturbed(plain, events)
                    silences.append(self.silence)
                    of_dead = {way: router.metric(f"coterie:router_worker_resumed_{way}_total", worker=f"127.0.0.1:{dead.port}") for way in ("from", "to")}
                    self.assertEqual(of_dead["from"], 1)
                    if deaths == 1:
                        self.assertEqual(of_dead["to"], 0)
                    self.assertEqual(router.metric("coterie:router_worker_resumed_to_total"), deaths)
                    servers.remove(dead)
                    left -= 1
                    if not left:
                        break
                self.assertGreaterEqual(router.figure("coterie:router_resumptions_total"), 1)
        silences.sort()
        print(f"{KILLS} kills; the longest silence of a stream: median {silences[KILLS // 2]:.3f} s, p99 {silences[KILLS * 99 // 100]:.3f} s")

    def test_engine(self):
        """Three engines: greedy and seeded, with chances, and what nobody gave a seed to."""
        with Server("--ranks", 2) as a, Server("--ranks", 2) as b, Server("--ranks", 2) as c:
            servers = [a, b, c]
            with Router(servers) as router:
                for path, body in (
                    ("/v1/completions", {"prompt": "Once upon a time", "n": 2, "logprobs": 2} | SEEDED),
                    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "logprobs": True} | GREEDY),
                ):
                    body |= {"model": "tiny", "max_tokens": 60, "ignore_eos": True, "return_token_ids": True}
                    plain = stream(router, path, body)[1]
                    dead, events = self.broken(router, servers, path, body, 12)
                    self.undisturbed(plain, events)
                    servers.remove(dead)
                self.assertEqual(router.figure("coterie:router_broken_streams_total"), 0)

    def test_stall(self):
        """A worker that is stopped is left for another."""
        body = {"prompt": "once upon a time", "max_tokens": 40} | GREEDY
        with mocks(2) as servers, Router(servers, "--stall-timeout", 1) as router:
            plain = stream(router, "/v1/completions", body)[1]
            stopped, events = self.broken(router, servers, "/v1/completions", body, 9, signal.SIGSTOP)
            try:
                self.undisturbed(plain, events)
            finally:
                kill(stopped, signal.SIGCONT)
            router.must_say("has stalled")  # before it was forgotten
            router.wait(lambda workers: all(w["state"] == "up" for w in workers))

    def test_engine_fails(self):
        """A worker that tells its stream that its engine has failed is left, too."""
        body = {"prompt": "once upon a time", "max_tokens": 40} | GREEDY
        with mock(QUICK | {"workers": 2, "faults": [{"fault": "fail", "worker": 1, "after_tokens": 20}]}) as good:
            with Router([good, good.worker(1)], "--policy", "round-robin") as router:
                plain = stream(router, "/v1/completions", body)[1]
                for _ in range(2):  # one of them begins at the one that fails
                    self.undisturbed(plain, stream(router, "/v1/completions", body)[1])
                self.assertEqual(router.figure("coterie:router_resumptions_total"), 1)

    def test_whole_answers(self):
        """An answer that is no stream is asked for anew."""
        body = {"prompt": list(range(40)), "max_tokens": 60} | SEEDED  # ids: no worker is asked for them
        slow = {"ttft_ms": 1, "tpot_ms": 20}
        with mocks(2, slow) as servers, Router(servers) as router:
            plain = router.complete(**body)["choices"]
            before = sum(w["requests"] for w in router.workers())

            def victim():
                workers = router.wait(lambda workers: any(w["running"] for w in workers))
                kill(serves(servers, next(w["name"] for w in workers if w["running"])))

            thread = threading.Thread(target=victim)
            thread.start()
            answer = router.complete(**body)["choices"]
            thread.join()
            self.assertEqual(answer, plain)
            self.assertEqual(sum(w["requests"] for w in router.workers()), before + 2)

    def test_what_is_asked(self):
        """Who goes on is told the ids that came, the seed that the first had, and nothing else that is new."""
        document = {"models": ["m"], "fingerprint": "fp_1", "kv_homes": 1, "block_size": 16, "kv_events": None, "step_reports": None}

        def event(index, token, **more):
            return f"data: {json.dumps({'id': 'a', 'created': 7, 'choices': [{'index': index, 'text': chr(token), 'token_ids': [token], 'finish_reason': None} | more]})}\n\n"

        def breaks(handler):
            handler.send_response(200)
            handler.send_header("Content-Type", "text/event-stream")
            handler.send_header("Content-Length", "100000")
            handler.end_headers()
            handler.wfile.write((event(0, 65) + event(1, 66) + event(0, 67, finish_reason="stop") + event(1, 68)[:-5]).encode())

        def goes_on(handler):
            text = event(0, 67, finish_reason="stop", token_ids=[]) + event(1, 70, finish_reason="stop") + "data: [DONE]\n\n"
            handler.send_response(200)
            handler.send_header("Content-Type", "text/event-stream")
            handler.send_header("Content-Length", str(len(text)))
            handler.end_headers()
            handler.wfile.write(text.encode())

        asked = []

        def either(handler):
            asked.append(handler)
            (breaks if len(asked) == 1 else goes_on)(handler)

        given = b'{"prompt": [1], "n": 2, "x": 1.50, "continue_token_ids": [[9], [9]], "stream": true}'
        with Engine(either, document=document) as a, Engine(either, document=document) as b, Router([url(a), url(b)]) as router:
            answer = router.send("POST", "/v1/completions", given)[2]
            events = [part[6:] for part in answer.decode().split("\n\n") if part]
            self.assertEqual({i: c["text"] for i, c in contents(events).items()}, {0: "AC", 1: "BF"})
            self.assertFalse(any("token_ids" in e for e in events))
            first, second = sorted(map(json.loads, a.bodies + b.bodies), key=lambda body: "continue_token_ids" in body)
            self.assertEqual(second.pop("continue_token_ids"), [[65, 67], [66]])
            self.assertEqual(first, second)
            self.assertEqual({k: v for k, v in first.items() if k != "seed"}, {"prompt": [1], "n": 2, "x": 1.5, "stream": True, "return_token_ids": True})
            self.assertIsInstance(first["seed"], int)
        # one of another fingerprint would go on with another text
        with Engine(breaks, document=document) as a, Engine(goes_on, document=document | {"fingerprint": "fp_2"}) as stranger:
            with Router([url(a), url(stranger)], "--stall-timeout", 0.3) as router:
                while not a.bodies:
                    before = len(stranger.bodies)
                    answer = router.send("POST", "/v1/completions", given)[2]
                self.assertEqual((len(stranger.bodies), len(a.bodies)), (before, 1))
                self.assertIn(b"no other could go on", answer)

    def test_poison(self):
        """A request that ends whoever computes it does not end them all."""
        document = {"models": ["m"], "fingerprint": "fp_1", "kv_homes": 1, "block_size": 16, "kv_events": None, "step_reports": None}

        def dies(token):
            def answer(handler):
                handler.send_response(200)
                handler.send_header("Content-Type", "text/event-stream")
                handler.send_header("Content-Length", "100000")
                handler.end_headers()
                if token and b"[[65]]" not in handler.server.bodies[-1]:
                    event = {"id": "a", "created": 7, "choices": [{"index": 0, "text": "A", "token_ids": [65], "finish_reason": None}]}
                    handler.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

            return answer

        for token, asked in ((False, 3), (True, 4)):
            with contextlib.ExitStack() as stack:
                engines = [stack.enter_context(Engine(dies(token), document=document)) for _ in range(6)]
                router = stack.enter_context(Router([url(e) for e in engines]))
                router.send("POST", "/v1/completions", {"prompt": [1], "stream": True})
                self.assertEqual(sum(len(e.bodies) for e in engines), asked)

    def test_broken_events(self):
        """A worker that sends a token and then what cannot be read, again and again, keeps nobody for ever."""
        document = {"models": ["m"], "fingerprint": "fp_1", "kv_homes": 1, "block_size": 16, "kv_events": None, "step_reports": None}

        def answer(handler):
            event = {"id": "a", "created": 7, "choices": [{"index": 0, "text": "A", "token_ids": [65], "finish_reason": None}]}
            handler.send_response(200)
            handler.send_header("Content-Type", "text/event-stream")
            handler.send_header("Content-Length", "100000")
            handler.end_headers()
            ending = "data: {\n\n" if len(handler.server.bodies) < 20 else "data: [DONE]\n\n"
            handler.wfile.write(f"data: {json.dumps(event)}\n\n{ending}".encode())

        with Engine(answer, document=document) as engine, Router([url(engine)], "--stall-timeout", 1) as router:
            events = router.send("POST", "/v1/completions", {"prompt": [1], "stream": True})[2].split(b"\n\n")
            self.assertEqual(json.loads(events[-2][6:])["error"]["code"], "worker_failed")
            self.assertEqual(router.workers()[0]["failures"], len(engine.bodies))

    def test_half_an_event(self):
        """Who sends half an event for ever is left, whether it is the first one or not, though its /health is well."""
        document = {"models": ["m"], "fingerprint": "fp_1", "kv_homes": 1, "block_size": 16, "kv_events": None, "step_reports": None}

        def event(token, **more):
            return f"data: {json.dumps({'id': 'a', 'created': 7, 'choices': [{'index': 0, 'text': chr(token), 'token_ids': [token], 'finish_reason': None} | more]})}\n\n".encode()

        for document, before, last in ((document, b"", b"AB"), (document, event(65), b"AB"), (None, b"", b"AB"), (None, event(65), b"A")):
            asked = []

            def answer(handler):
                asked.append(json.loads(handler.server.bodies[-1]))
                handler.send_response(200)
                handler.send_header("Content-Type", "text/event-stream")
                handler.send_header("Connection", "close")
                handler.end_headers()
                handler.close_connection = True
                if len(asked) > 1:
                    handler.wfile.write((b"" if asked[-1].get("continue_token_ids") else event(65)) + event(66, finish_reason="stop") + b"data: [DONE]\n\n")
                    return
                handler.wfile.write(before + b"data: {")
                with contextlib.suppress(OSError):
                    for _ in range(100):  # then it ends, and the test fails
                        handler.wfile.write(b" ")
                        time.sleep(0.05)

            with self.subTest(document=document, before=before), Engine(answer, document=document) as a, Engine(answer, document=document) as b:
                with Router([url(a), url(b)], "--stall-timeout", 0.3) as router:
                    events = [part[6:] for part in router.send("POST", "/v1/completions", {"prompt": [1], "stream": True})[2].split(b"\n\n") if part]
                    text = b"".join(json.loads(e)["choices"][0]["text"].encode() for e in events[:-1])
                    self.assertEqual(text, last)
                    if last == b"AB":
                        self.assertEqual(events[-1], b"[DONE]")
                    else:
                        self.assertEqual(json.loads(events[-1])["error"]["code"], "worker_failed")
                    router.must_say("has stalled")

    def test_nobody_left(self):
        """A stream that nobody can go on with ends in an error."""
        with mocks(1) as servers, Router(servers, "--stall-timeout", 0.5) as router:
            body = {"prompt": "once upon a time", "max_tokens": 40} | GREEDY
            begin = time.monotonic()
            _, events = self.broken(router, servers, "/v1/completions", body, 9)
            self.assertEqual(json.loads(events[-1])["error"]["code"], "worker_failed")
            self.assertGreater(time.monotonic() - begin, 0.4)
            self.assertEqual(router.get("/health")[0], 503)
            self.assertEqual(router.post("/v1/completions", body)[0], 503)


if __name__ == "__main__":
    unittest.main()
