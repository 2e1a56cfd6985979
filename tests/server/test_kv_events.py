"""Events of the KV cache as their subscribers get them. pyzmq and msgspec come from the package index; without one the test is
skipped, loudly."""

import json
import os
import pathlib
import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from pypi import need

if __name__ == "__main__" and "COT_IN_VENV" not in os.environ:
    python = need("kv-events", "pyzmq==27.3.0", "msgspec==0.22.0")
    os.execve(python, [python, "-B", __file__, *sys.argv[1:]], os.environ | {"COT_IN_VENV": "1"})

import zmq  # noqa: E402
from kv_model import Cache, read_batch, read_snapshot  # noqa: E402
from serving import MODEL, SECONDS, Server, free_ports, run, seed  # noqa: E402
from test_families import FAMILIES, model_of  # noqa: E402

HISTORIES = int(os.environ.get("COT_KV_HISTORIES", 150))
END = (-1).to_bytes(8, "big", signed=True)
PAGES = 4 * 8 * 98304  # bytes: four sequences as long as the context


class Histories(unittest.TestCase):
    """Streams of random histories, replayed, against what the caches held."""

    def records(self, chosen):
        command = [os.environ["COT_KV_PROGRAM"], str(chosen), str(HISTORIES), str(free_ports(2))]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            while head := process.stdout.read(5):
                kind, count = struct.unpack("<cI", head)
                yield kind.decode(), process.stdout.read(count)
        self.assertEqual(process.returncode, 0)

    @staticmethod
    def truth(body):
        """The texts of each rank's blocks."""
        texts, at = {}, 0
        while at < len(body):
            home, salt, ids, kept = struct.unpack_from("<4i", body, at)
            at += 16 + salt + 4 * ids
            text = body[at - 4 * ids - salt : at - 4 * ids].decode(), struct.unpack_from(f"<{ids}i", body, at - 4 * ids)
            texts.setdefault(home, []).append((*text, bool(kept)))
        return {home: sorted(held) for home, held in texts.items()}

    def test_replayed_streams_are_the_cache(self):
        draw = random.Random(chosen := seed())
        batches, snapshots, cleared, removed, joined, kept = {}, 0, 0, 0, 0, 0
        followers, truth = [], None  # of one engine; a follower: {rank: (its cache, the number of the last batch in it)}
        for kind, body in self.records(chosen):
            if kind == "B":
                number, batch = int.from_bytes(body[:8], "little"), read_batch(body[8:])
                rank = batch.data_parallel_rank
                self.assertEqual(number, len(batches.setdefault(rank, [])))
                batches[rank].append(batch)
                cleared += any(type(e).__name__ == "AllBlocksCleared" for e in batch.events)
                removed += any(type(e).__name__ == "BlockRemoved" for e in batch.events)
            elif kind == "T":
                truth = self.truth(body)
            elif kind == "S":
                snapshots += 1
                taken = {}
                for part in read_snapshot(body).ranks:
                    rank = part.data_parallel_rank
                    self.assertEqual(part.seq, len(batches.get(rank, [])) - 1)
                    cache = Cache()
                    cache.apply(part.batch)
                    kept += len(cache.states)
                    self.assertEqual(cache.held(), truth.get(rank, []))
                    taken[rank] = [cache, part.seq]
                self.assertEqual({rank for rank in truth} - set(taken), set())
                if not followers:  # one that was there from the first batch on
                    followers.append({rank: [Cache(), -1] for rank in taken})
                for follower in followers:
                    for rank, state in follower.items():
                        for batch in batches.get(rank, [])[state[1] + 1 : taken[rank][1] + 1]:
                            state[0].apply(batch)
                        state[1] = taken[rank][1]
                        self.assertEqual(state[0].held(), truth.get(rank, []))
                if draw.random() < 0.05:  # one that joins late
                    followers.append(taken)
                    joined += 1
            else:
                batches, followers = {}, []
        print(f"{snapshots} snapshots, {joined} joined late, {cleared} batches after a loss, {removed} with evictions, {kept} states", file=sys.stderr)
        self.assertTrue(snapshots > HISTORIES / 4 and joined and removed > HISTORIES / 8)
        self.assertTrue(kept or HISTORIES < 1000)  # by chance all engines of a few hundred have keys alone
        self.assertTrue(cleared or HISTORIES < 2000)  # by chance a few hundred have none


