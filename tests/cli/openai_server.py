"""A server of OpenAI's completions and chats that does what its prompts and settings say: for tests of those who ask."""

import http.server
import json
import threading
import time


class Server(http.server.ThreadingHTTPServer):
    """On a free port of 127.0.0.1. `asked` lists the bodies in the order of arrival; `most` counts requests at once, and
    none is answered before there have been `gather` of them."""

    daemon_threads = True
    request_queue_size = 1000

    def __init__(self, first=0.0, between=0.0, key=None, faults=None, fewer=0, usage=True, gather=1, workers=()):
        super().__init__(("127.0.0.1", 0), Handler)
        self.first, self.between, self.key, self.fewer, self.usage = first, between, key, fewer, usage
        self.workers = workers  # request i is told to be computed by workers[i % len(workers)]; None: by nobody
        self.faults = faults or {}  # {which request: what goes wrong}
        self.asked, self.running, self.most, self.gather = [], 0, 0, gather
        self.change = threading.Condition()
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def handle_error(self, *_):
        """A client that leaves is no matter."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        """Nothing."""

    runs = False

    def refuse(self, status, message):
        self.leave()
        body = json.dumps({"error": {"message": message, "type": "x", "param": None, "code": None}}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def allowed(self):
        key = self.server.key
        if key is None or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self.refuse(401, "a key is needed")
        return False

    def do_GET(self):
        if not self.allowed():
            return
        body = json.dumps({"object": "list", "data": [{"id": "a model", "object": "model"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def piece(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, value):
        self.piece(b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n")

    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return
        with server.change:
            number = len(server.asked)
            server.asked.append(body)
            server.running += 1
            server.most = max(server.most, server.running)
            server.change.notify_all()
            server.change.wait_for(lambda: server.most >= server.gather, timeout=60)
        self.runs = True
        try:
            self.answer(body, server.faults.get(number), number)
        finally:
            self.leave()

    def leave(self):
        """Before the last byte, behind which the client may begin anew."""
        with self.server.change:
            self.server.running -= self.runs
        self.runs = False

    def answer(self, body, fault, number):
        server = self.server
        chat = self.path == "/v1/chat/completions"
        if self.path not in ("/v1/completions", "/v1/chat/completions") or not body["stream"] or not body["ignore_eos"]:
            self.refuse(404, "no such thing")
            return
        if isinstance(fault, int):
            self.refuse(fault, f"refused with\n{fault}")
            return
        if fault == "reset":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-T")
            self.close_connection = True
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        worker = server.workers[number % len(server.workers)] if server.workers else None
        if worker is not None:
            self.send_header("X-Worker", worker)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        tokens = body["max_completion_tokens" if chat else "max_tokens"] - server.fewer
        time.sleep(server.first)
        for token in range(tokens):
            if token:
                time.sleep(server.between)
            if token == 1:
                self.piece(b": ping\n\n")
            if token == 2 and fault == "cut":
                self.close_connection = True
                return
            if token == 2 and fault == "error":
                self.event({"error": {"message": "out of order", "type": "x"}})
                self.piece(b"")
                return
            if token == 2 and fault == "garbage":
                self.event(b"{")
            if token == 2 and fault == "hang":
                time.sleep(3)
            last = token + 1 == tokens and fault != "endless"
            text = "" if token % 3 == 1 else "w "  # one event a token, whether or not its text can be shown
            said = {"delta": {"content": text}} if chat else {"text": text}
            self.event({"choices": [{"index": 0, **said, "finish_reason": "length" if last else None}], "usage": None})
        if server.usage:
            prompt = body["messages"][0]["content"].split() if chat else body["prompt"]
            self.event({"choices": [], "usage": {
                "prompt_tokens": len(prompt), "completion_tokens": tokens, "total_tokens": len(prompt) + tokens,
                "prompt_tokens_details": {"cached_tokens": len(prompt) // 2}}})
        self.event(b"[DONE]")
        self.leave()
        self.piece(b"")
