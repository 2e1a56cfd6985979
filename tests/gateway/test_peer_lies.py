"""A router's peers that lie or disagree: what they tell is ignored and counted. pyzmq and msgspec come from the package index; without one
the test is skipped, loudly."""

import json
import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "server"))
from pypi import need  # noqa: E402

if __name__ == "__main__" and "COT_IN_VENV" not in os.environ:
    python = need("kv-events", "pyzmq==27.3.0", "msgspec==0.22.0")
    os.execve(python, [python, "-B", __file__, *sys.argv[1:]], os.environ | {"COT_IN_VENV": "1"})

import msgspec  # noqa: E402
from routing import Engine, Router, RouterTest, mocks, stream, url  # noqa: E402
import zmq  # noqa: E402

SLOW = {"ttft_ms": 1, "tpot_ms": 20}


class Liar:
    """A peer of the tests: tells what it is told to."""

    def __init__(self):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.PUB)
        self.socket.sndhwm = 0  # nothing is dropped
        self.endpoint = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"
        self.number = 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.context.destroy(linger=0)

    def tell(self, *message, number=None):
        self.number = self.number if number is None else number
        payload = message[0] if isinstance(message[0], bytes) else msgspec.msgpack.encode(message)
        self.socket.send_multipart([b"router", self.number.to_bytes(8, "big"), payload])
        self.number += 1

    def alive(self, *ids, router=7, block_tokens=16, model="mock"):
        self.tell("alive", router, block_tokens, model, b"".join(i.to_bytes(8, "little") for i in ids))

    def assigned(self, number, worker, rank=0, tokens=32, cached=0, most=8, keys=b""):
        self.tell("assigned", number, worker, rank, tokens, cached, most, keys)


