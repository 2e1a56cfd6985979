"""Mixed load and abuse for as long as COT_SOAK_SECONDS says (300), and what is left of it afterwards.

    make soak SOAK_MINUTES=30        (or SOAK_SECONDS=120)

Honest clients ask all the time, streamed or not, chats and completions, some of which leave. Beside them others do what
servers are broken with. At the end every request was answered, refused or cancelled, no page is held, and memory and
descriptors are what they were after a fifth of the time. Figures are printed as rows of docs/OPERATE.md; the exit status says
whether they hold."""

import collections
import http.client
import json
import os
import pathlib
import random
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time

import abuse
from serving import SANITIZED, Server, seed, without_huge_pages

DURATION = float(os.environ.get("COT_SOAK_SECONDS", 300))
HONEST, ABUSERS, STALLERS = 8, 4, 100
PAGES = 8 * 8 * 98304  # bytes: few enough for the cache to be full when memory is first looked at
# Medians of three looks are compared, of the first ones after the warm-up and of the last ones.
GROWTH = 0.01  # of what was resident: in five minutes with 100,000 answers, six bytes in each


class Soak:
    def __init__(self, server, chosen):
        self.server, self.seed = server, chosen
        self.over, self.lock, self.counts = threading.Event(), threading.Lock(), collections.Counter()
        self.pauses, self.failures = threading.Event(), []
        self.busy, self.looks = 0, []

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def worker(self, number, act):
        draw = random.Random(self.seed * 1000 + number)
        while not self.over.is_set():
            if self.pauses.is_set():
                time.sleep(0.01)
                continue
            with self.lock:
                self.busy += 1
            try:
                act(draw)
            except Exception as error:  # a finding, told at the end
                self.failures.append(repr(error))
            finally:
                with self.lock:
                    self.busy -= 1

    # honest clients

    def body(self, draw):
        common = {"max_tokens": draw.randrange(1, 60), "temperature": draw.choice([0, 1]), "seed": draw.getrandbits(30), "n": draw.choice([1, 1, 1, 2])}
        text = draw.choice(["Once upon a time ", "def main():\n", "Ünïcödé \U0001f600 ", "7" * 50, "\u202ex"]) * draw.randrange(1, 12)
        if draw.random() < 0.4:
            return "/v1/chat/completions", common | {"messages": [{"role": "user", "content": text[:300]}]}
        return "/v1/completions", common | {"prompt": text[:300]}

    def ask(self, draw):
        path, body = self.body(draw)
        status, _, answer = self.server.send("POST", path, body | {"stream": False})
        assert status in (200, 429), (status, answer)
        self.count("answered" if status == 200 else "refused")

    def follow(self, draw):
        path, body = self.body(draw)
        status, _, answer = self.server.send("POST", path, body | {"stream": True})
        assert status in (200, 429), (status, answer)
        assert status == 429 or answer.endswith(b"data: [DONE]\n\n"), answer[-200:]
        self.count("answered" if status == 200 else "refused")

    def leave(self, draw):
        path, body = self.body(draw)
        text = json.dumps(body | {"stream": True, "max_tokens": 250, "ignore_eos": True}).encode()
        with self.server.raw() as connection:
            connection.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(text)) + text)
            connection.settimeout(draw.random() / 5)
            try:
                connection.recv(draw.randrange(1, 3000))
            except TimeoutError:
                pass
            if draw.random() < 0.3:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.count("cancelled")

    def honest(self, draw):
        draw.choice([self.ask, self.ask, self.follow, self.follow, self.leave])(draw)

    # the others

    def abuse(self, draw):
        act = draw.choice(abuse.BRIEF)
        act(self.server, draw)
        self.count("abuse: " + act.__name__.replace("_", " "))

    def stall(self, draw):
        """A connection that says a byte of a request now and then, or nothing."""
        data = abuse.SLOW[draw.choice(list(abuse.SLOW))]
        with self.server.raw() as connection:
            connection.settimeout(1)
            try:
                connection.sendall(data[:100])
                for byte in data[100:130]:
                    if self.over.is_set() or self.pauses.is_set():
                        break
                    connection.sendall(bytes([byte]))
                    self.over.wait(1)
            except OSError:
                pass
        self.count("stalled")

    # rest

    def fill_cache(self):
        """Texts that fill the prefix cache twice over: pages without blocks are given back to the system, and how many of them
        there happen to be is not what is asked here."""
        pages, draw = json.loads(self.server.get("/live")[1])["kv"]["pages"], random.Random(self.seed)
        for _ in range(2 * pages // 3):  # of 64 tokens each, and the fourth is left to the answer
            self.server.complete([draw.randrange(256) for _ in range(200)], max_tokens=1)

    def rest(self):
        """Nobody asks for anything; what is held then."""
        self.pauses.set()
        while self.busy:
            time.sleep(0.05)
        self.server.wait_idle()
        self.fill_cache()
        time.sleep(2)  # a second after the last answer the server gives back what it does not need
        held = {"resident": self.server.resident_bytes(), "descriptors": self.server.descriptors(), "pages": self.server.metric("vllm:kv_cache_usage_perc")}
        self.pauses.clear()
        return held

    def run(self):
        acts = [self.honest] * HONEST + [self.abuse] * ABUSERS + [self.stall] * STALLERS
        threads = [threading.Thread(target=self.worker, args=item) for item in enumerate(acts)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(10):  # a look at each tenth shows whether memory still grows or has come to rest
                time.sleep(DURATION / 10)
                self.looks.append(self.rest())
        finally:
            self.over.set()
            for thread in threads:
                thread.join()
        return self.looks[1], self.looks[-1]


def judge(soak, before, after, statuses):
    """What does not hold."""
    resident = [look["resident"] for look in soak.looks]
    first, last = statistics.median(resident[1:4]), statistics.median(resident[-3:])
    wrong = [f"{len(soak.failures)} requests went wrong: {soak.failures[:5]}"] * bool(soak.failures)
    wrong += ["a page is held at rest"] * bool(before["pages"] or after["pages"])
    wrong += ["descriptors are left"] * (after["descriptors"] > before["descriptors"] + 1)
    wrong += ["memory has grown"] * (not SANITIZED and last - first > GROWTH * first)
    wrong += ["an answer was 500"] * bool(statuses.get(500))
    wrong += ["nobody was served"] * (not soak.counts.get("answered"))
    return wrong


def report(soak, statuses):
    """The rows of docs/OPERATE.md, and what they are made of."""
    looks, counts = soak.looks, soak.counts
    resident = [look["resident"] / 1e6 for look in looks]
    answered = sum(n for status, n in statuses.items() if status)
    by_status = ", ".join(f"{n:,} with {status}" for status, n in sorted(statuses.items(), key=lambda item: -item[1]) if status)
    steady = resident[1:]
    for what, measured in (
        (f"answers in {DURATION:.0f} s", f"{answered:,}: {by_status}; {statuses.get(None, 0):,} requests left or were cut before one"),
        ("requests of honest clients", f"{counts['answered']:,} answered, {counts['refused']:,} told to come again, {counts['cancelled']:,} left, {len(soak.failures)} failed"),
        ("abuses", ", ".join(f"{n:,} {what.removeprefix('abuse: ')}" for what, n in sorted(counts.items()) if what.startswith("abuse") or what == "stalled")),
        ("resident at rest, at each tenth", " ".join(f"{megabytes:.1f}" for megabytes in resident) + " MB"),
        ("of that from a fifth of the time on", f"{100 * (max(steady) - min(steady)) / statistics.median(steady):.2f} % between most and least, {100 * (steady[-1] / steady[0] - 1):+.2f} % from first to last"),
        ("descriptors at rest; part of the KV cache held at rest", f"{looks[1]['descriptors']} and {looks[-1]['descriptors']}; {looks[1]['pages']:g} and {looks[-1]['pages']:g}"),
    ):  # fmt: skip
        print(f"| {what} | {measured} |")


def main():
    chosen = seed()
    without_huge_pages()
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "access.log"
        with Server("--ranks", 2, "--max-num-seqs", 8, "--max-queue", 64, "--kv-cache-memory-bytes", PAGES, "--max-connections", 400, "--access-log", log) as server:
            soak = Soak(server, chosen)
            before, after = soak.run()
            statuses = collections.Counter(json.loads(line)["status"] for line in log.read_text().splitlines())
    wrong = judge(soak, before, after, statuses)
    report(soak, statuses)
    print("; ".join(wrong) or "fine")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
