"""What a server is worth after a long day: thousands of clients that leave at any moment, and more requests than it can
carry. What is counted at the end is what was lost on the way."""

import concurrent.futures
import json
import random
import socket
import struct
import threading
import time
import unittest

from serving import SANITIZED, SECONDS, Server, run, seed, without_huge_pages

CANCELS, CLIENTS = 10_000, 16
PAGES = 4 * 8 * 98304  # bytes: four sequences as long as the context, 64 tokens a page
WORDS = ["Once upon a time", "def main():", "x", "A farmer has 12 hens.", "The capital of France is"]


class Leaver:
    """A client that asks and leaves, at a moment and in a way that are drawn."""

    def __init__(self, server, number):
        self.server, self.draw = server, random.Random(number)

    def request(self):
        """A short prompt or one that takes several steps to feed; many tokens, so that none ends by itself."""
        draw = self.draw
        prompt = draw.choice(WORDS) * draw.choice([1, 1, 4, 40])
        body = {"stream": draw.random() < 0.6, "n": draw.choice([1, 1, 1, 2, 3]), "max_tokens": 250, "ignore_eos": True}
        if draw.random() < 0.3:
            path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": prompt[:400]}]
        else:
            path, body["prompt"] = "/v1/completions", prompt[:400]
        if draw.random() < 0.05:  # one that goes by the lane of long bodies
            body["user"] = "u" * 40_000
        body = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    def leave(self):
        """Before the request is whole, at once behind it, or after some of the answer's bytes."""
        draw, request = self.draw, self.request()
        with self.server.raw() as connection:
            moment = draw.choice(["asking", "asked", "asked", "waiting", "reading", "reading"])
            if moment == "asking":
                connection.sendall(request[: draw.randrange(len(request))])
            else:
                connection.sendall(request)
            if moment == "waiting":  # it may be queued, fed or answered
                connection.settimeout(draw.random() * 0.02)
                self.read(connection, 1)
            if moment == "reading":
                connection.settimeout(0.02 + draw.random() * 0.08)
                self.read(connection, draw.randint(1, 6000))
            connection.settimeout(SECONDS)
            way = draw.choice(["close", "close", "reset", "half"])
            if way == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if way == "half":
                connection.shutdown(socket.SHUT_WR)
                self.read(connection, 1 << 30)  # until the server ends it too

    @staticmethod
    def read(connection, count):
        try:
            while count > 0 and (piece := connection.recv(65536)):
                count -= len(piece)
        except (TimeoutError, ConnectionResetError):
            pass


class Endurance(unittest.TestCase):
    def leave_often(self, server, first, count):
        def work(numbers):
            for number in numbers:
                Leaver(server, number).leave()

        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(work, [range(first + i, first + count, CLIENTS) for i in range(CLIENTS)]))
        server.wait_idle()

    def test_ten_thousand_cancels(self):
        """No page, no slot, no descriptor and no memory is lost, and texts are what they were."""
        first = seed() << 20
        whole = {"prompt": WORDS, "temperature": 0, "max_tokens": 40}
        full = {"prompt": [[7] * 256, [8] * 256, [9] * 256, [10] * 256], "max_tokens": 256, "ignore_eos": True, "temperature": 0}
        # four sequences at a time, and pages for no more than these: what is lost is missed at once
        with Server("--ranks", 2, "--max-num-seqs", 4, "--max-num-batched-tokens", 64, "--max-queue", 64, "--kv-cache-memory-bytes", PAGES) as server:
            expected = [choice["text"] for choice in server.complete(**whole)["choices"]]
            self.leave_often(server, first, CANCELS // 4)  # what is kept for the next requests has its size then
            descriptors, resident = server.descriptors(), server.resident_bytes()
            self.leave_often(server, first + CANCELS // 4, CANCELS - CANCELS // 4)
            self.assertGreater(server.metric("vllm:request_success_total", finished_reason="abort"), CANCELS / 4)
            self.assertEqual(server.metric("vllm:kv_cache_usage_perc"), 0)
            self.assertEqual(server.metric("vllm:num_requests_waiting"), 0)
            self.assertLessEqual(server.descriptors(), descriptors + 2)
            if not SANITIZED:
                self.assertLess(server.resident_bytes() - resident, 32 << 20)
            self.assertEqual([choice["text"] for choice in server.complete(**whole)["choices"]], expected)
            preempted = server.metric("vllm:num_preemptions_total")
            self.assertEqual(server.complete(**full)["usage"]["completion_tokens"], 4 * 256)  # every slot, every page
            self.assertEqual(server.metric("vllm:num_preemptions_total"), preempted)

    def test_twice_what_it_can_carry(self):
        """Who comes is served to the end or told to come again, and nobody hangs."""
        body = {"prompt": "x", "max_tokens": 60, "ignore_eos": True}
        draw = random.Random(seed())
        with Server("--max-num-seqs", 4, "--max-queue", 4) as server:
            # a server's capacity is what as many clients as it has slots get out of it
            closed = run("bench", "serve", f"http://127.0.0.1:{server.port}", "--json", "-n", 80, "-c", 4, "--output-tokens", 60)
            self.assertEqual(closed.returncode, 0, closed.stderr)
            rate = 2 * json.loads(closed.stdout)["requests_per_second"]
            for _ in range(6):  # a machine that was busy while it was measured can do more now
                answers, threads = [], []
                for _ in range(300):
                    threads.append(threading.Thread(target=lambda: answers.append(server.send("POST", "/v1/completions", body))))
                    threads[-1].start()
                    time.sleep(draw.expovariate(rate))
                for thread in threads:
                    thread.join(4 * SECONDS)
                self.assertEqual(len(answers), 300)  # each has its answer
                statuses = [status for status, _, _ in answers]
                self.assertEqual(set(statuses) - {200, 429}, set())
                for status, headers, answer in answers:
                    if status == 200:
                        self.assertEqual(json.loads(answer)["usage"]["completion_tokens"], 60)
                    else:
                        self.assertTrue(0 < int(headers["Retry-After"]) <= 60)
                        self.assertEqual(json.loads(answer)["error"]["code"], "queue_full")
                server.wait_idle()
                if statuses.count(429):
                    break
                rate *= 2
            self.assertGreater(statuses.count(429), 0)
            self.assertGreater(statuses.count(200), 0)
            self.assertEqual(server.metric("vllm:kv_cache_usage_perc"), 0)


if __name__ == "__main__":
    without_huge_pages()
    unittest.main()
