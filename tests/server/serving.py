"""A server of the tests: `coterie serve` on a port of its own, and requests to it."""

import contextlib
import copy
import ctypes
import http.client
import http.server
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

SOURCE = pathlib.Path(os.environ["COT_SOURCE"])
PROGRAM = os.environ["COT_PROGRAM"]
MODEL = SOURCE / "models" / "tiny"
SANITIZED = any(mark in pathlib.Path(PROGRAM).read_bytes() for mark in (b"__asan_init", b"__tsan_init"))
SECONDS = 120 if SANITIZED else 30  # beside other tests
GREEDY = {"temperature": 0, "max_tokens": 12}
PROMPTS = [
    "Question: What is 2 + 3?",
    "Once upon a time",
    "def main():",
    "The capital of France is",
    "A farmer has 12 hens.",
    "x",
]


def without_huge_pages():
    """Programs that are started from here on get none, of which the system makes more or fewer as it likes: what is resident is
    then what was touched."""
    PR_SET_THP_DISABLE = 41
    if ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0:
        raise AssertionError("huge pages cannot be turned off")


class Server:
    """Serves until the block is left, then ends on SIGTERM with status 0."""

    def __init__(self, *options, model=MODEL, status=0, env=None, name="tiny", stdout=None):
        self.command = [PROGRAM, "serve", *([str(model)] if model else []), "--port", "0", *(["--served-model-name", name] if name else []), *map(str, options)]
        self.status, self.env, self.model, self.stdout = status, env, name, stdout

    def __enter__(self):
        env = {k: v for k, v in os.environ.items() if k != "COTERIE_API_KEY"} | (self.env or {})
        # in a group of its own, as a shell starts it: tests may signal all of its processes at once
        self.process = subprocess.Popen(self.command, stdout=self.stdout, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True)
        self.log = []
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(r"https?://(\S+):(\d+)/v1", line)
            if found:
                self.host, self.port = found[1].strip("[]"), int(found[2])
                break
        else:
            raise AssertionError(f"no server: {self.log}")
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr))
        self.reader.start()
        return self

    def __exit__(self, kind, error, trace):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError("the server does not end") from error
        finally:
            self.reader.join()
            self.process.stderr.close()
        if not kind:
            assert self.process.returncode == self.status, (self.process.returncode, self.log)

    def must_say(self, text):
        """Until it has told so: its lines are read on a thread."""
        end = time.monotonic() + SECONDS
        while not any(text in line for line in self.log):
            assert time.monotonic() < end, (text, self.log)
            time.sleep(0.01)

    def worker(self, index):
        """Of a mock: the server of another of its workers."""
        other = copy.copy(self)
        other.port += index
        return other

    def connect(self):
        return http.client.HTTPConnection(self.host, self.port, timeout=SECONDS)

    def send(self, method, path, body=None, headers=None):
        """(status, headers, bytes) of one exchange on a connection of its own."""
        with contextlib.closing(self.connect()) as connection:
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
            given = {"Content-Type": "application/json"} if body is not None else {}
            connection.request(method, path, body, given | (headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def get(self, path, **headers):
        status, _, body = self.send("GET", path, headers=headers)
        return status, body

    def post(self, path, body, **headers):
        """(status, JSON) of one exchange."""
        status, _, answer = self.send("POST", path, body, headers)
        return status, json.loads(answer)

    def complete(self, prompt, **fields):
        status, answer = self.post("/v1/completions", {"model": self.model, "prompt": prompt} | fields)
        assert status == 200, (status, answer)
        return answer

    def events(self, path, body):
        """The data of a stream's events, the JSON ones parsed, [DONE] as it is."""
        status, headers, answer = self.send("POST", path, body | {"stream": True})
        assert status == 200, (status, answer)
        assert headers["Content-Type"].startswith("text/event-stream"), headers
        parts = [part for part in answer.decode().split("\n\n") if part and not part.startswith(":")]
        assert all(part.startswith("data: ") for part in parts), parts
        return [part[6:] if part == "data: [DONE]" else json.loads(part[6:]) for part in parts]

    def metric(self, name, **labels):
        total = 0.0
        for line in self.get("/metrics")[1].decode().splitlines():
            if line.startswith(name + "{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def raw(self):
        return socket.create_connection((self.host, self.port), timeout=SECONDS)

    def cpu_ticks(self):
        """Processor time that the loop's thread, and the whole process, have used."""
        pid = self.process.pid
        stats = (pathlib.Path(f"/proc/{pid}/{of}stat").read_text().rsplit(")", 1)[1].split() for of in (f"task/{pid}/", ""))
        return [int(stat[11]) + int(stat[12]) for stat in stats]

    def resident_bytes(self):
        return int(pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    def peak_bytes(self):
        """The most that was resident at any time."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])

    def in_background(self, body):
        """A completion under way, or over by now: its thread, and a list that will hold (status, JSON)."""
        result = []
        thread = threading.Thread(target=lambda: result.append(self.post("/v1/completions", body)))
        thread.start()
        while thread.is_alive() and not self.metric("vllm:num_requests_running"):
            time.sleep(0.001)
        return thread, result

    @contextlib.contextmanager
    def slowed(self):
        """Runs about one part of twenty of the time, so that what is under way can be looked at, however fast the model is."""
        over = threading.Event()

        def stop_and_go():
            while not over.wait(0.002):
                self.process.send_signal(signal.SIGSTOP)
                time.sleep(0.04)
                self.process.send_signal(signal.SIGCONT)

        thread = threading.Thread(target=stop_and_go)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def tell_to_end(self, number=signal.SIGTERM):
        """The signal, and it is heard."""
        self.process.send_signal(number)
        end = time.monotonic() + SECONDS
        while not any("shutting down" in line for line in self.log):
            assert time.monotonic() < end, f"the server does not say that it ends: {self.log}"
            time.sleep(0.001)

    def wait_idle(self):
        """Until no sequence runs or waits."""
        end = time.monotonic() + 2 * SECONDS
        while self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting"):
            assert time.monotonic() < end, "requests do not end"
            time.sleep(0.01)

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


GIVEN = set()  # ports that were handed out: whoever asked may not listen yet


def free_ports(count):
    """The first of so many consecutive ports that nobody has."""
    while True:
        first = random.randrange(20000, 32000)
        ports = range(first, first + count)
        if not GIVEN.isdisjoint(ports):
            continue
        try:
            for port in ports:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        GIVEN.update(ports)
        return first


@contextlib.contextmanager
def mock(spec, *options, model=None, status=0):
    """Workers that compute nothing (docs/SERVING.md); the first one's server."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(spec, file)
        file.flush()
        port = free_ports(spec.get("workers", 1))
        with Server("--mock", file.name, "--port", port, *options, model=model, status=status, name="mock") as server:
            yield server


class Answering:
    """An HTTP server of the tests, on a thread: it answers as `handler` does, at `port`."""

    def __init__(self, handler):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.port = self.server.server_address[1]

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Peer(Answering):
    """A server that answers every POST with the same stream of events; `bodies` holds what it was sent."""

    def __init__(self, *events):
        self.bodies = bodies = []
        stream = "".join(f"data: {event}\n\n" for event in events).encode()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer("application/json", b'{"data": [{"id": "peer"}]}')

            def do_POST(self):
                bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.answer("text/event-stream", stream)

            def answer(self, kind, body):
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        super().__init__(Handler)


class Shared(unittest.TestCase):
    """Tests of one server, which each leaves as it was."""

    options = ()  # further ones
    model = MODEL

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--ranks", 2, "--max-num-seqs", 8, "--max-num-batched-tokens", 64, *cls.options, model=cls.model).__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__(None, None, None)


class Constrained(Shared):
    """The same with answers that have a form, which take a library that may be missing: then the tests are skipped, loudly."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        status, answer = cls.server.post("/v1/completions", {"prompt": "x", "regex": "a", "max_tokens": 3})
        if status != 200:
            print("SKIPPED:", answer["error"]["message"], file=sys.stderr)
            super().tearDownClass()
            raise unittest.SkipTest("no llguidance")


def run(*arguments, **more):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=SECONDS, **more)


def temporary():
    return tempfile.TemporaryDirectory(prefix="coterie-server-")


@contextlib.contextmanager
def model_without(*names):
    """A folder like the model's, in which some files are missing."""
    with temporary() as folder:
        for file in MODEL.iterdir():
            if file.name not in names:
                (pathlib.Path(folder) / file.name).symlink_to(file)
        yield folder


@contextlib.contextmanager
def model_with_tokens(*names):
    """A folder like the model's, whose last tokens are added ones of these names."""
    with model_without("tokenizer.json") as folder:
        tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
        model, added = tokenizer["model"], tokenizer["added_tokens"]
        first = len(model["vocab"]) - len(names)
        model["vocab"] = {text: id for text, id in model["vocab"].items() if id < first}
        model["merges"] = model["merges"][: -len(names)]  # each makes the next token
        added += [added[0] | {"id": first + i, "content": name, "special": False} for i, name in enumerate(names)]
        (pathlib.Path(folder) / "tokenizer.json").write_text(json.dumps(tokenizer))
        yield folder


def texts(answer):
    return [c["text"] for c in sorted(answer["choices"], key=lambda c: c["index"])]


def seed():
    """The seed of this run's random draws: COT_SEED, or a fresh one. It is printed."""
    chosen = int(os.environ.get("COT_SEED") or int.from_bytes(os.urandom(4), "little"))
    print(f"seed {chosen} (COT_SEED={chosen} repeats it)", file=sys.stderr)
    return chosen
