"""bench serve against a server of the test's own: what is asked, what is counted, what is told of failures."""

import json
import os
import pathlib
import socket
import subprocess
import tempfile
import unittest

from openai_server import Server

PROGRAM = pathlib.Path(os.environ["COT_PROGRAM"])


def run(*arguments, key=None):
    environment = {name: value for name, value in os.environ.items() if name != "COTERIE_API_KEY"}
    if key:
        environment["COTERIE_API_KEY"] = key
    return subprocess.run([PROGRAM, "bench", "serve", *map(str, arguments)], capture_output=True, text=True,
                          env=environment, timeout=120)


class Loads(unittest.TestCase):
    def measure(self, server, *arguments, **named):
        done = run(server.url, "--json", *arguments, **named)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")
        return json.loads(done.stdout)

    def refused(self, *arguments, **named):
        done = run(*arguments, **named)
        self.assertIn(done.returncode, (1, 2))
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("coterie: "), done.stderr)
        return done.stderr

    def test_workers(self):
        """Of 12 requests a has 6, b 3 and c 3: 1.5 times the mean; 33 + 7 tokens each, of which 16 are cached."""
        with Server(workers=("a", "b", "a", "c")) as server:
            got = self.measure(server, "-n", 12, "--input-tokens", 33, "--output-tokens", 7)
            text = run(server.url, "-n", 12, "--input-tokens", 33, "--output-tokens", 7).stdout
        self.assertEqual((got["workers"], got["busiest_over_mean"]), (3, 1.5))
        self.assertIn("workers      3, tokens computed by the busiest 1.500 of the mean\n", text)
        with Server(fewer=3) as slow, Server() as server:  # of several URLs each is a worker, unless an answer says more
            got = self.measure(server, slow.url, "-n", 6, "--input-tokens", 16, "--output-tokens", 8)
        self.assertEqual((got["workers"], got["busiest_over_mean"]), (2, 16 / 14.5))  # 8 of 16 cached, 8 or 5 answered
        with Server(workers=("a",)) as one, Server(workers=("a", "b")) as server:  # URLs in turn, a: 3 of 4
            got = self.measure(server, one.url, "-n", 4)
        self.assertEqual((got["workers"], got["busiest_over_mean"]), (2, 1.5))
        for workers in (("a", None, "a"), ()):  # not each answer tells
            with Server(workers=workers) as server:
                got = self.measure(server, "-n", 4)
                text = run(server.url, "-n", 4).stdout
            self.assertFalse({"workers", "busiest_over_mean"} & got.keys())
            self.assertIn("workers      not told: not each answer has a head X-Worker\n", text)

    def test_closed_loop(self):
        with Server(first=0.01, between=0.001, gather=4) as server:
            got = self.measure(server, "-n", 24, "-c", 4, "--input-tokens", 33, "--output-tokens", 7)
        self.assertEqual(got["model"], "a model")
        self.assertEqual((got["sent"], got["completed"], got["failed"], got["failures"]), (24, 24, 0, {}))
        self.assertEqual((got["input_tokens"], got["cached_tokens"]), (24 * 33, 24 * 16))
        self.assertEqual((got["output_tokens"], got["events"], got["unlike_asked"]), (24 * 7, 24 * 7, 0))
        self.assertEqual([got[name]["count"] for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")], [24, 24, 24 * 6, 24])
        self.assertEqual((server.most, len(server.asked)), (4, 24))
        for body in server.asked:
            self.assertEqual(body["model"], "a model")
            self.assertEqual((len(body["prompt"]), body["max_tokens"], body["min_tokens"]), (33, 7, 7))
            self.assertTrue(all(100 <= token < 1000 for token in body["prompt"]))
            self.assertEqual(body["stream_options"], {"include_usage": True})
        self.assertEqual(len({tuple(body["prompt"]) for body in server.asked}), 24)
        # no token came before the server had slept, and the parts add up
        self.assertGreaterEqual(got["ttft_ms"]["mean"], 10)
        self.assertGreaterEqual(got["e2e_ms"]["mean"], 10 + 6)
        whole = got["ttft_ms"]["mean"] + 6 * got["tpot_ms"]["mean"]
        self.assertAlmostEqual(got["e2e_ms"]["mean"], whole, delta=1e-6 * whole)
        self.assertAlmostEqual(got["itl_ms"]["mean"], got["tpot_ms"]["mean"], delta=1e-6 * whole)
        for times in (got[name] for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")):
            self.assertTrue(0 < times["p50"] <= times["p90"] <= times["p99"])
        self.assertAlmostEqual(got["requests_per_second"] * got["seconds"], 24, places=6)
        self.assertAlmostEqual(got["tokens_per_second"] * got["seconds"], 24 * 40, places=4)

    def test_seeds(self):
        asked = []
        for seed in (1, 1, 2):
            with Server() as server:
                self.measure(server, "-n", 3, "--output-tokens", 1, "--seed", seed, "--vocabulary", 50)
            asked.append([body["prompt"] for body in server.asked])
        self.assertEqual(asked[0], asked[1])
        self.assertNotEqual(asked[0], asked[2])
        self.assertTrue(all(5 <= token < 50 for prompts in asked for prompt in prompts for token in prompt))

    def test_chats(self):
        """The same questions as messages, counted the same way."""
        def ask(*arguments):
            with Server() as server:
                got = self.measure(server, "--backend", "openai-chat", "-n", 5, "--output-tokens", 7, *arguments)
            self.assertEqual((got["completed"], got["output_tokens"], got["events"], got["unlike_asked"]), (5, 35, 35, 0))
            self.assertEqual([got[name]["count"] for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")], [5, 5, 5 * 6, 5])
            for body in server.asked:
                self.assertEqual((body["max_completion_tokens"], body["min_tokens"]), (7, 7))
                self.assertFalse({"prompt", "max_tokens"} & set(body))
                self.assertEqual([message["role"] for message in body["messages"]], ["user"])
            return got["input_tokens"], [body["messages"][0]["content"] for body in server.asked]

        tokens, texts = ask("--input-tokens", 33)
        self.assertEqual((tokens, [len(text.split()) for text in texts], len(set(texts))), (5 * 33, [33] * 5, 5))
        self.assertEqual(ask("--input-tokens", 33), (tokens, texts))
        self.assertNotEqual(ask("--input-tokens", 33, "--seed", 2)[1], texts)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "prompts"
            path.write_text("one\ntwo three")
            self.assertEqual(ask("--prompts", path)[1], ["one", "two three", "one", "two three", "one"])

    def test_open_loop(self):
        with Server(gather=5) as server:  # they do not wait for each other
            got = self.measure(server, "-n", 40, "--request-rate", 2000, "--output-tokens", 2)
        self.assertEqual(got["completed"], 40)
        with Server(gather=3) as server:
            got = self.measure(server, "-n", 20, "--request-rate", 5000, "-c", 3, "--output-tokens", 2)
        self.assertEqual(got["completed"], 20)
        self.assertEqual(server.most, 3)
        with Server() as server:  # 30 gaps of 10 ms in the mean
            got = self.measure(server, "-n", 31, "--request-rate", 100, "--output-tokens", 1)
        self.assertGreater(got["seconds"], 0.1)

    def test_common_beginnings(self):
        rows = [(1600, [0, 1, 2, 3]), (1536, [0, 1, 4]), (1030, [5, 6, 7]), (1100, [0, 1, 2])]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "trace.jsonl")
            path.write_text("".join(json.dumps({"timestamp": i, "input_length": n, "output_length": 64, "hash_ids": ids}) + "\n"
                                    for i, (n, ids) in enumerate(rows)))
            with Server() as server:
                got = self.measure(server, "--trace", path, "--scale-lengths", "1/32", "--policy-label", "joint", "-c", 1)
                asked = [body["prompt"] for body in server.asked]
                self.assertEqual([len(prompt) for prompt in asked], [50, 48, 33, 34])
                self.assertTrue(all(body["max_tokens"] == 2 for body in server.asked))
            self.assertEqual(asked[0][:32], asked[1][:32])
            self.assertNotEqual(asked[0][32:48], asked[1][32:48])
            self.assertNotEqual(asked[0][:16], asked[2][:16])
            self.assertEqual(asked[0][:34], asked[3])
            # 8 hash ids are new; the server finds half of each prompt, one whole block: of the second 2 - 1 are lost, of the last 2
            self.assertEqual(got["policy"], "joint")
            self.assertAlmostEqual(got["hit"], (25 + 24 + 16 + 17) / (50 + 48 + 33 + 34))
            self.assertAlmostEqual(got["regret"], 3 / (3 + 8))
            with Server() as server:
                self.measure(server, "--trace", path, "--max-input-tokens", 100, "-n", 2)
                self.assertEqual(server.asked[0]["prompt"], server.asked[1]["prompt"])
            path.write_text(json.dumps({"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [1]}))
            self.assertIn("one for each 512", self.refused("http://127.0.0.1:1", "--trace", path, "-m", "x"))
        for scale in ("0", "2", "1/0", "-1/3", "1/x", ""):
            self.refused("http://127.0.0.1:1", "--scale-lengths", scale, "-m", "x")

    def test_trace(self):
        lengths = [(5, 3), (700, 9), (1, 1), (44, 2)]
        with tempfile.TemporaryDirectory() as folder:
            mooncake, azure = pathlib.Path(folder) / "a.jsonl", pathlib.Path(folder) / "b.csv"
            mooncake.write_text("".join(
                json.dumps({"timestamp": 1000 + 50 * i, "input_length": a, "output_length": b, "hash_ids": [0] * -(-a // 512)}) + "\n"
                for i, (a, b) in enumerate(lengths)))
            azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\r\n" + "".join(
                f"2023-11-16 18:17:03.{979 + 5 * i}9600,{a},{b}\r\n" for i, (a, b) in enumerate(lengths)))
            for path in (mooncake, azure):
                with Server() as server:
                    got = self.measure(server, "--trace", path)
                self.assertEqual(got["completed"], 4)
                self.assertEqual(sorted((len(b["prompt"]), b["max_tokens"]) for b in server.asked), sorted(lengths))
                with Server() as server:
                    self.measure(server, "--trace", path, "-n", 2, "--max-input-tokens", 6, "--max-output-tokens", 4,
                                 "--trace-speed", 100)
                self.assertEqual(sorted((len(b["prompt"]), b["max_tokens"]) for b in server.asked), [(5, 3), (6, 4)])
            with Server() as server:  # the trace's own times: 150 ms from first to last
                self.assertGreaterEqual(self.measure(server, "--trace", mooncake)["seconds"], 0.15)
            for text in ("", "{}", '{"timestamp": 1, "input_length": 0, "output_length": 1}', "[", "\0",
                         '{"timestamp": 2, "input_length": 1, "output_length": 1}\n{"timestamp": 1, "input_length": 1, "output_length": 1}',
                         '{"timestamp": 1e400, "input_length": 1, "output_length": 1}',
                         '{"timestamp": 1, "input_length": 99999999999, "output_length": 1}',
                         "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,1,1",
                         "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1x"):
                mooncake.write_text(text)
                self.assertIn("a.jsonl", self.refused("http://127.0.0.1:1", "--trace", mooncake, "-m", "x"))

    def test_prompts(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "prompts"
            path.write_text('one\n\n{"prompt": "two\\n\\u00e9", "other": 1}\nthree é', encoding="utf-8")
            with Server() as server:
                got = self.measure(server, "--prompts", path, "--output-tokens", 5)
            self.assertEqual([b["prompt"] for b in server.asked], ["one", "two\né", "three é"])
            self.assertEqual(got["output_tokens"], 15)
            with Server() as server:
                self.measure(server, "--prompts", path, "-n", 5)
            self.assertEqual([b["prompt"] for b in server.asked], ["one", "two\né", "three é", "one", "two\né"])
            for text in (b"", b"\n\n", b'{"text": "x"}', b"{", b"\xff"):
                path.write_bytes(text)
                self.assertIn("prompts'", self.refused("http://127.0.0.1:1", "--prompts", path, "-m", "x"))
            self.refused("http://127.0.0.1:1", "--prompts", path, "--trace", path)

    def test_failures(self):
        faults = {1: 429, 3: 429, 4: 503, 6: "cut", 8: "error", 9: "garbage", 11: "endless", 12: "reset"}
        with Server(faults=faults) as server:
            done = run(server.url, "-n", 20, "--output-tokens", 4, "--json")
        got = json.loads(done.stdout)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "coterie: 8 of 20 requests failed, the first by: HTTP 429: refused with?429\n")
        self.assertEqual((got["sent"], got["completed"], got["rejected"], got["failed"]), (20, 12, 0, 8))
        # in other words: a kind each, none of which is in the times
        host = f"'127.0.0.1:{server.server_port}': "
        self.assertEqual(got["failures"], {
            "HTTP 429": 2, "HTTP 503": 1, host + "the connection ended in the midst of the answer": 1,
            "in the stream: out of order": 1, "an event that is no JSON": 1, "a stream that ended early": 1,
            host + "the connection ended without an answer": 1})
        self.assertEqual((got["output_tokens"], got["ttft_ms"]["count"], got["itl_ms"]["count"]), (48, 12, 36))
        with Server(faults=faults) as server:
            text = run(server.url, "-n", 5, "--output-tokens", 4).stdout
        self.assertIn("failed     2: HTTP 429: refused with?429\n", text)
        with Server(faults={3: "cut"}) as server:  # one is enough
            done = run(server.url, "-n", 20, "--request-rate", 1000, "--json")
        self.assertEqual((done.returncode, json.loads(done.stdout)["completed"]), (1, 19))
        self.assertIn("1 of 20 requests failed, the first by: ", done.stderr)
        with Server(faults={0: "hang"}) as server:
            done = run(server.url, "-n", 1, "--timeout", 0.2, "--json")
        self.assertEqual(list(json.loads(done.stdout)["failures"].values()), [1])
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "the answer stopped|no answer in time")

    def test_rejected(self):
        """A server of an open loop may say that it is full; 503 is a failure all the same."""
        with Server(faults={1: 429, 3: 429}) as server:
            got = self.measure(server, "-n", 9, "--request-rate", 1000, "--output-tokens", 4)
        self.assertEqual((got["sent"], got["completed"], got["rejected"], got["failed"], got["failures"]), (9, 7, 2, 0, {}))
        self.assertEqual((got["output_tokens"], got["ttft_ms"]["count"]), (28, 7))
        with Server(faults={1: 429, 3: 503}) as server:
            done = run(server.url, "-n", 9, "--request-rate", 1000)
        self.assertEqual((done.returncode, done.stderr), (1, "coterie: 1 of 9 requests failed, the first by: HTTP 503: refused with?503\n"))
        self.assertIn("requests     9 sent, 7 completed, 1 rejected, 1 failed, in ", done.stdout)
        self.assertIn("  rejected   1: HTTP 429: refused with?429\n", done.stdout)
        with Server(faults={i: 429 for i in range(3)}) as server:
            done = run(server.url, "-n", 3, "--request-rate", 1000)
        self.assertEqual((done.returncode, done.stderr), (1, "coterie: all 3 requests were rejected: HTTP 429: refused with?429\n"))

    def test_counts_as_the_server(self):
        with Server(fewer=1) as server:
            got = self.measure(server, "-n", 3, "--output-tokens", 4)
        self.assertEqual((got["output_tokens"], got["unlike_asked"]), (9, 3))
        with Server(usage=False) as server:  # by events and by what was sent
            got = self.measure(server, "-n", 3, "--output-tokens", 4, "--input-tokens", 9)
        self.assertEqual((got["input_tokens"], got["output_tokens"], got["unlike_asked"]), (27, 12, 0))

    def test_goodput(self):
        with Server(first=0.02) as server:
            got = self.measure(server, "-n", 6, "--output-tokens", 2, "--slo-ttft-ms", 20)
            self.assertEqual((got["good"], got["goodput_per_second"]), (0, 0))
            got = self.measure(server, "-n", 6, "--output-tokens", 2, "--slo-ttft-ms", 60000, "--slo-tpot-ms", 60000)
            self.assertEqual(got["good"], 6)
            self.assertAlmostEqual(got["goodput_per_second"], got["requests_per_second"], places=6)
        with Server(between=0.01) as server:  # a nanosecond
            got = self.measure(server, "-n", 2, "--output-tokens", 3, "--slo-tpot-ms", 1e-6)
            self.assertEqual(got["good"], 0)

    def test_keys_and_servers(self):
        with Server(key="secret") as server, tempfile.TemporaryDirectory() as folder:
            self.assertIn("a key is needed", self.refused(server.url))
            self.assertIn("HTTP 401: a key is needed", run(server.url, "-m", "x", "-n", 1).stderr)
            self.assertEqual(self.measure(server, "-n", 1, key="secret")["completed"], 1)
            path = pathlib.Path(folder) / "key"
            path.write_text("secret\nmore\n")
            self.assertEqual(self.measure(server, "-n", 1, "--api-key-file", path)["completed"], 1)
            self.assertIn("cannot read a key", self.refused(server.url, "--api-key-file", path / "none"))
        with socket.socket() as taken:  # bound, and nobody listens
            taken.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{taken.getsockname()[1]}"
            self.assertIn("Connection refused", self.refused(url))
            self.assertIn("Connection refused", run(url, "-m", "x", "-n", 2).stderr)
        with Server() as server:  # the URL as a server shows it
            done = run(server.url + "/v1/", "-n", 1, "--json")
            self.assertEqual((done.returncode, json.loads(done.stdout)["completed"]), (0, 1))
        self.assertIn("certificates", self.refused("https://127.0.0.1", "--ca-certs", "/dev/null"))
        self.assertIn("no URL", self.refused("127.0.0.1:80"))
        self.assertIn("no.such.host.invalid", self.refused("http://no.such.host.invalid"))

    def test_text(self):
        with Server() as server:
            done = run(server.url, "-n", 2, "--output-tokens", 3, "--slo-ttft-ms", 60000)
        self.assertEqual(done.returncode, 0)
        for line in ("model        a model\n", "requests     2 sent, 2 completed, 0 rejected, 0 failed", "6 out, in 6 events", "(2 of 2)",
                     "TTFT", "TPOT", "ITL", "e2e"):
            self.assertIn(line, done.stdout)


if __name__ == "__main__":
    unittest.main()
