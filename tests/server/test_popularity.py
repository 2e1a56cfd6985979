"""What experts are called, as who asks and who follows are told it, against each other and against what was asked of the model. pyzmq and
msgspec come from the package index; without one the test is skipped, loudly."""

import json
import os
import struct
import sys
import time
import unittest

from pypi import need

if __name__ == "__main__" and "COT_IN_VENV" not in os.environ:
    python = need("kv-events", "pyzmq==27.3.0", "msgspec==0.22.0")
    os.execve(python, [python, "-B", __file__, *sys.argv[1:]], os.environ | {"COT_IN_VENV": "1"})

from following import Follower  # noqa: E402
from kv_model import BlockRemoved, read_batch  # noqa: E402
from serving import MODEL, SECONDS, Server, free_ports, run  # noqa: E402

ASKED = {"temperature": 0, "max_tokens": 20, "ignore_eos": True}
TEXTS = ["Once upon a time there was a girl who lived in a village near the forest with her old grandmother and a dog", "def main():", "1 + 2 = 3, 4 + 5 = 9, 6 + 7 = 13"]


class PopularityFollower(Follower):
    def until(self, holds):
        end = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < end, len(self.frames)
            self.take(0.1)

    def told(self, kind):
        return [message[kind] for message in self.messages() if kind in message]


def near(a, b):
    """JSON has 9 digits of a number, a message's counts are floats."""
    return abs(a - b) <= 1e-6 * (1 + abs(b))


def cells_of(signature):
    return [struct.unpack_from("<HB", signature, at) for at in range(0, len(signature), 3)]


def popularity(server):
    status, body = server.get("/popularity")[:2]
    assert status == 200, body
    return json.loads(body)