class Follower:
    """A subscriber of all ranks of a server; `lossy`: batches get lost on the way to it."""

    def __init__(self, first, replay, ranks, lossy=None, topic="kv"):
        self.context, self.lossy = zmq.Context(), lossy
        self.replay_ports = [replay + rank for rank in range(ranks)]
        self.sockets, self.state = [], [[Cache(), -1] for _ in range(ranks)]
        self.held_back = [{} for _ in range(ranks)]
        for rank in range(ranks):
            sub = self.context.socket(zmq.SUB)
            sub.subscribe(topic.encode())
            sub.connect(f"tcp://127.0.0.1:{first + rank}")
            self.sockets.append(sub)
        self.topic, self.lost = topic.encode(), 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.destroy(linger=0)

    def begin_with(self, server):
        status, body = server.get("/kv_events/snapshot")
        assert status == 200, body
        for part in read_snapshot(body).ranks:
            cache = Cache()
            cache.apply(part.batch)
            self.state[part.data_parallel_rank] = [cache, part.seq]
        return self

    def replay(self, rank, first):
        """Numbers and payloads of all that is kept from a number on."""
        dealer = self.context.socket(zmq.DEALER)
        dealer.connect(f"tcp://127.0.0.1:{self.replay_ports[rank]}")
        dealer.send_multipart([b"", first.to_bytes(8, "big")])
        while dealer.poll(1000 * SECONDS):
            empty, topic, number, payload = dealer.recv_multipart()
            assert empty == b""
            if number == END:
                assert topic == payload == b""
                dealer.close(linger=0)
                return
            assert topic == self.topic
            yield int.from_bytes(number, "big"), payload
        raise AssertionError("the replay does not end")

    def take(self, rank, number, payload):
        cache, last = self.state[rank]
        if number <= last:
            return
        assert number == last + 1, "a gap"
        batch = read_batch(payload)
        assert batch.data_parallel_rank == rank and abs(batch.ts - time.time()) < 3600
        cache.apply(batch)
        self.state[rank][1] = number

    def follow(self, upto):
        """Until every rank's batches up to these numbers are applied, gaps filled by replays."""
        end = time.monotonic() + SECONDS
        for rank, sub in enumerate(self.sockets):
            while self.state[rank][1] < upto[rank]:
                assert time.monotonic() < end, "batches do not come"
                if not sub.poll(100):  # what was lost last is seen by the snapshot's number alone
                    for number, payload in self.replay(rank, self.state[rank][1] + 1):
                        self.take(rank, number, payload)
                    continue
                topic, number, payload = sub.recv_multipart()
                assert topic == self.topic
                if self.lossy and self.lossy.random() < 0.3:
                    self.lost += 1
                    continue
                number = int.from_bytes(number, "big")
                if number > self.state[rank][1] + 1:
                    for other, replayed in self.replay(rank, self.state[rank][1] + 1):
                        self.take(rank, other, replayed)
                self.take(rank, number, payload)

    def held(self):
        return [cache.held() for cache, _ in self.state]


def config(first, replay=None, **more):
    given = {"enable_kv_cache_events": True, "endpoint": f"tcp://127.0.0.1:{first}", "topic": "kv"} | more
    return json.dumps(given | ({"replay_endpoint": f"tcp://127.0.0.1:{replay}"} if replay else {}))


