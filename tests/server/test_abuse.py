"""What servers are broken with, and what is left of it: who asks honestly meanwhile gets the text that he always got, and
afterwards nothing is held. With COT_ABUSE_SECONDS the same for longer, and until the server's own time-outs."""

import os
import random
import resource
import socket
import subprocess
import sys
import threading
import time
import unittest

import abuse
from abuse import Crowd
from serving import SANITIZED, SECONDS, Server, seed, temporary, without_huge_pages
from test_tls import Authority, SecureServer

LONG = float(os.environ.get("COT_ABUSE_SECONDS", 0))
CONNECTION = 64 << 10  # bytes that one may take
BODY = {"prompt": "Once upon a time", "max_tokens": 30, "temperature": 0}
# of the test's own: each connection of a crowd takes one
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


class Secure(SecureServer):
    """One whose crowds speak TLS too."""

    def raw(self):
        connection = super().raw()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.context.wrap_socket(connection, server_hostname="127.0.0.1")


class Honest(threading.Thread):
    """Asks until told to stop; what is not as it always was is an error."""

    def __init__(self, server):
        super().__init__()
        self.server, self.over, self.answers, self.wrong = server, threading.Event(), 0, []
        self.expected = server.complete(**BODY)["choices"][0]["text"]

    def run(self):
        while not self.over.is_set():
            try:
                text = self.server.complete(**BODY)["choices"][0]["text"]
                assert text == self.expected, text
                self.answers += 1
            except Exception as error:
                self.wrong.append(repr(error))

    def go_on(self):
        """Returns when a request that begins now is answered."""
        seen, end = self.answers, time.monotonic() + SECONDS
        while self.answers < seen + 2 and not self.wrong and time.monotonic() < end:
            time.sleep(0.001)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()