class Lies(RouterTest):
    def test_lies(self):
        """What cannot be right is ignored and counted, and told by name once."""
        with mocks(2, SLOW) as servers, Liar() as liar, Router(servers, "--peers", liar.endpoint) as router:
            worker = url(servers[0])

            def hear():
                liar.alive()
                return self.peer(router, "up") == 1

            self.wait(hear)
            liar.assigned(1, worker)
            self.wait(lambda: self.peer(router, "requests_running") == 1)
            known = self.peer(router, "ignored_total")
            self.assertEqual(known, 0)
            lies = [
                lambda: liar.assigned(1, worker),  # twice
                lambda: liar.assigned(2, worker, rank=1),
                lambda: liar.assigned(3, "http://127.0.0.1:1"),
                lambda: liar.assigned(4, worker, tokens=0),
                lambda: liar.assigned(5, worker, tokens=32, cached=32),
                lambda: liar.assigned(6, worker, tokens=1 << 40),
                lambda: liar.assigned(7, worker, most=1 << 40),
                lambda: liar.assigned(8, worker, keys=bytes(24)),  # three blocks of 16 in 32 tokens
                lambda: liar.assigned(9, worker, keys=bytes(7)),
                lambda: liar.assigned(-1, worker),
                lambda: liar.assigned((1 << 64) - 1, "http://127.0.0.1:1"),  # behind which smaller numbers come again
                lambda: liar.tell("ended", 1, 8 * 1024 + 1),
                lambda: liar.tell("assigned", 10, worker),
                lambda: liar.tell("sung", 10),
                lambda: liar.tell(b"\xc1"),
                lambda: liar.tell(b"\xdd\xff\xff\xff\xff"),
                lambda: liar.tell(b""),
                lambda: liar.tell({}),
                lambda: liar.tell("alive", 7, 16, "mock", bytes(4)),
            ]
            for count, lie in enumerate(lies, 1):
                lie()
                self.wait(lambda: self.peer(router, "ignored_total") == count)
            self.assertEqual(self.peer(router, "requests_running"), 0)  # the one that ended ended
            self.assertEqual(sum(f"peer '{liar.endpoint}' tells of a request twice" in line for line in router.log), 1)
            # beginnings and ends of what was not counted are nothing to complain of
            for message in (("began", 99), ("ended", 99, 3)):
                liar.tell(*message)
            liar.assigned(20, worker, tokens=1 << 29)

            def queues():
                stream(router, "/v1/completions", {"prompt": [4] * 32, "max_tokens": 1})
                return {target["worker"]: target["queue_ns"] for target in json.loads(router.get("/decisions")[1])["decisions"][0]["targets"]}

            self.wait(lambda: self.peer(router, "requests_running") == 1)
            self.assertEqual([waits > 0 for waits in (queues()[f"127.0.0.1:{server.port}"] for server in servers)], [True, False])
            liar.tell("began", 20)
            self.wait(lambda: not any(queues().values()))
            liar.tell("ended", 20, 1)
            liar.assigned(22, worker, tokens=1 << 30, cached=(1 << 30) - 1)  # what is cached is not waited for
            self.wait(lambda: self.peer(router, "requests_running") == 1)
            self.wait(lambda: not any(queues().values()))
            liar.tell("ended", 22, 1)
            self.wait(lambda: self.peer(router, "requests_running") == 0)
            liar.assigned(24, worker)
            liar.tell("began", 20)
            self.wait(lambda: self.peer(router, "requests_running") == 1)
            liar.assigned(25, worker)
            liar.alive(25)  # the end of the other was lost
            self.wait(lambda: self.peer(router, "requests_running") == 1)
            liar.tell("ended", 25, 4)
            self.wait(lambda: self.peer(router, "requests_running") == 0)
            self.assertEqual(self.peer(router, "ignored_total"), len(lies))
            # who disagrees is not heard at all, until it does
            for change, said in (({"block_tokens": 32}, "has blocks of another size"), ({"model": "other"}, "routes to workers of another model")):
                liar.alive()
                liar.assigned(liar.number + 100, worker)
                self.wait(lambda: self.peer(router, "requests_running") == 1)

                def unheard():  # though it is not silent
                    liar.alive(**change)
                    return self.peer(router, "up") == 0

                self.wait(unheard)
                self.assertEqual(self.peer(router, "requests_running"), 0)
                router.must_say(said)
                liar.assigned(liar.number + 100, worker)
                ignored = self.peer(router, "ignored_total")
                liar.tell(b"")
                self.wait(lambda: self.peer(router, "ignored_total") > ignored)
                self.assertEqual(self.peer(router, "requests_running"), 0)
                liar.alive()
                self.wait(lambda: self.peer(router, "up") == 1)
                self.assertEqual(self.peer(router, "requests_running"), 0)
            ignored, liar.number = self.peer(router, "ignored_total"), 0
            liar.assigned(1, worker)  # numbers begin anew: another router's, which has not said what it is

            def unknown():
                liar.tell("began", 99)
                return self.peer(router, "up") == 0

            self.wait(unknown)
            self.assertEqual((self.peer(router, "ignored_total"), self.peer(router, "requests_running")), (ignored, 0))
            stream(router, "/v1/completions", {"prompt": [1] * 32, "max_tokens": 2})

    def test_another_router_at_the_same_address(self):
        """Its requests are others, though its messages are numbered on and it names the same ids."""
        with mocks(1, SLOW) as servers, Liar() as liar, Router(servers, "--peers", liar.endpoint) as router:

            def hear():
                liar.alive()
                return self.peer(router, "up") == 1

            self.wait(hear)
            liar.assigned(5, url(servers[0]))
            self.wait(lambda: self.peer(router, "requests_running") == 1)
            liar.alive(5, router=8)
            self.wait(lambda: self.peer(router, "requests_running") == 0)
            self.assertEqual(self.peer(router, "up"), 1)
            liar.assigned(1, url(servers[0]))  # ids begin anew
            self.wait(lambda: self.peer(router, "requests_running") == 1)
            self.assertEqual(self.peer(router, "ignored_total"), 0)

    def test_one_router_at_two_addresses(self):
        """It counts once, and the address where it is not heard is named."""
        with mocks(1, SLOW) as servers, Liar() as liar:
            ends = (liar.endpoint, liar.endpoint.replace("127.0.0.1", "localhost"))
            with Router(servers, "--peers", ",".join(ends)) as router:

                def figures(name):
                    lines = router.get("/metrics")[1].decode().splitlines()
                    return {end: float(line.rsplit(" ", 1)[1]) for end in ends for line in lines if line.startswith(f'coterie:router_peer_{name}{{peer="{end}"}}')}

                def heard():  # at the one, and the other was ignored
                    liar.alive()
                    return sum(figures("up").values()) == 1 and any(figures("ignored_total").values())

                self.wait(heard)
                liar.assigned(1, url(servers[0]))
                self.wait(lambda: sum(figures("requests_running").values()) == 1)
                up, ignored, running = figures("up"), figures("ignored_total"), figures("requests_running")
                for end in ends:
                    self.assertEqual((running[end], ignored[end] > 0), (up[end], up[end] == 0))
                router.must_say(f"peer '{min(up, key=up.get)}' is a router that is heard at another address: it is ignored")

    def test_more_blocks_than_a_second_has_time_for(self):
        """They are assumed to be nowhere; the requests themselves count, and the next ones' blocks do again."""
        each, number = 1024, 0
        with mocks(1, SLOW) as servers, Liar() as liar, Router(servers, "--peers", liar.endpoint) as router:

            def hear():
                liar.alive()
                return self.peer(router, "up") == 1

            def flood(count):
                nonlocal number
                for _ in range(count):
                    number += 1
                    keys = b"".join((number * each + i).to_bytes(8, "little") for i in range(each))
                    liar.assigned(number, url(servers[0]), tokens=16 * each + 1, keys=keys)

            self.wait(hear)
            flood(8)
            self.wait(lambda: router.figure("coterie:router_index_blocks") == 8 * each)
            self.assertEqual(self.peer(router, "ignored_total"), 0)
            flood(2100)  # of which a second takes 1,024
            self.wait(lambda: self.peer(router, "requests_running") == number)
            self.assertGreater(self.peer(router, "ignored_total"), 0)
            self.assertLess(router.figure("coterie:router_index_blocks"), number * each)
            router.must_say("tells of more blocks than a second has time for")

            def taken_again():
                before = router.figure("coterie:router_index_blocks")
                flood(1)
                self.wait(lambda: self.peer(router, "requests_running") == number)
                return router.figure("coterie:router_index_blocks") == before + each

            self.wait(taken_again)

    def test_what_peers_send_tries_no_worker(self):
        """The one request that tries a worker whose breaker was open is the router's own: how a peer's went is not told."""
        is_broken = True

        def answer(handler):
            handler.close_connection = True
            if not is_broken:
                handler.send_response(200)
                handler.send_header("Content-Length", "2")
                handler.end_headers()
                handler.wfile.write(b"{}")

        with Engine(answer) as engine, Liar() as liar, Router([url(engine)], "--peers", liar.endpoint) as router:

            def ask():
                return router.send("POST", "/v1/completions", {"prompt": "x"})[0]

            def is_open():
                return router.workers()[0]["targets"][0]["breaker_open"]

            def hear():
                liar.alive(model="")
                return self.peer(router, "up") == 1

            self.wait(lambda: ask() != 200 and is_open())
            is_broken = False
            self.wait(lambda: not is_open() and router.workers()[0]["state"] == "up")
            self.wait(hear)
            liar.assigned(1, url(engine))
            self.wait(lambda: self.peer(router, "requests_running") == 1)
            self.assertFalse(is_open())
            self.assertEqual(ask(), 200)


if __name__ == "__main__":
    unittest.main()
