"""TLS, certificates that change while the server runs, and the access log."""

import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
import unittest

from serving import MODEL, SECONDS, Server, run, seed, temporary

BODY = {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0, "seed": 1}


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Authority:
    """A certificate authority in a folder, which certifies 127.0.0.1."""

    def __init__(self, folder, name="root"):
        self.folder, self.name = pathlib.Path(folder), name
        self.root, self.root_key = self.path(name), self.path(name + "-key")
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", self.root_key,
                "-out", self.root, "-subj", f"/CN={name}", "-days", 2)  # fmt: skip

    def path(self, name):
        return self.folder / f"{name}.pem"

    def certify(self, name):
        """The paths of a certificate and its key."""
        request, own, key, extra = (self.path(f"{name}-{part}") for part in ("request", "own", "key", "extra"))
        extra.write_text("subjectAltName=IP:127.0.0.1")
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", request, "-CA", self.root, "-CAkey", self.root_key, "-CAcreateserial", "-out", own, "-days", 2, "-extfile", extra)
        return own, key

    def context(self, certificate=None):
        context = ssl.create_default_context(cafile=self.root)
        if certificate:
            context.load_cert_chain(*certificate)
        return context


class SecureServer(Server):
    def __init__(self, context, *options, **more):
        super().__init__(*options, **more)
        self.context = context

    def connect(self):
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=SECONDS, context=self.context)

    def link(self, context=None):
        return (context or self.context).wrap_socket(self.raw(), server_hostname="127.0.0.1")

    def name(self):
        """Whom the server's certificate names."""
        with self.link() as link:
            return dict(part[0] for part in link.getpeercert()["subject"])["commonName"]

    def reload(self, line):
        """SIGHUP, and what the server says of it."""
        before = len(self.log)
        self.process.send_signal(signal.SIGHUP)
        end = time.monotonic() + SECONDS
        while not any(line in said for said in self.log[before:]):
            assert time.monotonic() < end, self.log
            time.sleep(0.01)


