"""Reports of steps as their subscribers get them, against what the engine's counters say at rest. pyzmq and msgspec come from the
package index; without one the test is skipped, loudly."""

import json
import os
import sys
import time
import unittest

from pypi import need

if __name__ == "__main__" and "COT_IN_VENV" not in os.environ:
    python = need("kv-events", "pyzmq==27.3.0", "msgspec==0.22.0")
    os.execve(python, [python, "-B", __file__, *sys.argv[1:]], os.environ | {"COT_IN_VENV": "1"})

import msgspec  # noqa: E402
from following import Follower  # noqa: E402
from serving import MODEL, SECONDS, Server, free_ports, run  # noqa: E402
from test_metrics import load, scrape, settled, total  # noqa: E402

RANKS = {"tokens": "routed_tokens", "activations": "activations", "local": "local_activations", "sends": "remote_sends", "distinct_experts": "distinct_experts"}


class StepFollower(Follower):
    def join(self, server):
        """Until it hears of steps, of all there have been: what the counters are then."""
        while not self.take(0.1):
            server.complete("x", max_tokens=1)
        return self.follow(server, 0)

    def follow(self, server, tokens):
        """The metrics at rest, of so many tokens at least, and all reports up to their last step."""
        metrics = settled(server, tokens)
        end = time.monotonic() + SECONDS
        while self.messages()[-1]["step"] < total(metrics, "coterie:steps_total"):
            assert self.take(1) or time.monotonic() < end, (self.messages()[-1], metrics["coterie:steps_total"])
        while total(metrics, "coterie:steps_total") < self.messages()[-1]["step"]:  # the counters are gathered once a second
            assert time.monotonic() < end
            time.sleep(0.05)
            metrics = scrape(server)
        return metrics