class Live(unittest.TestCase):
    """A server, its sockets, and clients that ask at once."""

    def ask(self, server, draw):
        def one(number):
            lot = random.Random(number)
            text = lot.choice(["Once upon a time ", "def main():\n", "The capital of "]) * lot.randrange(1, 20)
            body = {"prompt": text[:300], "max_tokens": lot.randrange(1, 60), "seed": number, "temperature": 1}
            if lot.random() < 0.3:
                body["cache_salt"] = lot.choice(["a", "ä" * 700])
            assert server.post("/v1/completions", body)[0] == 200

        threads = [threading.Thread(target=one, args=(draw.getrandbits(30),)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def reaches_the_same(self, ranks, *options, homes=None, model=MODEL, **more):
        draw, server_ranks, ranks = random.Random(seed()), ranks, homes or ranks
        first = free_ports(2 * ranks)
        replay = first + ranks
        with Server("--ranks", server_ranks, "--kv-cache-memory-bytes", PAGES, "--kv-events-config", config(first, replay, **more), *options, model=model) as server:
            with Follower(first, replay, ranks) as early, Follower(first, replay, ranks, lossy=draw) as lossy:
                for history in range(3):
                    self.ask(server, draw)
                    with Follower(first, replay, ranks) as late:
                        late.begin_with(server)
                        upto = [number for _, number in late.state]
                        early.follow(upto)
                        lossy.follow(upto)
                        self.assertEqual(early.held(), late.held())
                        self.assertEqual(lossy.held(), late.held())
                        if history == 2:  # from here on by snapshot and what comes behind it
                            self.ask(server, draw)
                            with Follower(first, replay, ranks) as later:
                                upto = [number for _, number in later.begin_with(server).state]
                                late.follow(upto)
                                self.assertEqual(late.held(), later.held())
                self.assertGreater(lossy.lost, 0)
            self.assertTrue(any(held for held in early.held()))
            self.assertEqual(any(kept for held in early.held() for _, _, kept in held), model != MODEL)
            return server.metric("coterie:kv_event_batches_total"), server.metric("coterie:kv_event_losses_total")

    def test_followers_agree(self):
        batches, losses = self.reaches_the_same(2)
        self.assertGreater(batches, 10)
        self.assertEqual(losses, 0)

    def test_followers_agree_of_one_cache_for_all_ranks(self):
        self.reaches_the_same(2, "--attention", "tp", homes=1)

    def test_followers_agree_of_states(self):
        """Where layers have a state in place of keys."""
        if not FAMILIES.is_dir():
            self.skipTest(f"there is no '{FAMILIES}'")
        with tempfile.TemporaryDirectory() as folder:
            model = model_of(FAMILIES / "qwen3-next", pathlib.Path(folder))
            self.reaches_the_same(2, "--attention", "dp", "--state-snapshots", 5, model=model)

    def test_a_short_queue_is_made_good(self):
        batches, losses = self.reaches_the_same(2, "--block-size", 1, max_queue_size=1)
        self.assertGreater(losses, 0)

    def test_only_what_is_kept_is_sent_again(self):
        first = free_ports(2)
        with Server("--kv-events-config", config(first, first + 1, buffer_steps=3)) as server, Follower(first, first + 1, 1) as follower:
            for number in range(6):
                server.complete(f"{number} " * 40, max_tokens=1)
            _, last = follower.begin_with(server).state[0]
            numbers = [number for number, _ in follower.replay(0, 0)]
            self.assertEqual(numbers, list(range(last - 2, last + 1)))
            self.assertEqual(list(follower.replay(0, last + 1)), [])
            self.assertEqual(list(follower.replay(0, 2**64 - 1)), [])

    def test_requests_that_are_none(self):
        """What is no request is not answered, and harms nobody."""
        first = free_ports(2)
        draw = random.Random(seed())
        with Server("--kv-events-config", config(first, first + 1)) as server, Follower(first, first + 1, 1) as follower:
            server.complete("x" * 200, max_tokens=1)
            for _ in range(200):
                dealer = follower.context.socket(zmq.DEALER)
                dealer.connect(f"tcp://127.0.0.1:{first + 1}")
                frames = [draw.randbytes(draw.choice([0, 1, 7, 9, 8, 300])) for _ in range(draw.randrange(1, 12))]
                if len(frames) == 2 and not frames[0]:
                    frames.append(b"")
                dealer.send_multipart(frames)
                dealer.close(linger=100)
            for _ in range(20):  # other protocols
                with socket.create_connection(("127.0.0.1", first + draw.randrange(2))) as other:
                    other.sendall(draw.choice([b"GET / HTTP/1.1\r\n\r\n", draw.randbytes(200)]))
            silent = [follower.context.socket(zmq.DEALER) for _ in range(40)]  # they ask and never read
            for dealer in silent:
                dealer.setsockopt(zmq.RCVHWM, 1)
                dealer.connect(f"tcp://127.0.0.1:{first + 1}")
                dealer.send_multipart([b"", (0).to_bytes(8, "big")])
            self.assertTrue(list(follower.replay(0, 0)))
            self.assertEqual(server.get("/health")[0], 200)

    def test_what_is_refused(self):
        port = free_ports(6)
        for given, says, *options in [
            ("{", "no JSON object"),
            ("[]", "no JSON object"),
            ('{"enable_kv_cache_events": 1}', "'enable_kv_cache_events'"),
            ('{"endpont": "x"}', "there is no 'endpont'"),
            ('{"publisher": "nats"}', "'publisher'"),
            ('{"endpoint": "ipc:///tmp/x"}', "'endpoint'"),
            ('{"endpoint": "tcp://host.example:1"}', "'endpoint'"),
            ('{"endpoint": "tcp://127.0.0.1:0"}', "'endpoint'"),
            ('{"endpoint": "tcp://127.0.0.1:65536"}', "'endpoint'"),
            ('{"buffer_steps": 0}', "'buffer_steps'"),
            ('{"topic": 7}', "'topic'"),
            (config(port, port + 1), "too near", "--ranks", "2"),
            (config(port, endpoint=f"tcp://*:{port}"), "--kv-events-no-auth"),
            (config(port, endpoint=f"tcp://0.0.0.0:{port}"), "--kv-events-no-auth"),
            (config(port, endpoint=f"tcp://[::]:{port}"), "--kv-events-no-auth"),
            (config(65535), "no port for rank 1", "--ranks", "2"),
            (config(port), "without a prefix cache", "--no-enable-prefix-caching"),
        ]:
            result = run("serve", MODEL, "--port", 0, "--kv-events-config", given, *options)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), (given, result))
            self.assertIn(says, result.stderr)
        taken = socket.create_server(("127.0.0.1", port))
        with taken:
            result = run("serve", MODEL, "--port", 0, "--kv-events-config", config(port))
            self.assertEqual(result.returncode, 1)
            self.assertIn(f"cannot listen on 'tcp://127.0.0.1:{port}'", result.stderr)
        result = run("serve", MODEL, "--port", port, "--kv-events-config", config(port))
        self.assertIn("the server's own port", result.stderr)

    def test_who_may_ask(self):
        port = free_ports(1)
        with Server() as server:
            self.assertEqual(server.get("/kv_events/snapshot")[0], 404)
        with Server("--api-key", "k", "--kv-events-config", config(port)) as server:
            self.assertEqual(server.get("/kv_events/snapshot")[0], 401)
            status, headers, _ = server.send("GET", "/kv_events/snapshot", headers={"Authorization": "Bearer k"})
            self.assertEqual((status, headers["Content-Type"]), (200, "application/msgpack"))
        with Server("--host", "0.0.0.0", "--no-auth", "--kv-events-config", config(port)) as server:
            self.assertEqual(server.get("/kv_events/snapshot")[0], 403)
        with Server("--host", "0.0.0.0", "--no-auth", "--kv-events-no-auth", "--kv-events-config", config(port, endpoint=f"tcp://*:{port}")) as server:
            self.assertEqual(server.get("/kv_events/snapshot")[0], 200)

    def test_many_snapshots_at_once(self):
        port = free_ports(1)
        with Server("--kv-events-config", config(port)) as server:
            server.complete("x" * 200, max_tokens=1)
            answers = []
            threads = [threading.Thread(target=lambda: answers.append(server.get("/kv_events/snapshot"))) for _ in range(30)]
            for thread in threads:
                thread.start()
            for _ in range(30):  # and some who leave at once
                with server.raw() as connection:
                    connection.sendall(b"GET /kv_events/snapshot HTTP/1.1\r\nHost: localhost\r\n\r\n")
            for thread in threads:
                thread.join()
            self.assertEqual([status for status, _ in answers], [200] * 30)
            self.assertEqual(len({read_snapshot(body).ranks[0].seq for _, body in answers}), 1)


if __name__ == "__main__":
    unittest.main()
