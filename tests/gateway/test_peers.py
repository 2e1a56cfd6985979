"""Routers before the same workers tell each other what they send: counts of requests, and peers that fall silent."""

import contextlib
import json
import os
import signal
import time
import unittest

from routing import Router, RouterTest, free_ports, kill, mocks, stream

SLOW = {"ttft_ms": 1, "tpot_ms": 20}
HELD = {"max_tokens": 3000, "ignore_eos": True}


class Peers(RouterTest):
    def hold(self, router, stack):
        """Begins a stream that goes on until the test is over, of a prompt of its own; the worker."""
        self.held = getattr(self, "held", 0) + 1
        connection = stack.enter_context(contextlib.closing(router.connect()))
        connection.request("POST", "/v1/completions", json.dumps(HELD | {"stream": True, "prompt": [self.held] * 32}), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        self.assertEqual(answer.status, 200)
        answer.readline()
        return answer.headers["X-Worker"]

    @contextlib.contextmanager
    def two(self, servers, *options):
        ends = [f"tcp://127.0.0.1:{port}" for port in (free_ports(1), free_ports(1))]
        with Router(servers, "--peer-endpoint", ends[0], "--peers", ends[1], *options) as one, Router(servers, "--peer-endpoint", ends[1], "--peers", ends[0], *options) as two:
            self.wait(lambda: self.peer(one, "up") == 1 and self.peer(two, "up") == 1)
            yield one, two

    def test_they_do_not_herd(self):
        """What one sends counts at the other: each of six workers gets one of six, whoever sends it."""
        with mocks(6, SLOW) as servers, self.two(servers, "--policy", "dynamo") as (one, two), contextlib.ExitStack() as stack:
            taken = []
            for turn in range(6):
                here, there = (one, two) if turn % 2 == 0 else (two, one)
                taken.append(self.hold(here, stack))
                self.wait(lambda: self.peer(there, "requests_running") == turn // 2 + 1)
            self.assertEqual(len(set(taken)), 6, taken)
            self.assertEqual((self.peer(one, "ignored_total"), self.peer(two, "ignored_total")), (0, 0))
            stack.close()
            self.wait(lambda: self.peer(one, "requests_running") == 0 and self.peer(two, "requests_running") == 0)
            # one that is over counts no more, and so do those of a router that is silent
            with contextlib.ExitStack() as held:
                for _ in range(3):
                    self.hold(two, held)
                self.wait(lambda: self.peer(one, "requests_running") == 3)
                os.killpg(two.process.pid, signal.SIGSTOP)
                try:
                    self.wait(lambda: self.peer(one, "up") == 0)
                    self.assertEqual(self.peer(one, "requests_running"), 0)
                    one.must_say("is silent: what it sent counts no more")
                finally:
                    os.killpg(two.process.pid, signal.SIGCONT)
                self.wait(lambda: self.peer(one, "up") == 1)
                self.hold(two, held)  # what is sent from then on counts again
                self.wait(lambda: self.peer(one, "requests_running") >= 1)

    def test_a_router_that_stood_still(self):
        """It heard nobody while it was stopped: that is no worker's silence, nor its peer's; one that dies then is still found."""
        with mocks(3, SLOW) as servers, self.two(servers) as (one, two):
            os.killpg(two.process.pid, signal.SIGSTOP)
            time.sleep(5)
            os.killpg(two.process.pid, signal.SIGCONT)
            end = time.monotonic() + 3
            while time.monotonic() < end:
                self.assertEqual({worker["state"] for worker in two.workers()}, {"up"}, two.log)
            self.assertEqual([line for line in two.log if "does not answer" in line or "is silent" in line], [])
            os.killpg(servers[0].process.pid, signal.SIGSTOP)
            try:
                two.must_say("does not answer")
            finally:
                os.killpg(servers[0].process.pid, signal.SIGCONT)

    def test_beginnings_are_shared(self):
        """Of a prompt that nobody has told of yet the other router knows where it went."""
        with mocks(4, SLOW | {"ttft_ms_per_token": 0.05}, publish=False) as servers, self.two(servers, "--block-size", 16) as (one, two):
            prompt = [11] * 320
            first, _ = stream(one, "/v1/completions", {"prompt": prompt, "max_tokens": 1})
            self.wait(lambda: two.figure("coterie:router_index_blocks") >= 20)
            again, _ = stream(two, "/v1/completions", {"prompt": prompt + [3] * 8, "max_tokens": 1})
            self.assertEqual(again["X-Worker"], first["X-Worker"])

    def test_one_that_begins_anew(self):
        ends = [f"tcp://127.0.0.1:{port}" for port in (free_ports(1), free_ports(1))]
        with mocks(3, SLOW) as servers, Router(servers, "--peers", ends[1]) as one, contextlib.ExitStack() as held:
            for count in (2, 1):
                with Router(servers, "--peer-endpoint", ends[1]) as two:
                    self.wait(lambda: self.peer(one, "up") == 1 and self.peer(one, "requests_running") == 0)
                    for _ in range(count):
                        self.hold(two, held)
                    self.wait(lambda: self.peer(one, "requests_running") == count)
                    kill(two)
            self.wait(lambda: self.peer(one, "up") == 0 and self.peer(one, "requests_running") == 0)

    def test_itself(self):
        end = f"tcp://127.0.0.1:{free_ports(1)}"
        with mocks(1) as servers, Router(servers, "--peers", end, "--peer-endpoint", end) as router:
            router.must_say("is this router itself: it is ignored")
            self.assertEqual(self.peer(router, "up"), 0)


if __name__ == "__main__":
    unittest.main()