class StepReports(unittest.TestCase):
    def test_sums_are_the_counters(self):
        for ranks, options in ((1, ()), (3, ("--attention", "dp")), (2, ("--attention", "tp")), (2, ("--fabric", "processes"))):
            port = free_ports(1)
            with self.subTest(ranks=ranks, options=options), Server("--ranks", ranks, "--step-reports-endpoint", f"tcp://127.0.0.1:{port}", *options) as server:
                with StepFollower(port) as follower:
                    before = follower.join(server)
                    tokens = load(server, 6)
                    after = follower.follow(server, tokens + total(before, "coterie:step_tokens_total"))
                    homes = json.loads(server.get("/worker")[1])["kv_homes"]
                    self.assert_sums(follower, before, after, ranks, homes)

    def assert_sums(self, follower, before, after, ranks, homes):
        numbers = [int.from_bytes(number, "big") for _, number, _ in follower.frames]
        self.assertEqual(numbers, list(range(numbers[0], numbers[0] + len(numbers))))
        self.assertEqual({topic for topic, _, _ in follower.frames}, {b"steps"})
        steps = [report["step"] for report in follower.messages()]
        self.assertEqual(steps, list(range(steps[0], steps[0] + len(steps))))
        first = total(before, "coterie:steps_total")
        reports = [report for report in follower.messages() if report["step"] > first]

        def grown(name, **labels):
            return total(after, f"coterie:{name}", **labels) - total(before, f"coterie:{name}", **labels)

        self.assertEqual(len(reports), grown("steps_total"))
        self.assertEqual(sum(report["tokens"] for report in reports), grown("step_tokens_total"))
        for report in reports:
            self.assertEqual(len(report["ranks"]), ranks)
            self.assertTrue(0 <= report["prompt_tokens"] <= report["tokens"] and 1 <= report["sequences"] <= report["tokens"])
            self.assertLess(abs(time.time() - report["seconds"]), 2 * SECONDS)
            self.assertEqual(report["epoch"], 0)
            self.assertTrue(report["tokens"] <= report["positions"] <= report["pairs"] or report["sequences"] < report["tokens"])
            self.assertGreaterEqual(report["pairs"], report["tokens"])
            self.assertEqual(len(report["homes"]), homes)
            self.assertEqual(sum(home["running"] for home in report["homes"]), report["sequences"])
            self.assertTrue(all(home["free_pages"] > 0 and home["waiting"] == home["waiting_prompt_tokens"] == 0 for home in report["homes"]))
        fed = sum(report["tokens"] for report in reports if report["prompt_tokens"])
        self.assertEqual(fed, grown("step_tokens_total", kind="prefill"))
        self.assertAlmostEqual(sum(report["observed_ns"] for report in reports) / 1e9, grown("step_seconds_total"), places=5)
        self.assertAlmostEqual(reports[-1]["predicted_ns"] / 1e9, total(after, "coterie:step_predicted_seconds"), places=5)
        self.assertGreater(reports[-1]["predicted_ns"], 0)
        for member, name in RANKS.items():
            for rank in range(ranks):
                self.assertEqual(sum(report["ranks"][rank][member] for report in reports), grown(name + "_total", rank=str(rank)), (member, rank))
        for report in reports:  # what ranks call and send is what ranks serve and receive
            for called, served in (("activations", "served"), ("sends", "received")):
                self.assertEqual(*(sum(rank[member] for rank in report["ranks"]) for member in (called, served)))
            self.assertTrue(all(rank["served_experts"] <= rank["served"] and (rank["served_experts"] > 0) == (rank["served"] > 0) for rank in report["ranks"]))
        for phase in ("attention", "dispatch", "combine", "metadata"):
            self.assertEqual(sum(report["bytes"][phase] for report in reports), grown("sent_bytes_total", phase=phase), phase)
        self.assertEqual(sum(report["bytes"]["control"] for report in reports) > 0, ranks > 1)

    def test_beside_events(self):
        """Who follows the KV cache, every topic of it, hears of no step."""
        port = free_ports(2)
        config = json.dumps({"enable_kv_cache_events": True, "endpoint": f"tcp://127.0.0.1:{port}"})
        with Server("--kv-events-config", config, "--step-reports-endpoint", f"tcp://127.0.0.1:{port + 1}") as server:
            with Follower(port) as events, StepFollower(port + 1) as steps:
                steps.join(server)
                while not events.take(0.1):
                    server.complete([len(steps.frames) + i for i in range(60)], max_tokens=1)
                    steps.take(0.1)
                while events.take(0.2):
                    pass
                for topic, _, payload in events.frames:
                    self.assertEqual((topic, type(msgspec.msgpack.decode(payload))), (b"", list))

    def test_what_is_refused(self):
        port = free_ports(3)
        config = json.dumps({"enable_kv_cache_events": True, "endpoint": f"tcp://127.0.0.1:{port}", "replay_endpoint": f"tcp://127.0.0.1:{port + 2}"})
        for endpoint, options, said in (
            ("5600", (), "is not tcp://ADDRESS:PORT"),
            ("tcp://example.org:5600", (), "is not tcp://ADDRESS:PORT"),
            ("tcp://127.0.0.1:0", (), "is not tcp://ADDRESS:PORT"),
            ("tcp://*:5600", (), "can be reached from other machines"),
            (f"tcp://127.0.0.1:{port}", ("--port", port), "the server's own"),
            (f"tcp://127.0.0.1:{port + 1}", ("--kv-events-config", config, "--ranks", 2), "one of --kv-events-config"),
            (f"tcp://127.0.0.1:{port + 2}", ("--kv-events-config", config), "one of --kv-events-config"),
        ):
            with self.subTest(endpoint=endpoint, options=options):
                where = () if "--port" in options else ("--port", free_ports(1))
                done = run("serve", MODEL, "--step-reports-endpoint", endpoint, *where, *options)
                self.assertEqual(done.returncode, 2)
                self.assertEqual((done.stderr.count("\n"), said in done.stderr), (1, True), done.stderr)


if __name__ == "__main__":
    unittest.main()
