"""What servers are broken with: a function each, which does its worst to a server and returns. Tests look at what became of
the server and of who asks honestly beside it (test_abuse.py); the soak does all of it for hours (soak.py).

Each takes a server of serving.py and a random.Random, and fails where the server does not end what it ought to end."""

import contextlib
import json
import socket
import ssl
import struct
import time

from serving import SECONDS

HEAD = b"Host: localhost\r\nContent-Type: application/json\r\n"
LONG = 200_000  # characters of a text that is slow to read


def post(body, path="/v1/completions"):
    """The bytes of a request; a body that is no bytes is written as JSON."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n" % (path.encode(), HEAD, len(body)) + body


def plain(server):
    """A connection without TLS, whatever the server speaks."""
    return socket.create_connection((server.host, server.port), timeout=SECONDS)


def read_to_end(connection):
    """All bytes up to the connection's end; a reset is one, too."""
    got = b""
    try:
        while piece := connection.recv(65536):
            got += piece
    except ConnectionError:
        pass
    return got


def say(server, data, stays=False):
    """Sends what the server takes of the data, half-closes unless it `stays`, and returns all that comes back."""
    with server.raw() as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
        if not stays:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
        return read_to_end(connection)


def status(answer):
    """Of the first answer in the bytes; 0 where there is none."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


# ---- bytes ----


def garbage(server, draw):
    say(server, draw.randbytes(draw.randrange(1, 5000)))


def header_bomb(server, draw):
    """Many fields, long fields, one endless field, and a target without end."""
    bomb = draw.choice(
        [
            b"".join(b"X-%d: %s\r\n" % (i, b"y" * 500) for i in range(300)),
            b"".join(b"X-%d: y\r\n" % i for i in range(20_000)),
            b"X-Long: " + b"y" * (1 << 20),
            b"Cookie: " + b";".join(b"a%d=b" % i for i in range(50_000)) + b"\r\n",
        ]
    )
    target = b"/health" if draw.random() < 0.8 else b"/" + b"a" * (1 << 20)
    answer = say(server, b"GET " + target + b" HTTP/1.1\r\n" + HEAD + bomb + b"\r\n")
    assert status(answer) in (0, 414, 431), answer[:200]


def giant_body(server, draw):
    """Says that it brings more than it may, or brings it in chunks without saying so."""
    if draw.random() < 0.5:
        answer = say(server, b"POST /v1/completions HTTP/1.1\r\n" + HEAD + b"Content-Length: 999999999999\r\n\r\n" + b"x" * 100_000)
        assert status(answer) in (0, 413), answer[:200]
    else:
        chunks = b"".join(b"1\r\nx\r\n" for _ in range(50_000)) + b"fffffffffffffff\r\n" + b"x" * 10_000
        answer = say(server, b"POST /v1/completions HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
        assert status(answer) in (0, 400, 413), answer[:200]


def pipelined(server, draw):
    """Many requests in one piece: each has its answer, in turn, and what comes behind nonsense is not read."""
    count = draw.randrange(2, 300)
    answer = say(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * count + b"\x00\x01", stays=True)
    assert answer.count(b"HTTP/1.1 200 ") == count and answer.count(b"HTTP/1.1 400 ") == 1, (count, answer[-300:])


def half_closed(server, draw):
    """Asks, or half asks, and says that nothing more comes."""
    request = post({"prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": draw.random() < 0.5})
    say(server, request if draw.random() < 0.5 else request[: draw.randrange(len(request))])


# ---- bodies that are slow to read ----

# Characters that tokenizers, JSON and terminals have found hard: marks that combine without end, right-to-left and invisible
# ones, surrogates alone, halves of emoji, what case and normal forms make longer, all planes.
SCRIPTS = ["\u0301", "\u202e", "\u200b", "\ufeff", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u0130", "\ufb03", "\u1e9e", "\ud800", "\U0010ffff", "\u0000", "ﷺ", "각", "\u3000", "ก็็็็็"]


def slow_text(server, draw):
    """One word without end, one run of blanks, one mark after another: answered or refused, not chewed on for long."""
    text = draw.choice(["a", "7", " ", "\n", "\t ", "\u00a0", ".", "ab ", "'s", "aA1 "] + SCRIPTS)
    fields = draw.choice([{"prompt": text * (LONG // len(text))}, {"messages": [{"role": "user", "content": text * (LONG // len(text))}]}])
    path = "/v1/completions" if "prompt" in fields else "/v1/chat/completions"
    answer = whole(server, post(fields | {"max_tokens": 1}, path))
    assert status(answer) in (400, 429, 503), answer[:200]


def unicode_of_every_kind(server, draw):
    """Short enough to be computed; as prompt, as stop string, as name, and raw bytes that are no UTF-8."""
    text = "".join(draw.choice(SCRIPTS) * draw.randrange(1, 4) for _ in range(draw.randrange(1, 12)))
    body = {"prompt": text, "stop": [text[:20] or "x"], "user": text, "max_tokens": 2}
    if draw.random() < 0.3:
        raw = b'{"prompt": "' + draw.randbytes(40).replace(b'"', b"'").replace(b"\\", b"/") + b'", "max_tokens": 2}'
        assert status(whole(server, post(raw))) in (200, 400, 429), raw
    else:
        assert status(whole(server, post(body))) in (200, 400, 429), body


def whole(server, request):
    """The answer to a request, in time, on a connection that stays until then."""
    with server.raw() as connection:
        connection.sendall(request.replace(b"\r\nHost", b"\r\nConnection: close\r\nHost", 1))
        return read_to_end(connection)


def deep_values(server, draw):
    """Lists of lists, keys by the thousand, numbers without end, strings of escapes."""
    body = draw.choice(
        [
            b'{"prompt": ' + b"[" * 50_000,
            b"{" + b",".join(b'"k%d":1' % i for i in range(20_000)) + b"}",
            b'{"prompt": "x", "max_tokens": ' + b"9" * 100_000 + b"}",
            b'{"prompt": "' + b"\\u0000" * 30_000 + b'"}',
            b'{"prompt": "x", "temperature": 1e' + b"9" * 5_000 + b"}",
            b'{"prompt": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}",
        ]
    )
    answer = whole(server, post(body))
    assert status(answer) in (400, 413, 429, 503), answer[:200]


def many_stops(server, draw):
    """10,000 stop strings; and the longest that are allowed, which nearly match all the time."""
    if draw.random() < 0.5:
        answer = whole(server, post({"prompt": "x", "stop": [f"s{i}" for i in range(10_000)]}))
        assert status(answer) == 400, answer[:200]
    else:
        answer = whole(server, post({"prompt": "x", "stop": ["\n" * 200 + str(i) for i in range(4)], "max_tokens": 20}))
        assert status(answer) in (200, 400, 429), answer[:200]


def most_of_everything(server, draw):
    """The largest n, prompts and tokens that are allowed: computed or told to come again."""
    body = draw.choice(
        [
            {"prompt": ["x"] * 64, "n": 128, "max_tokens": 10**6},
            {"prompt": "x", "n": 128, "max_tokens": 10**9, "logprobs": 5},
            {"prompt": [[1] * 200] * 64, "n": 128, "echo": True, "logprobs": 5},
            {"prompt": "x", "n": 128, "max_tokens": 4, "logprobs": 5, "logit_bias": {str(i): -100 for i in range(1024)}},
            {"prompt": "x", "n": 128, "max_tokens": 4, "logprobs": 5},
        ]
    )
    answer = whole(server, post(body))
    assert status(answer) in (200, 400, 429), answer[:200]


# ---- time ----


def cancel_storm(server, draw, count=20):
    """Requests that are left in the moment in which they begin."""
    for _ in range(count):
        with server.raw() as connection:
            connection.sendall(post({"prompt": "Once upon a time", "max_tokens": 250, "ignore_eos": True, "stream": True, "n": draw.choice([1, 4])}))
            if draw.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def never_read(server, draw, seconds=0.5):
    """Asks for much and reads nothing of it."""
    with server.raw() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        ask = post({"prompt": "x", "max_tokens": 200, "stream": True, "logprobs": 5, "ignore_eos": True})
        if draw.random() < 0.5:
            ask = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200
        connection.settimeout(seconds)
        with contextlib.suppress(OSError):
            connection.sendall(ask)
        time.sleep(seconds * draw.random())


SLOW = {
    "no byte": b"",
    "headers": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"y" * 1000,
    "body": b"POST /v1/completions HTTP/1.1\r\n" + HEAD + b"Content-Length: 100000\r\n\r\n" + b" " * 1000,
    "chunks": b"POST /v1/completions HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 200,
}


class Crowd:
    """Connections that are kept as long as the server lets them, from one thread: `idle` ones have had an answer and ask for
    nothing more; others say a byte of a request whenever they are nudged, and never its end."""

    def __init__(self, server):
        self.server, self.members = server, []

    def join(self, count, kind):
        for _ in range(count):
            connection = self.server.raw()
            said = 0
            if kind == "idle":
                connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                head, got = b"", b""
                while b"\r\n\r\n" not in head:
                    head += connection.recv(65536)
                head, got = head.split(b"\r\n\r\n", 1)
                length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
                while len(got) < length:
                    got += connection.recv(65536)
            elif kind != "no byte":
                said = SLOW[kind].index(b"\r\n\r\n") + 5 if kind in ("body", "chunks") else 30
                connection.sendall(SLOW[kind][:said])
            connection.setblocking(False)
            self.members.append([connection, kind, said])

    def nudge(self):
        """The next byte of each that is still there."""
        for member in self.members:
            connection, kind, said = member
            data = SLOW.get(kind, b"")
            if said < len(data):
                with contextlib.suppress(OSError, ssl.SSLError):
                    connection.send(data[said : said + 1])
                    member[2] += 1

    def still_there(self):
        """How many have not been cut."""
        alive = 0
        for connection, _, _ in self.members:
            try:
                alive += bool(connection.recv(65536))
            except (BlockingIOError, ssl.SSLWantReadError):
                alive += 1
            except OSError:
                pass
        return alive

    def leave(self):
        for connection, _, _ in self.members:
            connection.close()
        self.members = []


# ---- TLS ----


def stalled_handshake(server, draw):
    """The beginning of a greeting, and no more of it: the connection as it stands."""
    connection = plain(server)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    handshake = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    hello = outgoing.read()
    connection.sendall(hello[: draw.randrange(1, len(hello) + 1)])
    return connection


def broken_records(server, draw):
    """Something that begins as TLS does."""
    with plain(server) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(b"\x16\x03" + draw.randbytes(draw.randrange(1, 3000)))
            connection.shutdown(socket.SHUT_WR)
        read_to_end(connection)


BRIEF = [garbage, header_bomb, giant_body, pipelined, half_closed, slow_text, unicode_of_every_kind, deep_values, many_stops, most_of_everything, cancel_storm, never_read]
TLS = [broken_records]
