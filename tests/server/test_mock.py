"""Workers that compute nothing, as clients and routers see them: their times and tokens, and every fault that they can be given."""

import contextlib
import http.client
import json
import pathlib
import re
import signal
import socket
import tempfile
import time
import unittest

from serving import MODEL, SECONDS, Server, free_ports, mock, run

QUICK = {"ttft_ms": 1, "tpot_ms": 1}


def stream(server, prompt="x", **fields):
    """The events of a completion until it ends, however it does; and whether it ended as it should."""
    with contextlib.closing(server.connect()) as connection:
        body = {"model": "mock", "prompt": prompt, "stream": True, "temperature": 0} | fields
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            return answer.status, answer.read()
        events = []
        try:
            for line in answer:
                if line.startswith(b"data: "):
                    events.append(line[6:].strip())
        except (OSError, http.client.HTTPException):
            pass
        return events, bool(events) and events[-1] == b"[DONE]"


class Refusals(unittest.TestCase):
    def refused(self, text):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(text)
            file.flush()
            done = run("serve", "--mock", file.name, "--port", 0)
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        line = done.stderr.splitlines()
        self.assertEqual(len(line), 1, line)
        return line[0]

    def test_specs(self):
        cases = {
            '{"wrkers": 2}': "'wrkers'",
            '{"workers": 0}': "'workers'",
            '{"workers": 1.5}': "'workers'",
            '{"workers": 2, "workers": 3}': "duplicate",
            '{"tpot_ms": "20"}': "'tpot_ms'",
            '{"ttft_ms": -1}': "'ttft_ms'",
            '{"block_size": 12}': "'block_size'",
            '{"ranks": 65}': "'ranks'",
            '{"faults": {}}': "'faults'",
            '{"faults": [{"fault": "explode"}]}': "'fault'",
            '{"faults": [{}]}': "'fault'",
            '{"faults": [3]}': "fault 0",
            '{"faults": [{"fault": "die"}, {"fault": "late", "seconds": 3}]}': "fault 1: there is no 'seconds'",
            '{"workers": 2, "faults": [{"fault": "die", "worker": 2}]}': "'worker'",
            '{"faults": [{"fault": "stall", "every": 0}]}': "'every' is not",
            '{"faults": [{"fault": "die", "every": 2}]}': "'every' says nothing of 'die'",
            '{"faults": [{"fault": "refuse", "ms": 100}]}': "'ms' says nothing of 'refuse'",
            "[]": "another value",
            "{": "no JSON object",
            "": "no JSON object",
        }
        for spec, expected in cases.items():
            with self.subTest(spec=spec):
                self.assertIn(expected, self.refused(spec))

    def test_keys_of_faults(self):
        """Each kind takes what it has a use for, and no other key."""
        takes = {"die": {"after_tokens"}, "fail": {"after_tokens"}, "stall": {"every", "after_tokens"}, "refuse": {"every"}, "late": {"every", "ms"}, "twice": {"every"}}  # fmt: skip
        for kind, keys in takes.items():
            for key in ("worker", "every", "after_tokens", "ms"):
                with self.subTest(kind=kind, key=key):
                    last = {"fault": "twice", "worker": 7}  # is refused, if all before it is taken
                    line = self.refused(json.dumps({"faults": [{"fault": kind, key: 0 if key == "worker" else 1}, last]}))
                    self.assertIn("'worker' 7" if key in keys | {"worker"} else f"'{key}' says nothing of '{kind}'", line)

    def test_options_of_an_engine(self):
        """Each is refused by name, whatever it says; those of the server are not."""
        text = run("serve", "--help").stdout
        sections = dict(re.findall(r"^(Scheduling and memory|Group of ranks|Model):\n((?:  .*\n)+)", text, flags=re.M))
        options = [name for section in sections.values() for name in re.findall(r"^ *(?:-\w, *)?--([\w-]+)", section, flags=re.M)]
        of_server = {"max-queue", "mock", "tokenizer", "chat-template", "max-model-len"}
        self.assertGreater(len(options), 30)
        self.assertLess(of_server, set(options))
        for name in options:
            if name in of_server:
                continue
            with self.subTest(option=name):
                said = ["--" + name]
                done = run("serve", "--mock", "/nowhere.json", *said)
                for value in ("1", None):  # None: the first word that it takes
                    if f"--{name} lacks its value" in done.stderr or f"--{name} takes" in done.stderr:
                        words = re.search(r"takes ([\w-]+)", done.stderr)
                        done = run("serve", "--mock", "/nowhere.json", *said, value or words[1])
                self.assertEqual((done.returncode, done.stderr),
                                 (2, f"coterie: --{name} is for an engine, and --mock has none\n"))  # fmt: skip
        with self.subTest("letters"):
            done = run("serve", "--mock", "/nowhere.json", "-r4")
            self.assertEqual(done.returncode, 2, done.stderr)
        done = run("serve", "--mock", "/nowhere.json", "--port", 0, "--max-queue", "3", "--max-model-len", "9")
        self.assertEqual((done.returncode, done.stderr.count("/nowhere.json")), (1, 1))

    def test_endpoints(self):
        """What an engine refuses of them a mock refuses in the same words."""
        for option, value in (
            ("--kv-events-config", '{"endpoint": "tcp://127.0.0.1:7000", "endpoint": "tcp://127.0.0.1:7001"}'),
            ("--kv-events-config", '{"endpoint": "tcp://127.0.0.1: 5600"}'),
            ("--kv-events-config", '{"replay_endpoint": "tcp://127.0.0.1:+5600"}'),
            ("--kv-events-config", "[]"),
            ("--step-reports-endpoint", "tcp://127.0.0.1: 5600"),
            ("--step-reports-endpoint", "tcp://*:5600"),
        ):
            with self.subTest(value=value), tempfile.NamedTemporaryFile("w") as file:
                file.write("{}")
                file.flush()
                done = run("serve", "--mock", file.name, "--port", 0, option, value)
                engine = run("serve", MODEL, "--port", 0, option, value)
                self.assertEqual((done.returncode, done.stderr), (2, engine.stderr))

    def test_nothing_to_serve(self):
        done = run("serve")
        self.assertEqual((done.returncode, done.stderr), (2, "coterie: MODEL is missing: a model folder\n"))
        self.assertEqual(run("serve", "--mock", "/nowhere.json").returncode, 1)


