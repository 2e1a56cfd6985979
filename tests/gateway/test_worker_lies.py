"""Workers that lie of what their requests call, or tell of caches that the router does not look at: that is ignored and counted, by name. pyzmq and
msgspec come from the package index; without one the test is skipped, loudly."""

import json
import os
import pathlib
import struct
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "server"))
from pypi import need  # noqa: E402

if __name__ == "__main__" and "COT_IN_VENV" not in os.environ:
    python = need("kv-events", "pyzmq==27.3.0", "msgspec==0.22.0")
    os.execve(python, [python, "-B", __file__, *sys.argv[1:]], os.environ | {"COT_IN_VENV": "1"})

import msgspec  # noqa: E402
from routing import SECONDS, Engine, Router, free_ports, url  # noqa: E402
import zmq  # noqa: E402

BLOCK, LAYERS, EXPERTS = 16, 2, 5
PROMPT = [3 + i for i in range(2 * BLOCK)]
ANOTHER = [400 + i for i in range(2 * BLOCK)]


def answer(handler):
    body = json.dumps({"id": "x", "object": "text_completion", "choices": [{"index": 0, "text": "a", "finish_reason": "length"}]}).encode()
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def signature(*cells):
    return b"".join(struct.pack("<HB", cell, count) for cell, count in cells)


GOOD = signature((7, 64), (0, 32))
OTHER = signature((3, 64), (1, 32))  # as many calls in all


class Liar(Engine):
    """An engine of the tests that publishes what it is told to."""

    def __init__(self, context, **document):
        self.sockets, self.number = {}, {}
        ends = {}
        for topic in ("popularity", "kv", "steps"):
            self.sockets[topic] = context.socket(zmq.PUB)
            self.number[topic] = 0
            ends[topic] = f"tcp://127.0.0.1:{self.sockets[topic].bind_to_random_port('tcp://127.0.0.1')}"
        popularity = {"endpoint": ends["popularity"], "topic": "popularity", "layers": LAYERS, "experts": EXPERTS, "cells": LAYERS * EXPERTS, "layers_every": 1}
        said = {"models": ["other"], "fingerprint": "f", "block_size": BLOCK, "model_hash": "h", "kv_homes": 1, "popularity": popularity,
                "kv_events": {"endpoints": [ends["kv"]], "topic": "kv"},
                "step_reports": {"endpoint": ends["steps"], "topic": "steps"}}
        super().__init__(answer, document=said | document)

    @property
    def name(self):
        return f"127.0.0.1:{self.port}"

    def publish(self, topic, message):
        payload = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
        self.sockets[topic].send_multipart([topic.encode(), self.number[topic].to_bytes(8, "big"), payload])
        self.number[topic] += 1

    def tell(self, block, prompt=GOOD, reply=b""):
        self.publish("popularity", {"request": [0, 0, block, prompt, reply]})

    def step(self, requests, experts):
        """Of which a distinct expert took 1 us."""
        self.publish("steps", {"tokens": requests, "prompt_tokens": 0, "observed_ns": 50000 + 2000 * requests + 1000 * experts, "ranks": [{"distinct_experts": experts}]})

    def store(self, names, ids, size, group=0):
        stored = {"type": "BlockStored", "block_hashes": names, "parent_block_hash": None, "token_ids": ids, "block_size": size, "group_idx": group}
        self.publish("kv", [time.time(), [stored]])


