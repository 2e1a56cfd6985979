"""What `coterie serve` refuses, and what it does with requests that weigh much."""

import contextlib
import json
import re
import signal
import socket
import ssl
import time
import unittest

from serving import MODEL, SANITIZED, SECONDS, Server, Shared, run, texts


class Refusals(Shared):
    """On a server that is left as it was."""

    def test_refused(self):
        chat = {"messages": [{"role": "user", "content": "hi"}]}
        deep = b'{"prompt":"x","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        table = [
            (400, b"", "empty"),
            (400, b"{", "JSON"),
            (400, b"[1]", "object"),
            (400, b'"x"', "object"),
            (400, b'{"prompt":"\xff"}', "UTF-8"),
            (400, b'{"prompt":"\\ud800"}', "ud800"),
            (400, b'{"prompt":"a","stop":["b\\u0000c"]}', "U+0000, which no text is searched for"),
            (400, b'{"prompt":"a","model":"tiny\\u0000"}', "'model' has the character U+0000"),
            (400, b'{"prompt":"a","x\\u0000y":1}', "U+0000"),
            (400, {"prompt": "x", "stop_token_ids": [-1]}, "token 0 is -1, ids are 0 or more"),
            (400, b'{"prompt":"a","prompt":"b"}', "duplicate"),
            (400, b'{"prompt":"a","temperature":1e400}', "cannot be taken: line 1, column 33: a number beyond 64 bits"),
            (400, b'{"prompt":"a","seed":99999999999999999999}', "a number beyond 64 bits"),
            (400, deep, "deeper"),
            (400, {}, "prompt"),
            (400, {"prompt": None}, "prompt"),
            (400, {"prompt": ""}, "no tokens"),
            (400, {"prompt": []}, "empty"),
            (400, {"prompt": [[]]}, "no tokens"),
            (400, {"prompt": {}}, "object"),
            (400, {"prompt": [1, "x"]}, "token id"),
            (400, {"prompt": ["x", 1]}, "whole number"),
            (400, {"prompt": [4096]}, "vocabulary"),
            (400, {"prompt": [-1]}, "vocabulary"),
            (400, {"prompt": [1.5]}, "number"),
            (400, {"prompt": [1] * 512, "max_tokens": 1}, "512"),
            (400, {"prompt": "x", "max_tokens": 512}, "512"),
            (400, {"prompt": "x", "max_tokens": -1}, "max_tokens"),
            (400, {"prompt": "x", "n": -1}, "'n'"),
            (400, {"prompt": "x", "n": 0}, "'n'"),
            (400, {"prompt": "x", "n": 1.5}, "'n'"),
            (400, {"prompt": "x", "n": "1"}, "'n'"),
            (400, {"prompt": "x", "n": 10**6}, "'n'"),
            (400, {"prompt": ["x"] * 2000}, "choices"),
            (400, {"prompt": "x", "temperature": -0.1}, "temperature"),
            (400, {"prompt": "x", "temperature": "hot"}, "temperature"),
            (400, {"prompt": "x", "top_p": 0}, "top_p"),
            (400, {"prompt": "x", "top_p": 1.1}, "top_p"),
            (400, {"prompt": "x", "top_k": -2}, "top_k"),
            (400, {"prompt": "x", "presence_penalty": 3}, "presence_penalty"),
            (400, {"prompt": "x", "stop": ["s"] * 10_000}, "stop"),
            (400, {"prompt": "x", "stop": [""]}, "empty"),
            (400, {"prompt": "x", "stop": 5}, "stop"),
            (400, {"prompt": "x", "stop": "s" * 5000}, "stop"),
            (400, {"prompt": "x", "logprobs": 21}, "logprobs"),
            (400, {"prompt": "x", "logit_bias": {"x": 1}}, "token id"),
            (400, {"prompt": "x", "logit_bias": {"4096": 1}}, "token id"),
            *((400, {"prompt": "x", "logit_bias": {key: 1}}, "token id") for key in (" 5", "+5", "05", "5 ", "-0", "", "5.0", "0x5", "9" * 10, "9" * 30)),
            (400, {"prompt": "x", "logit_bias": {"1": 101}}, "101"),
            (400, {"prompt": "x", "logit_bias": {str(i): 1 for i in range(2000)}}, "2000"),
            (400, {"prompt": "x", "min_tokens": 20, "max_tokens": 5}, "min_tokens"),
            (400, {"prompt": "x", "stream_options": {"include_usage": True}}, "stream"),
            (400, {"prompt": "x", "continue_token_ids": [[1], [2]]}, "continue_token_ids"),
            (400, {"prompt": "x", "continue_token_ids": [[1] * 20], "max_tokens": 5}, "continue_token_ids"),
            (404, {"prompt": "x", "model": "other"}, "other"),
        ]
        refused = ["best_of", "suffix", "use_beam_search", "structural_tag", "tools", "tool_choice", "functions", "prompt_embeds",
                   "guided_whitespace_pattern", "allowed_token_ids", "bad_words", "prompt_logprobs"]  # fmt: skip
        table += [(400, {"prompt": "x", name: ["y"]}, name) for name in refused]
        for status, body, word in table:
            with self.subTest(body=str(body)[:60]):
                got, answer = self.server.post("/v1/completions", body)
                self.assertEqual(got, status, answer)
                self.assertIn(word, answer["error"]["message"])
                self.assertEqual(set(answer["error"]), {"message", "type", "param", "code"})
                self.assertIsInstance(answer["error"]["code"], str)
        for status, body, word in [
            (400, {}, "messages"),
            (400, {"messages": []}, "empty"),
            (400, {"messages": "hi"}, "list"),
            (400, {"messages": [5]}, "object"),
            (400, {"messages": [{"content": "x"}]}, "messages[0] has no 'role'"),
            (400, {"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": 5}]}, "'content' of messages[1]"),
            (400, {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages[0] has a part"),
            (400, {"messages": [{"role": "user\0", "content": "x"}]}, "messages[0] has a role with the character U+0000"),
            (400, {"messages": [{"role": "user", "content": [{"type": "text\0", "text": "x"}]}]}, "not supported"),
            (400, {"messages": [{"role": "user"}]}, "content"),
            (400, {"messages": [{"role": "user", "content": 5}]}, "content"),
            (400, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "image_url"),
            (400, chat | {"top_logprobs": 2}, "logprobs"),
            (400, chat | {"max_tokens": 0}, "max_tokens"),
            (400, chat | {"add_generation_prompt": True, "continue_final_message": True}, "exclude"),
            (400, chat | {"echo": True}, "echo"),
        ]:
            with self.subTest(body=str(body)[:60]):
                got, answer = self.server.post("/v1/chat/completions", body)
                self.assertEqual(got, status, answer)
                self.assertIn(word, answer["error"]["message"])

    def exchange(self, *pieces, half=False):
        """All that is answered to these bytes until the server ends the connection."""
        with contextlib.closing(self.server.raw()) as connection:
            answered = b""
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                for piece in pieces:
                    connection.sendall(piece)
                if half:
                    connection.shutdown(socket.SHUT_WR)
                while piece := connection.recv(65536):
                    answered += piece
            return answered

    def test_odd_connections(self):
        """Bodies that are shorter or longer than they say, requests in a row, half a close, TLS: as each has earned."""
        def request(body, length=None, more=""):
            return (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{more}"
                    f"Content-Length: {len(body) if length is None else length}\r\n\r\n").encode() + body  # fmt: skip

        def statuses(answered):
            return [int(status) for status in re.findall(rb"(?:^|\n|})HTTP/1.1 (\d+) ", answered)]

        body = json.dumps({"prompt": "x", "max_tokens": 2}).encode()
        last = request(body, more="Connection: close\r\n")
        self.assertEqual(statuses(self.exchange(last)), [200])
        self.assertEqual(statuses(self.exchange(request(body) + request(body), last)), [200, 200, 200])
        ended = self.server.metric("vllm:request_success_total")
        self.assertEqual(self.exchange(request(body, len(body) + 5), half=True), b"")  # the rest never comes
        self.assertEqual(self.server.metric("vllm:request_success_total"), ended)
        self.assertEqual(statuses(self.exchange(request(body + b"more\r\n\r\n", len(body)))), [200, 400])  # no request begins so
        self.assertEqual(self.exchange(request(json.dumps({"prompt": "x", "max_tokens": 400, "ignore_eos": True}).encode()), half=True), b"")
        self.server.wait_idle()
        with contextlib.closing(self.server.raw()) as connection, self.assertRaises(ssl.SSLError):
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.wrap_socket(connection)
        self.assertEqual(len(texts(self.server.complete("x", max_tokens=2))), 1)

    def test_client_that_never_reads(self):
        """It is cut when too much waits for it, and its sequences end; others are served meanwhile."""
        aborted = self.server.metric("vllm:request_success_total", finished_reason="abort")
        body = json.dumps({"prompt": "x", "max_tokens": 500, "ignore_eos": True, "n": 16, "stream": True, "logprobs": 20}).encode()
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # the system keeps less for it
        connection.connect((self.server.host, self.server.port))
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        self.assertEqual(len(texts(self.server.complete("x", max_tokens=2))), 1)
        self.server.wait_idle()
        self.assertGreater(self.server.metric("vllm:request_success_total", finished_reason="abort"), aborted)
        connection.close()

    def test_too_long_says_both(self):
        _, answer = self.server.post("/v1/completions", {"prompt": [1] * 500, "max_tokens": 20})
        self.assertEqual(answer["error"]["code"], "context_length_exceeded")
        self.assertIn("512", answer["error"]["message"])
        self.assertIn("520", answer["error"]["message"])
        answer = self.server.complete([1] * 600, max_tokens=5, truncate_prompt_tokens=7)
        self.assertEqual(answer["usage"]["prompt_tokens"], 7)
        answer = self.server.complete([1] * 600, max_tokens=5, truncate_prompt_tokens=-1)  # as many as fit
        self.assertEqual(answer["usage"]["prompt_tokens"], 507)

    def test_shorter_context(self):
        """What a sequence may have at most is what memory has to hold, though the model's context is longer."""
        page, body = 98304, {"prompt": list(range(1, 101)), "ignore_eos": True, "return_token_ids": True, "temperature": 0}
        expected = self.server.complete(**body, max_tokens=50)["choices"][0]["token_ids"]
        for kind in ("--memory", "--kv-cache-memory-bytes"):
            with Server(kind, 3 * page, "--max-model-len", 150) as server:
                self.assertEqual(json.loads(server.get("/v1/models")[1])["data"][0]["max_model_len"], 150)
                self.assertEqual(server.complete(**body, max_tokens=50)["choices"][0]["token_ids"], expected)
                self.assertEqual(server.complete(**body)["usage"]["completion_tokens"], 16)
                self.assertEqual(server.complete(**body | {"prompt": [1] * 149}, max_tokens=1)["usage"]["total_tokens"], 150)
                for more in {"max_tokens": 51}, {"prompt": [1] * 151}, {"prompt": "hello " * 200}:
                    status, answer = server.post("/v1/completions", body | more)
                    self.assertEqual((status, answer["error"]["code"]), (400, "context_length_exceeded"), more)
                    self.assertIn("this model's context is 150 tokens", answer["error"]["message"])
            done = run("serve", MODEL, "--port", 0, kind, 3 * page - 1, "--max-model-len", 150)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
            self.assertIn("the max model length of 150 tokens needs 3", done.stderr)
        for most, status in (513, 2), (-1, 2), (2**30 + 1, 2):
            done = run("serve", MODEL, "--port", 0, "--max-model-len", most)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (status, "", 1), done.stderr)

    def test_methods_and_types(self):
        for method, path, status in [("GET", "/v1/completions", 405), ("POST", "/health", 405), ("GET", "/v1", 404),
                                     ("DELETE", "/v1/models", 405), ("GET", "/v1/models/../../etc/passwd", 404)]:  # fmt: skip
            self.assertEqual(self.server.send(method, path)[0], status, (method, path))
        self.assertIn(b"/v1/chat/completions", self.server.get("/chat/completions")[1])  # what was meant
        status, _, body = self.server.send("POST", "/v1/completions", b'{"prompt":"x"}', {"Content-Type": "text/plain"})
        self.assertEqual((status, json.loads(body)["error"]["param"]), (415, "Content-Type"))

    def test_names_of_hosts(self):
        for host, status in [("evil.example", 403), ("localhost", 200), ("127.0.0.1:80", 200), ("[::1]:5", 200), ("localhost.evil.example", 403)]:
            self.assertEqual(self.server.send("GET", "/v1/models", headers={"Host": host})[0], status, host)
        self.assertIn(b"proxy_set_header Host $http_host", self.server.send("GET", "/v1/models", headers={"Host": "coterie_backend"})[2])
        _, headers, _ = self.server.send("GET", "/v1/models", headers={"Origin": "http://evil.example"})
        self.assertIsNone(headers["Access-Control-Allow-Origin"])


