"""`coterie chat`: from a pipe, in a terminal, with a model and with a server."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unittest

from serving import MODEL, PROGRAM, SECONDS, Peer, Server, run


class Terminal:
    """`coterie chat` in a terminal of its own, that has a size where `columns` are said."""

    def __init__(self, *arguments, columns=0):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            if columns:
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
                os.environ["TERM"] = "xterm"
            os.execv(PROGRAM, [PROGRAM, "chat", *map(str, arguments)])
        self.shown = ""

    def until(self, pattern, seconds=SECONDS):
        """Reads until what was shown since the last call matches; returns it."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.shown, flags=re.S):
            if time.monotonic() > end:
                raise AssertionError(f"{pattern!r} is not in {self.shown!r}")
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self.fd, 4096).decode()
                except OSError:
                    raise AssertionError(f"it has ended; {pattern!r} is not in {self.shown!r}") from None
        shown, self.shown = self.shown, ""
        # a prompt is there before the terminal hands on single characters: what comes between is mangled
        while shown.endswith("> ") and termios.tcgetattr(self.fd)[3] & termios.ICANON and time.monotonic() < end:
            time.sleep(0.001)
        return shown

    def type(self, text):
        os.write(self.fd, text.encode())

    def leave(self):
        self.type("\x04")
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                if select.select([self.fd], [], [], 0.1)[0]:
                    os.read(self.fd, 4096)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError("it does not end")


def seen(shown):
    """The lines that a terminal shows of this, where a word is taken back to begin the next line."""
    text = ""
    for piece, back in re.findall(r"([^\033]*)(?:\033\[(\d+)D\033\[K)?", shown):
        text = (text + piece)[: -int(back) if back else None]
    return [line.rstrip() for line in text.split("\r\n")]


def answer(shown):
    """The line before the next prompt."""
    return shown.split("\r\n")[-2]