class Abuse(unittest.TestCase):
    def assert_nothing_is_held(self, server, descriptors):
        server.wait_idle()
        self.assertEqual(server.metric("vllm:kv_cache_usage_perc"), 0)
        end = time.monotonic() + 2 * SECONDS
        while server.descriptors() > descriptors and time.monotonic() < end:  # those that linger do so for seconds
            time.sleep(0.05)
        self.assertLessEqual(server.descriptors(), descriptors)

    def test_beside_honest_clients(self):
        chosen = seed()
        with Server("--ranks", 2, "--max-num-seqs", 8, "--max-queue", 1024, "--max-connections", 200) as server:
            server.complete(**BODY)
            descriptors, failures = server.descriptors(), []

            def abuser(number):
                draw, end = random.Random(chosen + number), time.monotonic() + LONG
                try:
                    for act in abuse.BRIEF[number::4]:  # each once, whatever the time
                        act(server, draw)
                    while time.monotonic() < end:
                        draw.choice(abuse.BRIEF)(server, draw)
                except Exception as error:
                    failures.append(f"{act.__name__}: {error!r}")

            with Honest(server) as honest:
                threads = [threading.Thread(target=abuser, args=(i,)) for i in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            self.assertEqual(failures, [])
            self.assertEqual(honest.wrong, [])
            self.assertGreater(honest.answers, 0)
            self.assert_nothing_is_held(server, descriptors)

    def crowd(self, server, most):
        """Idle and slow ones, half each: what a connection takes, and nobody is cut."""
        before, crowd = server.resident_bytes(), Crowd(server)
        crowd.join(most // 2, "idle")
        for kind in abuse.SLOW:
            crowd.join(most // 2 // len(abuse.SLOW), kind)
        with Honest(server) as honest:
            for _ in range(20):
                crowd.nudge()
        self.assertEqual(honest.wrong, [])
        self.assertEqual(server.metric("coterie:connections"), len(crowd.members) + 1)
        if not SANITIZED:
            print(f"{(server.resident_bytes() - before) / len(crowd.members):.0f} bytes a connection", file=sys.stderr)
            self.assertLess((server.resident_bytes() - before) / len(crowd.members), CONNECTION)
        self.assertEqual(crowd.still_there(), len(crowd.members))
        crowd.leave()

    def test_crowd(self):
        with Server() as server:
            server.complete(**BODY)
            descriptors = server.descriptors()
            self.crowd(server, 2000 if LONG else 800)
            self.assert_nothing_is_held(server, descriptors)

    def test_crowd_over_tls(self):
        with temporary() as folder:
            authority = Authority(folder)
            certificate, key = authority.certify("server")
            with Secure(authority.context(), "--ssl-certfile", certificate, "--ssl-keyfile", key) as server:
                server.complete(**BODY)
                descriptors = server.descriptors()
                self.crowd(server, 2000 if LONG else 200)
                self.assert_nothing_is_held(server, descriptors)

    def test_room_for_who_asks(self):
        """Where idle and slow ones take every place, they go and who asks is served."""
        with Server("--max-connections", 40) as server, Honest(server) as honest:
            crowd = Crowd(server)
            for round in range(3):
                for kind in ["idle", *abuse.SLOW]:
                    crowd.join(20, kind)
                    crowd.nudge()
                    honest.go_on()  # whose connection sees fewer come than there is room for
            self.assertLessEqual(server.metric("coterie:connections"), 40)
            self.assertGreaterEqual(server.metric("coterie:dropped_connections_total"), 300 - 40)
            crowd.leave()
        self.assertEqual(honest.wrong, [])
        self.assertGreater(honest.answers, 0)

    def test_handshakes_that_stall(self):
        with temporary() as folder:
            authority, draw = Authority(folder), random.Random(seed())
            certificate, key = authority.certify("server")
            with Secure(authority.context(), "--ssl-certfile", certificate, "--ssl-keyfile", key, "--max-connections", 40) as server:
                server.complete(**BODY)
                descriptors = server.descriptors()
                with Honest(server) as honest:
                    stalled = []
                    for _ in range(5):
                        stalled += [abuse.stalled_handshake(server, draw) for _ in range(20)]
                        for _ in range(6):
                            abuse.broken_records(server, draw)
                        honest.go_on()  # whose connection sees fewer come than there is room for
                self.assertEqual(honest.wrong, [])
                for connection in stalled:
                    connection.close()
                self.assert_nothing_is_held(server, descriptors)

    def test_renegotiation(self):
        """A client may not have the server compute keys over and over on one connection."""
        with temporary() as folder:
            authority = Authority(folder)
            certificate, key = authority.certify("server")
            with Secure(authority.context(), "--ssl-certfile", certificate, "--ssl-keyfile", key) as server:
                client = subprocess.Popen(["openssl", "s_client", "-tls1_2", "-connect", f"127.0.0.1:{server.port}", "-CAfile", authority.root],
                                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
                seen = ""
                while "Verify return code: 0" not in seen:
                    seen += client.stdout.readline()
                client.stdin.write("R\n")
                client.stdin.flush()
                seen, _ = client.communicate(timeout=SECONDS)
                self.assertIn("RENEGOTIATING", seen)
                self.assertIn("no renegotiation", seen)
                server.complete(**BODY)

    @unittest.skipUnless(LONG, "waits for the server's own time-outs")
    def test_time_outs(self):
        """Nobody keeps a place by saying little or nothing; who says nothing at all for less."""
        with Server() as server:
            descriptors, crowd, began = server.descriptors(), Crowd(server), time.monotonic()
            for kind in ["idle", *abuse.SLOW]:
                crowd.join(20, kind)
            while time.monotonic() - began < 70:
                crowd.nudge()
                time.sleep(1)
                if 20 < time.monotonic() - began < 25:
                    self.assertLessEqual(server.descriptors() - descriptors, 60)  # heads and silence: 10 s
                if 45 < time.monotonic() - began < 60:
                    self.assertLessEqual(server.descriptors() - descriptors, 20)  # bodies: 30 s
            time.sleep(15)
            self.assertLessEqual(server.descriptors(), descriptors)  # idle ones: 75 s
            crowd.leave()


if __name__ == "__main__":
    without_huge_pages()
    unittest.main()