class Popularity(unittest.TestCase):
    def test_what_is_told_and_shown(self):
        with Server("--ranks", 4) as server:
            plain = [server.complete(text, **ASKED) for text in TEXTS]
        for options in ((), ("--attention", "tp"), ("--fabric", "processes")):
            port = free_ports(1)
            endpoint = f"tcp://127.0.0.1:{port}"
            with self.subTest(options=options), Server("--ranks", 4, "--popularity-endpoint", endpoint, "--popularity-half-life", 1000, *options) as server, PopularityFollower(port) as follower:
                worker = json.loads(server.get("/worker")[1])
                self.assertEqual(worker["popularity"], {"endpoint": endpoint, "topic": "popularity", "layers": 6, "experts": 32, "cells": 192, "layers_every": 1, "top_k": 4, "every": 1})
                self.assertEqual(sum(popularity(server)["tokens"]), 0)
                while not follower.frames:  # it hears of requests that are over
                    server.complete("x", max_tokens=1)
                    if follower.socket.poll(100):
                        follower.frames.append(follower.socket.recv_multipart())
                server.complete("a b c d e f g h i j k l m n o p q r s t u v w x y z", max_tokens=1)
                follower.until(lambda: any(request[2] is not None for request in follower.told("request")))  # the first that has a block
                before = len(follower.told("request"))
                answers = [server.complete(text, **ASKED) for text in TEXTS]
                if options == ():
                    self.assertEqual([a["choices"][0]["text"] for a in answers], [a["choices"][0]["text"] for a in plain])
                follower.until(lambda: len(follower.told("request")) >= before + len(TEXTS))
                self.assert_requests(follower.told("request")[-len(TEXTS) :], answers, worker["kv_homes"])
                self.assert_counts(server, follower, worker["kv_homes"])
                numbers = [int.from_bytes(number, "big") for _, number, _ in follower.frames]
                self.assertEqual(numbers, list(range(numbers[0], numbers[0] + len(numbers))))
                self.assertEqual({topic for topic, _, _ in follower.frames}, {b"popularity"})

    def assert_requests(self, requests, answers, homes):
        for (home, epoch, block, prompt, answer), reply in zip(requests, answers):
            self.assertIn(home, range(homes))
            self.assertEqual(epoch, 0)
            self.assertEqual(block is not None, reply["usage"]["prompt_tokens"] >= 16)
            for signature, tokens in ((prompt, reply["usage"]["prompt_tokens"]), (answer, reply["usage"]["completion_tokens"] - 1)):
                cells = cells_of(signature)
                self.assertLessEqual(len(cells), 160)
                self.assertEqual(cells, sorted(cells, key=lambda cell: (-cell[1], cell[0])))
                self.assertLessEqual(sum(count for _, count in cells), tokens * 6 * 4)
                if len(cells) < 160:  # none is left out: the last token of an answer is never fed
                    self.assertEqual(sum(count for _, count in cells), tokens * 6 * 4)

    def assert_counts(self, server, follower, homes):
        """At rest the newest message of each home says what is shown; each layer has K calls of a token."""

        def newest():
            return {home: (tokens, struct.unpack(f"<{len(counts) // 4}f", counts)) for home, tokens, counts in follower.told("home")}

        def agree():
            shown, told = popularity(server), newest()
            return len(told) == homes and sum(shown["tokens"]) > 40 and all(near(told[h][0], shown["tokens"][h]) for h in told)

        follower.until(agree)
        shown = popularity(server)
        self.assertEqual(shown["layers"], list(range(6)))
        self.assertEqual((shown["half_life_tokens"], shown["half_life_seconds"]), (1000, None))
        for home, (tokens, counts) in newest().items():
            flat = [count for layer in shown["counts_of_homes"][home] for count in layer]
            self.assertEqual(len(counts), len(flat))
            for a, b in zip(counts, flat):
                self.assertTrue(near(a, b), (a, b))
            for layer in shown["counts_of_homes"][home]:
                self.assertTrue(near(sum(layer), 4 * tokens), (sum(layer), tokens))
        for layer in range(6):
            for expert in range(32):
                self.assertTrue(near(shown["counts"][layer][expert], sum(home[layer][expert] for home in shown["counts_of_homes"])))
        body = server.get("/popularity?format=safetensors")[1]
        header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
        self.assertEqual(header["__metadata__"]["format"], "coterie.popularity")
        begin, end = header["counts"]["data_offsets"]
        data = body[8 + int.from_bytes(body[:8], "little") :]
        flat = [count for layer in shown["counts"] for count in layer]
        self.assertEqual(end - begin, 8 * len(flat))
        for a, b in zip(struct.unpack(f"<{len(flat)}d", data[begin:end]), flat):
            self.assertTrue(near(a, b), (a, b))
        self.assertEqual(server.get("/popularity?format=yaml")[0], 400)

    def test_blocks_that_go_are_told(self):
        """As who follows the KV cache is told of them, in the same order, and without such followers too."""
        pages = 2 * 8 * 98304  # bytes: two sequences as long as the context
        for with_events in (True, False):
            ports = free_ports(2)
            config = json.dumps({"enable_kv_cache_events": True, "endpoint": f"tcp://127.0.0.1:{ports + 1}"})
            options = ("--kv-events-config", config) if with_events else ()
            with (
                self.subTest(with_events=with_events),
                Server("--kv-cache-memory-bytes", pages, "--popularity-endpoint", f"tcp://127.0.0.1:{ports}", *options) as server,
                PopularityFollower(ports) as follower,
                PopularityFollower(ports + 1) as cache,
            ):
                while not (follower.frames and (cache.frames or not with_events)):  # both hear
                    server.complete([1 + len(follower.frames) % 7] * 20, max_tokens=1)
                    follower.take(0.1), cache.take(0.1)
                end, asked = time.monotonic() + SECONDS, 0
                while len(follower.told("evicted")) < 40:
                    asked += 1
                    server.complete([3 + (asked * 31 + i * 7) % 900 for i in range(300)], max_tokens=1)
                    while follower.take(0.05):
                        pass
                    assert time.monotonic() < end, asked
                told = follower.told("evicted")
                self.assertEqual({home for home, _ in told}, {0})
                self.assertEqual(len({block for _, block in told}), len(told))  # each text was asked once
                if with_events:

                    def removed():
                        batches = [read_batch(payload) for _, _, payload in cache.frames]
                        return [block for batch in batches for event in batch.events if isinstance(event, BlockRemoved) for block in event.block_hashes]

                    cache.until(lambda: len(removed()) >= len(told))
                    self.assertEqual([block for _, block in told], removed()[: len(told)])

    def test_bad_options_are_refused(self):
        for options, says in (
            (("--popularity-half-life", "9", "--popularity-half-life-s", "9"), "--popularity-half-life and --popularity-half-life-s exclude one another"),
            (("--popularity-half-life", "0"), "--popularity-half-life takes an integer from 1"),
            (("--popularity-endpoint", "here"), "--popularity-endpoint is not tcp://ADDRESS:PORT"),
            (("--popularity-endpoint", "tcp://*:9000"), "--kv-events-no-auth"),
            (("--popularity-endpoint", "tcp://127.0.0.1:9000", "--step-reports-endpoint", "tcp://127.0.0.1:9000"), "port 9000"),
        ):
            with self.subTest(options=options):
                done = run("serve", MODEL, "--port", 0, *options)
                self.assertEqual(done.returncode, 2)
                self.assertIn(says, done.stderr)


if __name__ == "__main__":
    unittest.main()