class Chat(unittest.TestCase):
    def test_pipe(self):
        """Lines in, answers out; what was said before is part of what is asked."""
        greedy = ("--temperature", "0", "--max-tokens", "20")
        both = run("chat", MODEL, *greedy, input="What is 2 + 3?\nAnd 4 + 4?\n")
        self.assertEqual((both.returncode, both.stderr), (0, ""))
        with Server("--attention", "tp") as server:
            messages = []
            expected = ""
            for text in ("What is 2 + 3?", "And 4 + 4?"):
                messages.append({"role": "user", "content": text})
                body = {"messages": messages, "temperature": 0, "max_tokens": 20}
                said = server.post("/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]
                messages.append({"role": "assistant", "content": said})
                expected += said + "\n"
            self.assertEqual(both.stdout, expected)
            remote = run("chat", f"http://127.0.0.1:{server.port}/v1/", *greedy, input="What is 2 + 3?\nAnd 4 + 4?")
            self.assertEqual((remote.stdout, remote.returncode), (expected, 0))

    def test_terminal(self):
        screen = Terminal(MODEL, "--temperature", "0", "--max-tokens", "12")
        screen.until("/help tells.*> ")
        screen.type("What is 2 + 3?\n")
        first = answer(screen.until(r"\?\r\n.+\r\n> $"))
        self.assertTrue(first)
        screen.type("/retry\n")
        self.assertEqual(answer(screen.until(r"/retry\r\n.+\r\n> $")), first)
        screen.type("/help\n")
        self.assertIn("/quit", screen.until(r"Ctrl-C.*> $"))
        screen.type("/nothing of mine\n")
        self.assertIn("unknown command '/nothing'\r\n/new ", screen.until(r"Ctrl-C.*> $"))
        screen.type("/new\n")  # what is typed ahead of a prompt may be lost
        screen.until(r"/new\r\nbegun anew\r\n> $")
        screen.type("What is 2 + 3?\n")
        self.assertEqual(answer(screen.until(r"\?\r\n.+\r\n> $")), first)
        self.assertEqual(screen.leave(), 0)

    def test_interrupt(self):
        """Ctrl-C ends an answer; what it said stays, and the next question is answered."""
        with Server("--ranks", 4) as server:
            screen = Terminal(f"http://127.0.0.1:{server.port}", "--temperature", "0.9")
            screen.until("> ")
            for _ in range(50):  # until one is caught while it speaks
                screen.type("Tell me a story\n")
                screen.until(r"story\r\n.")
                screen.type("\x03")
                try:
                    if "[stopped]" in screen.until(r"\n> $", 3):
                        break
                except AssertionError:  # it came between an answer and its prompt, where the terminal loses it
                    continue
            else:
                self.fail("no answer was stopped")
            screen.type("half a line\x03")
            screen.until(r"\n> $")  # at the prompt it drops the line
            screen.type("x\n")
            screen.until(r"x\r\n.*\n> $")
            self.assertEqual(screen.leave(), 0)

    def test_strange_events(self):
        """Text with NUL is shown whole; what is no JSON ends the answer with a word, not in silence."""
        event = json.dumps({"choices": [{"index": 0, "delta": {"content": "a\0b"}, "finish_reason": None}]})
        for second, said, status in (("[DONE]", "", 0), ("{no", "coterie: the server sent an event that is no JSON\n", 1)):
            with Peer(event, event, second) as peer:
                done = run("chat", f"http://127.0.0.1:{peer.port}", input="Hi\n")
                self.assertEqual((done.stdout.rstrip("\n"), done.stderr, done.returncode), ("a\0ba\0b", said, status))
        with Peer(event, "[DONE]") as peer:  # and is part of what was said
            run("chat", f"http://127.0.0.1:{peer.port}", input="Hi\nAnd?\n")
            self.assertEqual(peer.bodies[1]["messages"][1], {"role": "assistant", "content": "a\0b"})

    def test_a_full_context(self):
        """It is said, and room can be made."""
        room = "/drop leaves out the oldest turn, /new begins anew"
        event = json.dumps({"choices": [{"delta": {"content": "and"}, "finish_reason": "length"}]})
        with Peer(event, "[DONE]") as peer:
            for more, word in (((), f"context is full; {room}"), (("--max-tokens", "5"), "cut: --max-tokens")):
                terminal = Terminal(f"http://127.0.0.1:{peer.port}", *more)
                terminal.until("> $")
                terminal.type("/drop\n/system\n")
                self.assertIn("nothing has been said yet", terminal.until("there are no instructions.*> $"))
                terminal.type("/system Be brief.\n/system\n")
                self.assertIn("begun anew with these instructions\r\n", terminal.until("system\r\nBe brief..*> $"))
                for said in ("one\n", "two\n"):
                    terminal.type(said)
                    self.assertIn(word, terminal.until(r"\[cut.*> $"))
                terminal.type("/drop\n")
                terminal.until("2 messages are left.*> $")
                terminal.type("three\n")
                terminal.until(r"\[cut.*> $")
                self.assertEqual([m["content"] for m in peer.bodies[-1]["messages"]], ["Be brief.", "two", "and", "three"])
                self.assertEqual(terminal.leave(), 0)
        with Server() as server:
            terminal = Terminal(f"http://127.0.0.1:{server.port}")
            terminal.until("> $")
            terminal.type("x " * 700 + "\n")  # of 512 tokens
            self.assertIn(room, terminal.until(r"does not fit the model's context.*> $"))
            self.assertEqual(terminal.leave(), 0)

    def test_a_full_context_of_a_pipe(self):
        """What is cut is told beside it, and what does not fit any more; there are no commands to offer, and of a model's own no server."""
        lines = "".join(f"Tell me more about the sea and the ships number {i}\n" for i in range(1, 9))
        done = run("chat", MODEL, "--seed", "1", input=lines)
        self.assertEqual(done.returncode, 1)
        cut, refused, advice = done.stderr.splitlines()
        answered = int(re.fullmatch(r"note: the answer to message (\d) is cut: the model's context is full", cut)[1])
        self.assertRegex(refused, "^coterie: this model's context is 512 tokens; ")
        self.assertRegex(advice, f"^note: with message {answered + 1} the conversation does not fit the model's context; ")
        fewer = run("chat", MODEL, "--seed", "1", input="".join(lines.splitlines(True)[:answered]))
        self.assertEqual((fewer.returncode, fewer.stderr, fewer.stdout), (0, cut + "\n", done.stdout))
        event = json.dumps({"choices": [{"delta": {"content": "and"}, "finish_reason": "length"}]})
        with Peer(event, "[DONE]") as peer:
            for more, said in ((), ["1", "2"]), (("--max-tokens", "1"), []):  # who asked for an end is not told of it
                done = run("chat", f"http://127.0.0.1:{peer.port}", *more, input="x\n\ny\n")
                self.assertEqual((done.returncode, done.stdout), (0, "and\nand\n"))
                self.assertEqual(re.findall(r"^note: the answer to message (\d) is cut", done.stderr, flags=re.M), said)

    def test_words_at_the_margin(self):
        """Those of notes and complaints stay whole, as those of answers do."""
        event = json.dumps({"choices": [{"delta": {"content": "a conversation"}, "finish_reason": "length"}]})
        wrong = json.dumps({"error": {"message": "something extraordinarily complicated happened over there"}})
        with Peer(event, "[DONE]") as cutting, Peer(event, wrong) as failing:
            for columns in (21, 34, 47):
                for peer, told in ((cutting, "[cut: the model's context is full; /drop leaves out the oldest turn, /new begins anew]"),
                                   (failing, "coterie: something extraordinarily complicated happened over there")):  # fmt: skip
                    terminal = Terminal(f"http://127.0.0.1:{peer.port}", columns=columns)
                    lines = seen(terminal.until("leaves.\r\n.*> "))
                    self.assertIn("/help tells what can be typed; Ctrl-D leaves.", " ".join(lines))
                    terminal.type("one\n")
                    shown = seen(terminal.until(re.escape(told[-4:]) + "\r\n.*> "))
                    first = next(i for i, line in enumerate(shown) if line.startswith(told[:5]))
                    self.assertEqual(shown[first - 1].split()[-1], "conversation")
                    self.assertTrue(" ".join(shown[first:]).startswith(told), shown)
                    self.assertTrue(all(len(line) < columns for line in shown[first:-1]), shown)
                    self.assertEqual(terminal.leave(), 0)

    def test_reasoning_at_the_margin(self):
        """What is told of it is laid out behind what was said before it, and the answer goes on in a line of its own."""
        deltas = [{"content": "First a word "}, {"reasoning_content": "because"}, {"content": "then another conversation"}]
        with Peer(*(json.dumps({"choices": [{"delta": delta}]}) for delta in deltas), "[DONE]") as peer:
            for columns, lines in ((21, ["First a word", "[reasoning ... 7", "bytes]", "then another", "conversation"]),
                                   (32, ["First a word [reasoning ... 7", "bytes]", "then another conversation"]),
                                   (60, ["First a word [reasoning ... 7 bytes]", "then another conversation"])):  # fmt: skip
                terminal = Terminal(f"http://127.0.0.1:{peer.port}", columns=columns)
                terminal.until("leaves.\r\n.*> ")
                terminal.type("one\n")
                shown = [line.rstrip() for line in seen(terminal.until("conversation\r\n.*> "))]
                self.assertEqual(shown[1:-1], lines)
                self.assertEqual(terminal.leave(), 0)

    def test_another_answer_takes_another_seed(self):
        event = json.dumps({"choices": [{"delta": {"content": "and"}, "finish_reason": "stop"}]})
        for first in (5, 2**63 - 1):
            with Peer(event, "[DONE]") as peer:
                terminal = Terminal(f"http://127.0.0.1:{peer.port}", "--seed", first)
                terminal.until("> $")
                for said in ("one", "/retry", "/retry", "two"):
                    terminal.type(said + "\n")
                    terminal.until(r"and\r\n> $")
                self.assertEqual([body["seed"] for body in peer.bodies], [first, (first + 1) % 2**63, (first + 2) % 2**63, first])
                self.assertEqual([[m["content"] for m in body["messages"]] for body in peer.bodies], [["one"]] * 3 + [["one", "and", "two"]])
                self.assertEqual(terminal.leave(), 0)

    def test_reasoning_is_folded(self):
        """It is told of, and so are calls; the answer alone is written."""
        deltas = [{"role": "assistant", "content": "", "reasoning_content": "be"}, {"reasoning_content": "cause"}, {"content": "yes"},
                  {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}]},
                  {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}]  # fmt: skip
        with Peer(*(json.dumps({"choices": [{"delta": delta}]}) for delta in deltas), "[DONE]") as peer:
            chat = run("chat", f"http://127.0.0.1:{peer.port}", input="hi\n")
        self.assertEqual((chat.returncode, chat.stdout), (0, "yes\n"))
        self.assertIn("[reasoning ... 7 bytes]", chat.stderr)
        self.assertNotIn("because", chat.stderr)
        self.assertIn("[calls f] {}", chat.stderr)

    def test_reasoning_ends_before_what_follows_it(self):
        """A call, or an error, without text."""
        call = {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}}]}
        for then, told in ((call, "[reasoning ... 7 bytes]\n\n[calls f] {}"),
                           ({"error": {"message": "it broke"}}, "[reasoning ... 7 bytes]\ncoterie: it broke")):  # fmt: skip
            with Peer(json.dumps({"choices": [{"delta": {"reasoning_content": "because"}}]}), json.dumps(then), "[DONE]") as peer:
                self.assertIn(told, run("chat", f"http://127.0.0.1:{peer.port}", input="hi\n").stderr)

    def test_refusals(self):
        for where, word in [("http://127.0.0.1:9", "127.0.0.1"), ("https://127.0.0.1:9", "127.0.0.1"), ("/none", "/none"), ("http://", "URL")]:
            bad = run("chat", where, input="hi\n")
            self.assertEqual(bad.returncode, 1, where)
            self.assertIn(word, bad.stderr)
            self.assertEqual(len(bad.stderr.splitlines()), 1, bad.stderr)
        with Server("--api-key", "sk-1") as server:
            bad = run("chat", f"http://127.0.0.1:{server.port}", input="hi\n")
            self.assertEqual(bad.returncode, 1)
            self.assertRegex(bad.stderr, "401.*COTERIE_API_KEY, which is not set")
            bad = run("chat", f"http://127.0.0.1:{server.port}", input="hi\n", env=os.environ | {"COTERIE_API_KEY": "sk-2"})
            self.assertEqual(bad.returncode, 1)
            self.assertRegex(bad.stderr, "401.*COTERIE_API_KEY, and this one is another")
            env = os.environ | {"COTERIE_API_KEY": "sk-1"}
            good = run("chat", f"http://127.0.0.1:{server.port}", "-n", "4", input="hi\n", env=env)
            self.assertEqual((good.returncode, good.stderr), (0, ""))
        long = run("chat", MODEL, input="word " * 2000 + "\n")
        self.assertEqual(long.returncode, 1)
        self.assertIn("512", long.stderr)

    def test_closed_output(self):
        talk = subprocess.Popen([PROGRAM, "chat", MODEL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        talk.stdout.close()
        _, said = talk.communicate(b"hi\n" * 3, timeout=SECONDS)
        self.assertEqual(talk.returncode, 1, said)
        self.assertNotEqual(-talk.returncode, signal.SIGPIPE)


if __name__ == "__main__":
    unittest.main()
