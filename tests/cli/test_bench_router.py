"""bench router: queues against a simulation in a few lines of Python, traces that are refused, figures that add up."""

import collections
import json
import os
import pathlib
import random
import subprocess
import tempfile
import unittest

PROGRAM = pathlib.Path(os.environ["COT_PROGRAM"])
BLOCK = 512


def run(*arguments):
    return subprocess.run([PROGRAM, "bench", "router", *map(str, arguments)], capture_output=True, text=True, timeout=120)


def draw_trace(rng, requests):
    """Prompts that continue earlier ones, or begin anew."""
    trace, texts, at, fresh = [], [[]], 0, 0
    for _ in range(requests):
        ids = list(rng.choice(texts[-40:]))
        ids = ids[:rng.randrange(len(ids) + 1)]
        for _ in range(rng.randrange(1, 9)):
            ids.append(fresh)
            fresh += 1
        texts.append(ids)
        at += rng.randrange(400)
        length = len(ids) * BLOCK - rng.choice([0, 0, rng.randrange(BLOCK)])
        trace.append({"timestamp": at, "input_length": length, "output_length": rng.randrange(600), "hash_ids": ids})
    return trace


def simulate(trace, policy, workers, pages, token_ns):
    """Hit and mean TTFT, in whole nanoseconds. Answers take no time; joint and least take the first of equals behind the last one taken."""
    kept = [collections.OrderedDict() for _ in range(workers)]
    free = [0] * workers
    waiting = [[] for _ in range(workers)]  # (first token, tokens to compute)
    found = asked = ttft = 0
    turn = 0
    for r in trace:
        now = r["timestamp"] * 10**6
        depth = []
        for w in range(workers):
            waiting[w] = [p for p in waiting[w] if p[0] > now]
            n = 0
            while n < len(r["hash_ids"]) and r["hash_ids"][n] in kept[w]:
                n += 1
            depth.append(min(n * BLOCK, r["input_length"] - 1))
        order = [(turn + i) % workers for i in range(workers)]
        if policy == "least":
            w = min(order, key=lambda w: sum(p[1] for p in waiting[w]))
        elif policy == "joint":
            w = min(order, key=lambda w: max(free[w] - now, 0) + (r["input_length"] - depth[w]) * token_ns)
        else:
            w = order[0]
        turn = (w + 1) % workers
        compute = r["input_length"] - depth[w]
        free[w] = max(free[w], now) + compute * token_ns
        waiting[w].append((free[w], compute))
        found, asked, ttft = found + depth[w], asked + r["input_length"], ttft + free[w] - now
        for block in reversed(r["hash_ids"]):
            kept[w].pop(block, None)
            kept[w][block] = True
        while len(kept[w]) > pages:
            kept[w].popitem(last=False)
    return found / asked, ttft / len(trace) / 1e9