class Weight(unittest.TestCase):
    """What is long, deep or slow to read, on a server each."""

    def ask_for_long_work(self, server, count=1):
        """Connections on which many seconds of tokenising were asked for, the first of which has begun."""
        loop, whole = server.cpu_ticks()
        began = whole - loop
        connections = [server.connect() for _ in range(count)]
        for connection in connections:
            connection.request("POST", "/tokenize", b'{"prompt": "%s"}' % (b" " * (16 << 20)), {"Content-Type": "application/json"})
        while whole - loop < began + 100:
            time.sleep(0.01)
            loop, whole = server.cpu_ticks()
        return connections

    def test_nobody_prepares_for_those_who_left(self):
        """Minutes of work are asked for, and all who did so leave: who comes behind them is served at once."""
        with Server() as server:
            for connection in self.ask_for_long_work(server, 12):
                connection.close()
            status, answer = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "user": "u" * 40000})
            self.assertEqual((status, answer["usage"]["completion_tokens"]), (200, 1))

    def test_giant_bodies_are_others_work(self):
        """The loop neither writes what is as long as a giant body nor frees it, and its memory does not stay taken."""
        giants = [
            ("/tokenize", b'{"prompt": "%s"}' % (b"hello world " * 500000), 200),
            ("/detokenize", b'{"tokens": [%s1]}' % (b"1," * 3000000), 200),
            ("/v1/completions", b'{"prompt": "x", "max_tokens": 1, "unknown": [%s1]}' % (b"[]," * 2000000), 200),
            ("/v1/completions", b'{"prompt": [%s1], "max_tokens": 1}' % (b"1," * 3000000), 400),
        ]
        with Server() as server:
            for path, body, expected in giants:
                loop, whole = server.cpu_ticks()
                status, _, answer = server.send("POST", path, body, {})
                self.assertEqual(status, expected, answer[:200])
                now = server.cpu_ticks()
                self.assertLess(now[0] - loop, 0.3 * (now[1] - whole), path)
            if not SANITIZED:  # sanitizers keep what is freed for a while
                self.assertLess(server.resident_bytes(), 400 << 20)

    def test_what_cannot_fit_is_not_tokenised(self):
        """A text that is too long by far costs a few copies of it, as whichever kind of request it comes."""
        many = 100000 if SANITIZED else 400000  # sanitizers take ten times as long
        texts = [b" " * 30 * many, b"7" * 30 * many, b"hello " * 5 * many, b"<|endoftext|>" * 2 * many]
        with Server() as server:
            for path, form in [("completions", b'{"prompt": "%s"}'), ("chat/completions", b'{"messages": [{"role": "user", "content": "%s"}]}')]:
                for text in texts:
                    status, _, answer = server.send("POST", f"/v1/{path}", form % text, {})
                    self.assertEqual((status, json.loads(answer)["error"]["code"]), (400, "context_length_exceeded"))
            if not SANITIZED:
                self.assertLess(server.peak_bytes(), 320 << 20)

    def test_memory_of_bodies(self):
        """What would take too much memory to read is refused before it does."""
        with Server() as server:
            idle = server.peak_bytes()
            for form, piece in [(b'{"x": [%s1]}', b"[],"), (b'{"x": [%s1]}', b"{},"), (b'{"x": [%s1]}', b'{"":[]},'), (b'{"x": [%s1]}', b'1,')]:
                status, _, answer = server.send("POST", "/v1/completions", form % (piece * (30000000 // len(piece))), {})
                self.assertEqual((status, json.loads(answer)["error"]["code"]), (413, "request_too_large"))
            status, _, answer = server.send("POST", "/tokenize", b'{"prompt": "%s"}' % (b"7" * (17 << 20)), {})
            self.assertEqual((status, json.loads(answer)["error"]["code"]), (413, "request_too_large"))
            if not SANITIZED:
                self.assertLess(server.peak_bytes() - idle, 300 << 20)
            body = b'{"x": [%s1]}' % (b"[]," * 20000000)
            for _ in range(19):  # more than a GiB in all, and each is given back
                status, _, answer = server.send("POST", "/v1/completions", body, {})
                self.assertEqual((status, json.loads(answer)["error"]["code"]), (413, "request_too_large"))

    def test_ignored_fields_are_logged_once(self):
        with Server() as server:
            body = {"prompt": "x", "max_tokens": 1}
            server.complete(**body, sweet=1, sour=1)
            server.complete(**body, sour=1, salty=1)
            server.complete(**body, salt=1)  # a part of another's name
            server.complete(**body, **{"\x1b[31m\n": 1})  # nothing that a terminal obeys
            for i in range(0, 300, 30):
                server.complete(**body, **{f"field{j}": 1 for j in range(i, i + 30)})
        lines = "".join(server.log).split("\n")
        for name in ("sweet", "sour", "salty", "salt", "?[31m?"):
            found = [line for line in lines if line.endswith(f"is ignored: {name}")]
            self.assertEqual(len(found), 1, lines[:20])
        self.assertLess(len(lines), 200)  # and no end of names does not make an endless log

    def test_second_signal_waits_for_no_tokenising(self):
        """What takes many seconds does not keep a server that is told twice to end."""
        with Server() as server:
            (connection,) = self.ask_for_long_work(server)
            server.tell_to_end()
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(connection.getresponse().status, 503)
            self.assertEqual(server.process.wait(SECONDS), 0)
            connection.close()


if __name__ == "__main__":
    unittest.main()