class Lies(unittest.TestCase):
    def setUp(self):
        self.context = zmq.Context()
        self.addCleanup(self.context.destroy, linger=0)

    def wait(self, condition, again=lambda: None):
        """What is published before the router has subscribed is lost."""
        end = time.monotonic() + SECONDS
        while not condition():
            self.assertLess(time.monotonic(), end)
            again()
            time.sleep(0.05)

    def of(self, router, worker, name):
        for line in router.get("/metrics")[1].decode().splitlines():
            if line.startswith(f'coterie:router_worker_{name}{{worker="{worker.name}"}} '):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(name)

    def blocks_of(self, prompt, router, end):
        """What the router calls the prompt's blocks, as it tells its peers; its worker is taken to hold them then."""
        socket = self.context.socket(zmq.SUB)
        socket.connect(end)
        socket.subscribe("router")

        def heard():
            while socket.poll(0):
                message = msgspec.msgpack.decode(socket.recv_multipart()[2])
                if message[0] == "assigned":
                    return [key for (key,) in struct.iter_unpack("<Q", message[-1])]
            return None

        found = None
        deadline = time.monotonic() + SECONDS
        while not found:
            self.assertLess(time.monotonic(), deadline)
            self.assertEqual(router.send("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1})[0], 200)
            time.sleep(0.05)
            found = heard()
        self.assertEqual(len(found), 2)
        return found

    def test_signatures(self):
        end = f"tcp://127.0.0.1:{free_ports(1)}"
        with Liar(self.context) as worker, Liar(self.context, model_hash="i") as stranger, Router([url(worker)], "--peer-endpoint", end) as router:
            known = self.blocks_of(PROMPT, router, end)[-1]
            # the stranger comes second: signatures are of the first one's model
            self.assertEqual(router.send("POST", "/workers", {"url": url(stranger)})[0], 200)
            self.wait(lambda: sum(w["state"] == "up" for w in router.workers()) == 2)
            self.wait(lambda: self.of(router, worker, "signatures_total") > 0, lambda: worker.tell(known))
            self.wait(lambda: self.of(router, stranger, "signatures_total") > 0, lambda: stranger.tell(known))
            stranger.publish("popularity", {"home": [0, 4.0, bytes(4)]})  # what it tells of its homes is no signature
            time.sleep(0.5)  # what is on its way comes
            self.assertEqual(router.figure("coterie:router_signature_blocks"), 2)
            self.assertEqual(self.of(router, worker, "ignored_signatures_total"), 0)
            self.assertEqual(self.of(router, stranger, "ignored_signatures_total"), self.of(router, stranger, "signatures_total"))
            router.must_say(f"worker '{stranger.name}': its signatures are of another model than the others'")
            lies = [
                lambda: worker.tell(known, signature((7, 128))),  # more than a cell can count
                lambda: worker.tell(known, signature((7, 255), (0, 128))),
                lambda: worker.tell(known, GOOD, signature((7, 128))),
                lambda: worker.tell(known, signature((7, 0))),
                lambda: worker.tell(known, signature((LAYERS * EXPERTS, 5))),  # of no layer
                lambda: worker.tell(known, signature((7, 5), (7, 5))),
                lambda: worker.tell(known, signature((7, 5), (0, 6))),
                lambda: worker.tell(known, GOOD[:-1]),
                lambda: worker.tell(known, signature(*((i, 9) for i in range(161)))),
                lambda: worker.tell(known ^ 1),  # a block that nobody holds
                lambda: worker.tell(0),
                lambda: worker.tell(-1),
                lambda: worker.tell("x"),
                lambda: worker.tell(known, "x"),
                lambda: worker.publish("popularity", {"request": [0, 0, known, GOOD]}),
                lambda: worker.publish("popularity", {"request": {}}),
                lambda: worker.publish("popularity", {"home": [0, 4.0, bytes(4)]}),  # counts of other layers
                lambda: worker.publish("popularity", {"home": [1, 4.0, bytes(4 * LAYERS * EXPERTS)]}),  # a home that it has not
                lambda: worker.publish("popularity", []),
                lambda: worker.publish("popularity", b"\xdf\xff\xff\xff\xff"),
                lambda: worker.publish("popularity", b""),
            ]
            for count, lie in enumerate(lies, 1):
                lie()
                self.wait(lambda: self.of(router, worker, "ignored_signatures_total") >= count)
                self.assertEqual(self.of(router, worker, "ignored_signatures_total"), count)
            self.assertEqual(router.figure("coterie:router_signature_blocks"), 2)
            # what is not lied of counts still: what is called at a home, without a word of those that cannot be
            counts = struct.pack(f"<{LAYERS * EXPERTS}f", 4, -1, float("nan"), float("inf"), *range(LAYERS * EXPERTS - 4))
            worker.publish("popularity", {"home": [0, 4.0, counts]})
            self.wait(lambda: json.loads(router.get("/experts")[1])["workers"][0]["shares"][0].startswith("ff00"))
            [heat] = json.loads(router.get("/experts")[1])["workers"]  # the stranger has none
            self.assertEqual((heat["worker"], heat["shares"]), (worker.name, ["ff0000ff00", "4080bfffff"]))
            self.assertEqual(self.of(router, worker, "ignored_signatures_total"), len(lies))
            self.assertEqual(router.send("POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 1})[0], 200)

    def test_what_peers_send_is_foretold(self):
        """Experts of what another router sends are known as those of a router's own requests; and what is usual is what workers told."""
        end, beside = (f"tcp://127.0.0.1:{free_ports(1)}" for _ in range(2))
        peer = self.context.socket(zmq.PUB)
        peer.bind(beside)
        told = 0

        def tell(*message):
            nonlocal told
            peer.send_multipart([b"router", told.to_bytes(8, "big"), msgspec.msgpack.encode(message)])
            told += 1

        with Liar(self.context) as one, Liar(self.context) as two, Router([url(one), url(two)], "--peer-endpoint", end, "--peers", beside) as router:
            keys, others = (self.blocks_of(prompt, router, end) for prompt in (PROMPT, ANOTHER))

            def experts():
                """What the prompt's experts cost at both, in us, to a whole one."""
                self.assertEqual(router.send("POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 100})[0], 200)
                decision = json.loads(router.get("/decisions")[1])["decisions"][0]
                return [round(next(t["experts_ns"] for t in decision["targets"] if t["worker"] == w.name) / 1000) for w in (one, two)]

            def teach():
                for k in range(60):
                    one.step(1 + k % 4, 5 + (7 * k) % 11)
                one.tell(keys[-1])
                one.tell(others[-1], OTHER)

            self.wait(lambda: router.workers()[0]["targets"][0]["step_ns"] != 100000 and self.of(router, one, "signatures_total") > 0, teach)
            # it calls as much as what is usual: where nothing runs it costs the same
            self.wait(lambda: experts() == [0, 0])

            def alive(*ids):
                tell("alive", 7, BLOCK, "other", b"".join(i.to_bytes(8, "little") for i in ids))
                return router.figure("coterie:router_peer_up") == 1

            self.wait(alive)
            tell("assigned", 1, url(two), 0, 2 * BLOCK, 0, 50, struct.pack("<2Q", *keys))
            self.wait(lambda: router.figure("coterie:router_peer_requests_running") == 1)
            here, there = experts()  # what runs at the second calls what it calls
            self.assertEqual(here, 0)
            self.assertLess(there, -20)

    def test_groups_of_other_sizes(self):
        with Liar(self.context) as worker, Router([url(worker)]) as router:

            def target():
                return router.workers()[0]["targets"][0]

            names = iter(range(1, 1 << 30))
            self.wait(lambda: target()["stored"] == 1, lambda: worker.store([next(names)], PROMPT[:BLOCK], BLOCK))
            wrong = target()["wrong_size"]
            worker.store([next(names)], PROMPT, 2 * BLOCK, group=3)
            worker.store([next(names)], PROMPT, 2 * BLOCK, group=0)
            worker.store([next(names), next(names)], PROMPT[:BLOCK], BLOCK // 2, group=3)
            self.wait(lambda: target()["wrong_size"] == wrong + 4)
            for group in (0, 3):
                router.must_say(f"worker '{worker.name}', rank 0: group {group} of its layers has blocks of another size than {BLOCK} tokens")
            time.sleep(1.5)  # a tick more
            self.assertEqual(sum("has blocks of another size" in line for line in router.log), 2)
            self.assertEqual(target()["stored"], 1)


if __name__ == "__main__":
    unittest.main()