class TLS(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(temporary())
        cls.authority = Authority(cls.folder)
        cls.certificate, cls.key = cls.authority.certify("first")
        cls.options = ("--ssl-certfile", cls.certificate, "--ssl-keyfile", cls.key)

    def serve(self, *options, context=None):
        return SecureServer(context or self.authority.context(), *self.options, *options)

    def test_answers_are_the_same(self):
        with Server() as plain, self.serve() as server:
            text = plain.complete(**BODY)["choices"][0]["text"]
            self.assertEqual(server.complete(**BODY)["choices"][0]["text"], text)
            events = server.events("/v1/completions", BODY)
            self.assertEqual("".join(e["choices"][0]["text"] for e in events[:-1]), text)
            self.assertEqual(events[-1], "[DONE]")
            page = plain.get("/")[1]
            with contextlib.closing(server.connect()) as connection:  # several on one connection, large ones too
                for size in (10, 300_000, 2_000_000, 10):
                    connection.request("POST", "/tokenize", json.dumps({"prompt": "x y" * 100, "user": "u" * size}), {"Content-Type": "application/json"})
                    answer = connection.getresponse()
                    self.assertEqual((answer.status, json.loads(answer.read())["count"]), (200, plain.post("/tokenize", {"prompt": "x y" * 100})[1]["count"]))
                    connection.request("GET", "/")
                    self.assertEqual(connection.getresponse().read(), page)

    def test_versions_and_ciphers(self):
        with self.serve() as server:
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                context = self.authority.context()
                context.minimum_version = context.maximum_version = version
                with server.link(context) as link:
                    self.assertIn(version.name[-1], link.version())
                    self.assertRegex(link.cipher()[0], "GCM|CHACHA")
            old = self.authority.context()
            old.set_ciphers("ALL:@SECLEVEL=0")
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
            with self.assertRaises(ssl.SSLError):
                server.link(old)
            weak = self.authority.context()
            weak.maximum_version = ssl.TLSVersion.TLSv1_2
            weak.set_ciphers("AES128-SHA")
            with self.assertRaises(ssl.SSLError):
                server.link(weak)
            offers = self.authority.context()
            offers.set_alpn_protocols(["h2", "http/1.1"])
            with server.link(offers) as link:
                self.assertEqual(link.selected_alpn_protocol(), "http/1.1")

    def test_who_speaks_no_tls(self):
        draw = random.Random(seed())
        with self.serve() as server:
            with server.raw() as plain:
                plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = b"".join(iter(lambda: plain.recv(4096), b""))
                self.assertTrue(answer.startswith(b"HTTP/1.1 400 "), answer)
                self.assertIn(b"https://", answer)
            for _ in range(200):  # handshakes that are none, or end in the midst
                with server.raw() as other:
                    other.sendall(b"\x16\x03\x01" * (draw.random() < 0.7) + draw.randbytes(draw.randrange(300)))
            self.assertEqual(server.get("/health")[0], 200)
            descriptors = server.descriptors()
            stalled = [server.raw() for _ in range(100)]  # they say nothing, or begin and stop
            for i, one in enumerate(stalled):
                one.sendall(b"\x16\x03\x01\x02\x00\x01"[: i % 7])
            self.assertEqual(server.complete(**BODY)["usage"]["completion_tokens"], 20)
            for one in stalled:  # each is shown out when the time for a head is over
                one.settimeout(SECONDS)
                with contextlib.suppress(ConnectionResetError):
                    while one.recv(4096):
                        pass
                one.close()
            end = time.monotonic() + SECONDS
            while server.descriptors() > descriptors + 2:
                self.assertLess(time.monotonic(), end)
                time.sleep(0.05)

    def test_clients_that_leave(self):
        draw = random.Random(seed())
        with self.serve("--max-num-seqs", 4) as server:
            for _ in range(40):
                with server.link() as link:
                    body = json.dumps({"prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True}).encode()
                    link.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                    link.settimeout(SECONDS)
                    if draw.random() < 0.7:
                        link.recv(draw.randrange(1, 4000))
            server.wait_idle()
            self.assertEqual(server.metric("vllm:kv_cache_usage_perc"), 0)

    def test_certificates_of_clients(self):
        other = Authority(self.folder, "other")
        good = self.authority.context(self.authority.certify("client"))
        bad = self.authority.context(other.certify("stranger"))
        none = self.authority.context()
        for requirement, served in (("1", (True, False, True)), ("2", (True, False, False))):
            with self.serve("--ssl-ca-certs", self.authority.root, "--ssl-cert-reqs", requirement, context=good) as server:
                for context, expected in zip((good, bad, none), served):
                    server.context = context
                    try:
                        self.assertEqual(server.get("/health")[0], 200)
                        self.assertTrue(expected)
                    except (ssl.SSLError, ConnectionError):
                        self.assertFalse(expected)

    def test_a_certificate_is_read_again(self):
        current, key = pathlib.Path(self.folder) / "current.pem", pathlib.Path(self.folder) / "current-key.pem"

        def install(certificate, its_key):
            for source, target in ((certificate, current), (its_key, key)):
                target.write_bytes(pathlib.Path(source).read_bytes())

        install(self.certificate, self.key)
        second = self.authority.certify("second")
        with SecureServer(self.authority.context(), "--ssl-certfile", current, "--ssl-keyfile", key) as server:
            with contextlib.closing(server.connect()) as kept:
                kept.request("GET", "/health")
                kept.getresponse().read()
                self.assertEqual(server.name(), "first")
                install(*second)
                self.assertEqual(server.name(), "first")
                server.reload("was read again")
                self.assertEqual(server.name(), "second")
                install(self.certificate, second[1])  # a key that is another's
                server.reload("stays as it was")
                self.assertEqual(server.name(), "second")
                kept.request("GET", "/health")  # connections that there were go on
                self.assertEqual(kept.getresponse().status, 200)

    def test_files_that_cannot_be_used(self):
        folder = pathlib.Path(self.folder)
        (folder / "empty.pem").write_text("")
        (folder / "nonsense.pem").write_bytes(os.urandom(500))
        encrypted = folder / "encrypted.pem"
        openssl("ec", "-in", self.key, "-out", encrypted, "-aes128", "-passout", "pass:word")
        _, other_key = self.authority.certify("another")
        for options, says in [
            (("--ssl-certfile", folder / "absent.pem"), "absent.pem': No such file"),
            (("--ssl-certfile", folder / "empty.pem"), "cannot read the certificate"),
            (("--ssl-certfile", folder / "nonsense.pem"), "cannot read the certificate"),
            (("--ssl-certfile", self.certificate), "cannot read the key"),
            (("--ssl-certfile", self.certificate, "--ssl-keyfile", other_key), "is not that of the certificate"),
            (("--ssl-certfile", self.certificate, "--ssl-keyfile", encrypted), "cannot read the key"),
            ((*self.options, "--ssl-cert-reqs", "2", "--ssl-ca-certs", folder / "empty.pem"), "authorities"),
            (("--ssl-keyfile", self.key), "--ssl-certfile"),
            ((*self.options, "--ssl-cert-reqs", "3"), "--ssl-cert-reqs"),
        ]:
            result = run("serve", MODEL, "--port", 0, *options)
            self.assertNotEqual(result.returncode, 0, options)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertIn(says, result.stderr)


class AccessLog(unittest.TestCase):
    def setUp(self):
        self.path = pathlib.Path(self.enterContext(temporary())) / "access.log"

    def lines(self, count, path=None):
        """The log, once it has so many lines."""
        end = time.monotonic() + SECONDS
        while len(lines := (path or self.path).read_text().splitlines()) < count:
            self.assertLess(time.monotonic(), end, lines)
            time.sleep(0.01)
        self.assertEqual(len(lines), count)
        return [json.loads(line) for line in lines]

    def test_a_line_for_each(self):
        with Server("--access-log", self.path) as server:
            server.send("POST", "/v1/completions", BODY, {"X-Request-Id": 'mine "quoted"'})
            answer = server.send("POST", "/v1/completions", BODY | {"stream": True})
            server.get("/nowhere%20%22\\")
            server.send("HEAD", "/health")
            with server.raw() as raw:
                raw.sendall(b"NONSENSE\r\n\r\n")
                while raw.recv(4096):
                    pass
            with server.raw() as raw:
                raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100000000\r\n\r\n")
                while raw.recv(4096):
                    pass
            lines = self.lines(6)
        self.assertEqual([(line["method"], line["status"], line["whole"], line["level"]) for line in lines],
                         [("POST", 200, True, "info"), ("POST", 200, True, "info"), ("GET", 404, True, "warning"), ("HEAD", 200, True, "info"),
                          (None, 400, True, "warning"), ("POST", 413, True, "warning")])  # fmt: skip
        self.assertEqual(lines[0]["request_id"], 'mine "quoted"')
        self.assertEqual(lines[1]["request_id"], answer[1]["X-Request-Id"])
        self.assertEqual(lines[1]["bytes"], len(answer[2]))
        self.assertEqual(lines[2]["path"], '/nowhere "\\')
        for line in lines:
            self.assertRegex(line["time"], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            self.assertRegex(line["client"], r"^127\.0\.0\.1:\d+$")
            self.assertTrue(0 <= line["seconds"] < SECONDS)

    def test_clients_that_leave(self):
        body = json.dumps({"prompt": "x", "max_tokens": 250, "ignore_eos": True, "stream": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        with Server("--access-log", self.path) as server:
            with server.raw() as connection:
                connection.sendall(head + body)
                connection.recv(100)
            with server.raw() as connection:
                connection.sendall(head)
            lines = self.lines(2)
        self.assertEqual({(line["status"], line["whole"], line["level"]) for line in lines}, {(200, False, "warning"), (None, False, "warning")})

    def test_levels(self):
        for level, statuses in (("error", []), ("warning", [404]), ("info", [200, 404])):
            path = self.path.with_suffix("." + level)
            with Server("--access-log", path, "--log-level", level) as server:
                server.get("/health")
                server.get("/nowhere")
                server.complete("x", max_tokens=1, no_such_field=1)
                server.tell_to_end() if level == "info" else None
            self.assertEqual([json.loads(line)["status"] for line in path.read_text().splitlines()][: len(statuses)], statuses)
            if level == "error":
                self.assertEqual(path.read_text(), "")
            self.assertEqual(any("no_such_field" in line for line in server.log), level == "info")

    def test_a_renamed_log(self):
        old = self.path.with_suffix(".old")
        with Server("--access-log", self.path) as server:
            server.get("/health")
            self.lines(1)
            self.path.rename(old)
            server.process.send_signal(signal.SIGHUP)
            end = time.monotonic() + SECONDS
            while not self.path.exists():
                self.assertLess(time.monotonic(), end)
                time.sleep(0.01)
            server.get("/version")
            self.assertEqual([line["path"] for line in self.lines(1)], ["/version"])
            self.assertEqual([line["path"] for line in self.lines(1, old)], ["/health"])

    def test_a_pipe_that_nobody_reads(self):
        """Whether in the place of a log or of a certificate: it is told, and nobody waits."""
        with Server("--access-log", self.path) as server:
            server.get("/health")
            self.path.unlink()
            os.mkfifo(self.path)
            server.process.send_signal(signal.SIGHUP)
            end = time.monotonic() + SECONDS
            while not any("cannot append to" in line for line in server.log):
                self.assertLess(time.monotonic(), end)
                self.assertEqual(server.get("/health")[0], 200)
        for option, word in ("--access-log", "cannot append to"), ("--ssl-certfile", "not a regular file"):
            result = run("serve", MODEL, "--port", 0, option, self.path)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (1, 1), result.stderr)
            self.assertIn(word, result.stderr)

    def test_a_log_that_cannot_be(self):
        result = run("serve", MODEL, "--port", 0, "--access-log", self.path / "in" / "nothing")
        self.assertEqual((result.returncode, result.stderr.count("\n")), (1, 1), result.stderr)
        self.assertIn("cannot append to", result.stderr)

    def test_a_full_disk(self):
        """Is said once, and no request's trouble."""
        with open("/dev/full", "wb") as full, Server("--access-log", "-", stdout=full) as server:
            for _ in range(3):
                self.assertEqual(server.get("/health")[0], 200)
            server.tell_to_end()
        self.assertEqual([line for line in server.log if "access log" in line], ["coterie: the access log cannot be written: No space left on device\n"])

    def test_many_at_once(self):
        """Lines stay whole, one a request."""
        with Server("--access-log", self.path) as server:
            threads = [threading.Thread(target=lambda: [server.get("/health") for _ in range(20)]) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual({line["status"] for line in self.lines(160)}, {200})


if __name__ == "__main__":
    unittest.main()