class Queues(unittest.TestCase):
    def setUp(self):
        seed = int(os.environ.get("COT_SEED", random.randrange(1 << 32)))
        print(f"COT_SEED={seed}")
        self.rng = random.Random(seed)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name, "trace.jsonl")

    def write(self, rows):
        self.path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
        return self.path

    def test_like_a_simulation(self):
        for _ in range(12):
            trace = draw_trace(self.rng, 400)
            workers, pages = self.rng.randrange(1, 6), self.rng.randrange(20, 400)
            done = run(self.write(trace), "--queues", "--targets", workers, "--pages", pages, "--token-ms", 0,
                       "--prefill-rate", 10000, "--json")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            got = {row["policy"]: row for row in json.loads(done.stdout)}
            self.assertEqual(sorted(got), ["dynamo", "joint", "kv", "least", "random", "round-robin"])
            for policy in ("round-robin", "least", "joint"):
                hit, ttft = simulate(trace, policy, workers, pages, 100000)
                self.assertAlmostEqual(got[policy]["hit"], hit, delta=1e-9, msg=policy)
                self.assertAlmostEqual(got[policy]["ttft_s"]["mean"], ttft, delta=1e-9 * ttft, msg=policy)
            for row in got.values():
                times = row["ttft_s"]
                self.assertTrue(0 < times["p50"] <= times["p90"] <= times["p99"])
                self.assertTrue(1 - 1e-9 <= row["busiest_over_mean"] <= workers + 1e-9)
                self.assertTrue(0 <= row["regret"] < 1)

    def test_options_of_queues(self):
        trace = draw_trace(self.rng, 400)
        usual = ["--queues", "--json", "--policy", "joint", "--pages", 60, "--targets", 1]
        hits = [json.loads(run(self.write(trace), *usual, *more).stdout)[0]["hit"]
                for more in ([], ["--keep-answers"], ["--pages", 100000], ["--pin", "--token-ms", 5000])]
        self.assertLess(hits[1], hits[0])  # answers take the room of prompts
        self.assertLess(hits[0], hits[2])
        self.assertNotEqual(hits[0], hits[3])

    def test_decisions(self):
        trace = draw_trace(self.rng, 300)
        done = run(self.write(trace), "--targets", 5, "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        got = json.loads(done.stdout)
        whole = [row["input_length"] // 16 for row in trace]
        beginnings = {(id, place) for row in trace for i, id in enumerate(row["hash_ids"])
                      for place in range(min(32, row["input_length"] // 16 - 32 * i))}
        self.assertEqual(got["blocks"], len(beginnings))
        pairs = {(n % 5, id, place) for n, row in enumerate(trace) for i, id in enumerate(row["hash_ids"])
                 for place in range(min(32, row["input_length"] // 16 - 32 * i))}
        self.assertEqual(got["pairs"], len(pairs))
        self.assertEqual(got["blocks_per_request"], sum(whole) // len(trace))
        for name in ("decisions_per_second", "decision_p99_ns", "insert_blocks_per_second", "hash_ns", "bytes",
                     "writer_blocks_per_second"):
            self.assertGreater(got[name], 0)

    def test_decisions_of_short_prompts(self):
        """Of which none has a whole block, or few have."""
        for length in (1, 12):
            trace = [{"timestamp": n, "input_length": length, "output_length": 1, "hash_ids": [n]} for n in range(9)]
            trace.append({"timestamp": 9, "input_length": 20, "output_length": 1, "hash_ids": [9]})
            for rows in (trace, trace[:9]):
                done = run(self.write(rows), "--targets", 4, "--json")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertEqual(json.loads(done.stdout)["blocks"], len(rows) - 9)

    def refused(self, rows, words, *more):
        done = run(self.write(rows), "--queues", *more)
        self.assertEqual((done.returncode, done.stdout.count("\n") > 1), (1, False))
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(words, done.stderr)

    def test_refused_traces(self):
        good = {"timestamp": 5, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]}
        self.refused([good, {**good, "timestamp": 4}], "line 2: its time goes back")
        self.refused([good, {**good, "input_length": -600}], "line 2: input_length is not 1 to 16777216")
        self.refused([{**good, "output_length": -1}], "line 1: output_length is not 0 to 16777216")
        self.refused([{**good, "hash_ids": [0]}], "line 1: hash_ids are not one for each 512 tokens of input_length")
        self.refused([{**good, "hash_ids": [0, -1]}], "line 1: a hash id is not 0 to 268435455")
        self.refused([{**good, "timestamp": "now"}], "line 1: timestamp is no time in milliseconds")
        self.refused(["{\n"], "line 1: ")
        self.refused([], "no requests")
        self.refused([good, {**good, "hash_ids": [1, 0]}], "request 2: a hash id stands behind another one than before",
                     "--targets", 1)
        self.path.write_bytes(json.dumps(good).encode() + b"\n\0" + json.dumps(good).encode() + b"\n")
        done = run(self.path, "--queues")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("a byte 0, which no JSON has", done.stderr)
        for more in (["--pages", 9], ["--pin"], ["--keep-answers"], ["--seed", 2], ["--token-ms", 1], ["--prefill-rate", 9]):
            done = run(self.write([good]), *more)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn("go with --queues", done.stderr)
        done = run(self.write([good]), "--policy", "best")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--policy takes each, joint, kv, least, dynamo, random or round-robin, not 'best'", done.stderr)


if __name__ == "__main__":
    unittest.main()
