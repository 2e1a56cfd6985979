"""A router of the tests: `coterie router` before workers of the tests, each a process of its own."""

import contextlib
import http.server
import json
import os
import pathlib
import signal
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "server"))
from serving import Answering, MODEL, PROGRAM, SECONDS, Server, free_ports, mock  # noqa: E402, F401

QUICK = {"ttft_ms": 1, "tpot_ms": 2}


class Router(Server):
    """Routes until the block is left; in it, all of its workers are up."""

    def __init__(self, workers, *options, up=None, env=None):
        arguments = [word for worker in workers for word in ("--workers", worker if isinstance(worker, str) else url(worker))]
        super().__init__(env=env)
        self.model = None
        self.up = len(workers) if up is None else up
        self.command = [PROGRAM, "router", "--port", "0", *map(str, arguments), *map(str, options)]

    def __enter__(self):
        super().__enter__()
        try:
            self.wait(lambda workers: sum(w["state"] == "up" for w in workers) >= self.up)
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        return self

    def workers(self):
        return json.loads(self.send("GET", "/workers", headers=getattr(self, "key", {}))[2])["workers"]

    def wait(self, condition):
        """Until the workers are so."""
        end = time.monotonic() + SECONDS
        while not condition(workers := self.workers()):
            assert time.monotonic() < end, (workers, self.log)
            time.sleep(0.05)
        return workers

    def figure(self, name):
        for line in self.get("/metrics")[1].decode().splitlines():
            if line.startswith(name + " ") or line.startswith(name + "{"):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(name)


class RouterTest(unittest.TestCase):
    """What tests of routers ask for again and again."""

    def wait(self, condition):
        end = time.monotonic() + SECONDS
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def peer(self, router, name):
        return router.figure(f"coterie:router_peer_{name}")


def url(server):
    return f"http://127.0.0.1:{server.port}"


@contextlib.contextmanager
def mocks(count, spec=QUICK, publish=True):
    """So many workers that compute nothing, each a process that may be killed."""
    with contextlib.ExitStack() as stack:
        servers = []
        for _ in range(count):
            options = []
            if publish:
                first = free_ports(3 * spec.get("ranks", 1))
                ranks = spec.get("ranks", 1)
                events = {"enable_kv_cache_events": True, "endpoint": f"tcp://127.0.0.1:{first}", "replay_endpoint": f"tcp://127.0.0.1:{first + ranks}"}
                options = ["--kv-events-config", json.dumps(events), "--step-reports-endpoint", f"tcp://127.0.0.1:{first + 2 * ranks}"]
            servers.append(stack.enter_context(mock(spec, *options)))
        yield servers


def engine():
    """A worker that computes, and publishes all that a router follows."""
    port = free_ports(4)
    events = {"enable_kv_cache_events": True, "endpoint": f"tcp://127.0.0.1:{port}", "replay_endpoint": f"tcp://127.0.0.1:{port + 1}"}
    return Server("--kv-events-config", json.dumps(events), "--step-reports-endpoint", f"tcp://127.0.0.1:{port + 2}", "--popularity-endpoint", f"tcp://127.0.0.1:{port + 3}")


def kill(server, number=signal.SIGKILL):
    """Whoever serves dies at once, and that is no failure of the test."""
    os.killpg(server.process.pid, number)
    if number == signal.SIGKILL:
        server.status = -signal.SIGKILL


def serves(servers, name):
    """The server that a worker's name in an answer stands for."""
    return next(s for s in servers if name == f"127.0.0.1:{s.port}")


def stream(router, path, body, on_event=None):
    """(headers, data of the events) of a stream; `on_event` is called with the headers and how many have come."""
    with contextlib.closing(router.connect()) as connection:
        connection.request("POST", path, json.dumps(body | {"stream": True}), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, (answer.status, answer.read())
        events = []
        for line in answer:
            if not line.startswith(b"data: "):
                assert line in (b"\n", b": ping\n"), line
                continue
            events.append(line[6:-1].decode())
            if on_event:
                on_event(answer.headers, len(events))
        return answer.headers, events


def contents(events):
    """Of each choice: its text, its ids where they are told, and how it ended."""
    found = {}
    for event in events:
        if event == "[DONE]":
            continue
        for choice in json.loads(event)["choices"]:
            entry = found.setdefault(choice["index"], {"text": "", "ids": [], "finish": None})
            assert entry["finish"] is None, "a finished choice is told again"
            entry["text"] += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            entry["ids"] += choice.get("token_ids", [])
            entry["finish"] = choice["finish_reason"]
    return found


class Engine(Answering):
    """An engine of the tests: answers what it is told to, and keeps what it was sent."""

    def __init__(self, answer, model="other", document=None):
        """`document`: what /worker says; None: it has none."""
        self.heads, self.bodies = heads, bodies = [], []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                if self.path == "/worker" and not document:
                    self.send_error(404)
                    return
                body = json.dumps(document).encode() if self.path == "/worker" else json.dumps({"data": [{"id": model}]}).encode() if self.path == "/v1/models" else b""
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/tokenize":
                    self.send_error(404)
                    return
                heads.append(self.headers)
                bodies.append(body)
                answer(self)

            def log_message(self, *arguments):
                pass

        super().__init__(Handler)
        self.server.bodies = bodies