class Answers(unittest.TestCase):
    def test_times_and_tokens(self):
        with mock({"workers": 3, "ttft_ms": 120, "tpot_ms": 30, "tokens": 5, "seed": 4}) as server:
            begin = time.monotonic()
            events, whole = stream(server, max_tokens=4)
            seconds = time.monotonic() - begin
            self.assertTrue(whole)
            self.assertEqual(len(events), 5)
            self.assertGreaterEqual(seconds, 0.120 + 3 * 0.030)
            texts = [server.worker(i).complete("x", max_tokens=9, temperature=0)["choices"][0] for i in range(3)]
            self.assertEqual(texts[0]["finish_reason"], "stop")  # its end comes behind 5 tokens
            self.assertEqual(len(texts[0]["text"]), 5)
            self.assertEqual(texts[0], texts[1])
            self.assertEqual(texts[0], texts[2])
            longer = server.complete("x", max_tokens=9, temperature=0, ignore_eos=True)["choices"][0]
            self.assertEqual((len(longer["text"]), longer["finish_reason"]), (9, "length"))
            self.assertNotEqual(server.complete("y", max_tokens=5, temperature=0)["choices"][0]["text"], texts[0]["text"])
            self.assertEqual(json.loads(server.get("/mock")[1])["requests"], 4)
            self.assertEqual(server.get("/experts")[0], 404)
            self.assertEqual(server.get("/health")[0], 200)
            _, chat = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3})
            self.assertEqual(chat["usage"]["completion_tokens"], 3)

    def test_steps(self):
        """Steps are said to take what they do: a prompt what its tokens take that were not cached."""
        with mock({"ttft_ms": 2, "ttft_ms_per_token": 0.5, "tpot_ms": 4, "block_size": 16}) as server:
            for seconds in (0.052, 0.052 + 0.004):  # of the second time 96 tokens are cached
                server.complete("x" * 100, max_tokens=3)
                self.assertAlmostEqual(server.metric("coterie:step_seconds_total", kind="prefill"), seconds, places=5)
            self.assertAlmostEqual(server.metric("coterie:step_seconds_total", kind="decode"), 0.016, places=5)
            self.assertEqual(server.metric("vllm:iteration_tokens_total_count"), server.metric("coterie:steps_total"))
            self.assertEqual(server.metric("vllm:iteration_tokens_total_sum"), server.metric("coterie:step_tokens_total"))
            self.assertEqual(server.metric("vllm:request_num_preemptions_count"), 2)

    def test_continued_elsewhere(self):
        """What a router does when a worker is lost: another goes on with the ids that came."""
        with mock({"workers": 2} | QUICK) as server:
            for seed in (None, 11):
                fields = {"max_tokens": 20, "return_token_ids": True}
                fields |= {"temperature": 0} if seed is None else {"temperature": 0.8, "seed": seed}
                whole = server.complete("once upon", **fields)["choices"][0]
                for done in (1, 7, 19):
                    rest = server.worker(1).complete("once upon", continue_token_ids=whole["token_ids"][:done], **fields)
                    self.assertEqual(rest["choices"][0]["token_ids"], whole["token_ids"][done:])
                    self.assertEqual(rest["choices"][0]["text"], whole["text"][done:])

    def test_model(self):
        with mock(QUICK, model=MODEL) as server:
            _, ids = server.post("/tokenize", {"prompt": "The capital of France is"})
            self.assertLess(len(ids["tokens"]), 12)  # a vocabulary's, not bytes
            self.assertEqual(server.complete("The capital", max_tokens=6)["usage"]["completion_tokens"], 6)

    def test_cache(self):
        with mock({"cached_blocks": 8, "block_size": 4} | QUICK) as server:
            cached = lambda prompt: server.complete(prompt, max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"]
            self.assertEqual([cached("a" * 17), cached("a" * 17), cached("a" * 9)], [0, 16, 8])
            self.assertEqual(cached("b" * 33), 0)  # 8 blocks of it are kept, and nothing else
            self.assertEqual([cached("b" * 33), cached("a" * 17)], [32, 0])
            self.assertEqual(server.metric("vllm:prefix_cache_hits_total"), 16 + 8 + 32)


class HangUp(unittest.TestCase):
    """SIGHUP, as a server of an engine hears it."""

    def test_ends_as_sigterm(self):
        with mock({"workers": 2, "ttft_ms": 1, "tpot_ms": 5}) as server:
            waiter, result = server.in_background({"prompt": "x", "max_tokens": 100, "ignore_eos": True})
            server.process.send_signal(signal.SIGHUP)
            waiter.join()
            self.assertEqual((result[0][0], result[0][1]["usage"]["completion_tokens"]), (200, 100), result)
            server.process.wait(SECONDS)

    def test_ignored(self):
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with mock(QUICK) as server:
                server.complete("x", max_tokens=1)  # it hears signals by now
                server.process.send_signal(signal.SIGHUP)
                server.complete("x", max_tokens=50)
                self.assertEqual(server.get("/health")[0], 200)
        finally:
            signal.signal(signal.SIGHUP, before)

    def test_access_log(self):
        with tempfile.TemporaryDirectory() as folder:
            path, old = pathlib.Path(folder, "log"), pathlib.Path(folder, "old")
            with mock({"workers": 2} | QUICK, "--access-log", path) as server:
                server.get("/health")
                path.rename(old)
                server.process.send_signal(signal.SIGHUP)
                for i in range(2):  # each worker goes on in the new one
                    end = time.monotonic() + SECONDS
                    while not (path.exists() and f"/worker{i}" in path.read_text()):
                        self.assertLess(time.monotonic(), end)
                        server.worker(i).get(f"/worker{i}")
                self.assertIn("/health", old.read_text())


class Worker(unittest.TestCase):
    """GET /worker: what a router needs to know."""

    def test_of_an_engine(self):
        with Server("--ranks", 2, "--max-num-seqs", 5) as server:
            status, body = server.get("/worker")
            worker = json.loads(body)
            version = json.loads(server.get("/version")[1])
            self.assertEqual(status, 200)
            self.assertEqual((worker["models"], worker["ranks"], worker["kv_homes"], worker["attention"]), (["tiny"], 2, 2, "dp"))
            self.assertEqual((worker["fingerprint"], worker["version"]), (version["fingerprint"], version["version"]))
            self.assertEqual((worker["block_size"], worker["hash_scheme"]), (16, {"hash": "xxh3-64", "seed": 1337, "chained": True}))
            self.assertEqual(worker["max_model_len"], json.loads(server.get("/v1/models")[1])["data"][0]["max_model_len"])
            self.assertEqual(worker["max_num_seqs"], 5)
            self.assertEqual((worker["epoch"], worker["kv_events"], worker["step_reports"]), (0, None, None))
            self.assertRegex(worker["model_hash"], "^[0-9a-f]{16}$")
            self.assertGreater(worker["kv_pages"] * worker["page_tokens"], 0)
        with Server("--ranks", 2, "--attention", "tp", "--no-enable-prefix-caching") as server:
            worker = json.loads(server.get("/worker")[1])
            self.assertEqual((worker["kv_homes"], worker["attention"], worker["block_size"], worker["hash_scheme"]), (1, "tp", 0, None))

    def test_context_of_mocks(self):
        """What --max-model-len says is the server's, and no more than the mock's."""
        for options, context in ((), 32), (("--max-model-len", 20), 20):
            with mock({"workers": 2, "max_model_len": 32} | QUICK, *options) as server:
                for i in range(2):
                    self.assertEqual(json.loads(server.worker(i).get("/worker")[1])["max_model_len"], context)
                self.assertEqual(server.post("/v1/completions", {"prompt": "x" * (context + 1), "max_tokens": 1})[0], 400)
        with tempfile.NamedTemporaryFile("w") as file:
            file.write('{"max_model_len": 32}')
            file.flush()
            done = run("serve", "--mock", file.name, "--port", 0, "--max-model-len", 33)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
        self.assertIn("max model length 33 is not in [0, 32]", done.stderr)

    def test_endpoints_of_mocks(self):
        ports = free_ports(15)
        config = {"enable_kv_cache_events": True, "endpoint": f"tcp://127.0.0.1:{ports}", "replay_endpoint": f"tcp://127.0.0.1:{ports + 6}", "topic": "kv"}
        options = ("--kv-events-config", json.dumps(config), "--step-reports-endpoint", f"tcp://*:{ports + 12}", "--kv-events-no-auth")
        with mock({"workers": 3, "ranks": 2} | QUICK, *options) as server:
            for i in range(3):
                worker = json.loads(server.worker(i).get("/worker")[1])
                at = [f"tcp://127.0.0.1:{ports + 2 * i + rank}" for rank in range(2)]
                again = [f"tcp://127.0.0.1:{ports + 6 + 2 * i + rank}" for rank in range(2)]
                self.assertEqual(worker["kv_events"], {"endpoints": at, "replay_endpoints": again, "topic": "kv", "snapshot": "/kv_events/snapshot"})
                self.assertEqual(worker["step_reports"], {"endpoint": f"tcp://*:{ports + 12 + i}", "topic": "steps"})
                self.assertEqual((worker["ranks"], worker["epoch"], worker["model_hash"], worker["max_num_seqs"]), (2, None, None, 64))
                server.worker(i).complete("x" * 40, max_tokens=1)
                status, snapshot = server.worker(i).get("/kv_events/snapshot")
                self.assertEqual((status, snapshot.count(b"BlockStored")), (200, 1))


class Faults(unittest.TestCase):
    def test_die(self):
        with mock({"workers": 2, "faults": [{"fault": "die", "worker": 0, "after_tokens": 10}]} | QUICK) as server:
            self.assertTrue(stream(server, max_tokens=6)[1])
            events, whole = stream(server, max_tokens=6)
            self.assertFalse(whole)
            self.assertLessEqual(len(events), 4)
            self.assertFalse(any(b"error" in event for event in events))  # it breaks off without a word
            end = time.monotonic() + SECONDS
            while True:  # nobody is there any more
                try:
                    server.connect().connect()
                except ConnectionRefusedError:
                    break
                self.assertLess(time.monotonic(), end)
                time.sleep(0.01)
            self.assertTrue(stream(server.worker(1), max_tokens=20)[1])
            server.must_say("worker 0: the mock has told 10 tokens")

    def test_fail(self):
        spec = {"workers": 2, "faults": [{"fault": "fail", "worker": 0, "after_tokens": 3}]} | QUICK
        with mock(spec, "--shutdown-timeout", 1) as server:
            events, whole = stream(server, max_tokens=6)
            self.assertFalse(whole)
            self.assertIn(b"error", events[-1])
            self.assertTrue(stream(server.worker(1), max_tokens=6)[1])

    def test_stall(self):
        spec = {"faults": [{"fault": "stall", "every": 2, "after_tokens": 3}]} | QUICK
        with mock(spec, "--answer-timeout", 0.3) as server:
            self.assertTrue(stream(server, max_tokens=6)[1])
            events, whole = stream(server, max_tokens=6)
            self.assertFalse(whole)
            self.assertEqual(len(events), 4)
            self.assertEqual(json.loads(events[-1])["error"]["code"], "timeout")
            server.wait_idle()
            self.assertTrue(stream(server, max_tokens=6)[1])
            server.must_say("told nothing of a request for 0.3 s")

    def test_never(self):
        with mock({"faults": [{"fault": "stall", "every": 2}]} | QUICK, "--answer-timeout", 0.3) as server:
            server.complete("x", max_tokens=2)
            status, answer = server.post("/v1/completions", {"prompt": "x", "max_tokens": 2})
            self.assertEqual((status, answer["error"]["code"]), (504, "timeout"))
            server.complete("x", max_tokens=2)

    def test_refuse(self):
        with mock({"faults": [{"fault": "refuse", "every": 2}]} | QUICK) as server:
            codes = [server.post("/v1/completions", {"prompt": "x", "max_tokens": 2})[0] for _ in range(4)]
            self.assertEqual(codes, [200, 429, 200, 429])
            self.assertEqual(server.send("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})[0], 200)
            status, headers, _ = server.send("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})
            self.assertEqual((status, headers["Retry-After"]), (429, "1"))

    def test_choices_are_one_request(self):
        faults = [{"fault": "refuse", "every": 2}, {"fault": "stall", "every": 3}]
        with mock({"faults": faults} | QUICK, "--answer-timeout", 1) as server:
            ask = lambda **fields: server.post("/v1/completions", {"prompt": "x", "max_tokens": 2, "temperature": 1} | fields)
            for n, code in (2, 200), (2, 429), (1, 504), (1, 429), (2, 200):
                status, answer = ask(n=n)
                self.assertEqual(status, code, answer)
            self.assertEqual(len(answer["choices"]), 2)
            self.assertEqual(ask(prompt=["x", "y"], n=2)[0], 429)  # the sixth: both hit it
            counted = json.loads(server.get("/mock")[1])
            self.assertEqual({k: counted[k] for k in ("requests", "refused", "stalled", "tokens")}, {"requests": 6, "refused": 3, "stalled": 1, "tokens": 8})

    def test_late(self):
        with mock({"faults": [{"fault": "late", "ms": 400, "every": 2}]} | QUICK) as server:
            server.complete("x", max_tokens=2)
            begin = time.monotonic()
            server.complete("x", max_tokens=2)
            self.assertGreaterEqual(time.monotonic() - begin, 0.4)

    def test_twice(self):
        with mock({"faults": [{"fault": "twice"}]} | QUICK) as server:
            for _ in range(3):
                self.assertTrue(stream(server, max_tokens=3)[1])
            told = [line for line in server.log if "told it twice" in line]
            self.assertEqual([re.search(r"\((\d+) in all\)", line)[1] for line in told], ["1", "2"])
            self.assertEqual(server.metric("vllm:generation_tokens_total"), 9)
            self.assertEqual(server.metric("vllm:request_success_total"), 3)

    def test_clients_that_leave(self):
        with mock({"ttft_ms": 1, "tpot_ms": 50, "max_num_seqs": 2}) as server:
            for _ in range(4):
                with contextlib.closing(server.connect()) as connection:
                    connection.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 500, "stream": True}), {"Content-Type": "application/json"})
                    connection.getresponse().read(20)
                    connection.sock.shutdown(socket.SHUT_RDWR)
            server.wait_idle()
            self.assertTrue(stream(server, max_tokens=2)[1])


if __name__ == "__main__":
    unittest.main()
