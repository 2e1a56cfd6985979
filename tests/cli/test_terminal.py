"""What only a terminal sees: lines of progress, colours, completion by zsh."""

import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import tempfile
import time
import unittest

PROGRAM = os.environ["COT_PROGRAM"]
SOURCE = pathlib.Path(os.environ["COT_SOURCE"])


class Terminal:
    """A program on a pseudo-terminal."""

    def __init__(self, command, folder, **environment):
        unset = ("NO_COLOR", "TERM")
        env = {k: v for k, v in os.environ.items() if k not in unset}
        main, side = pty.openpty()
        self.run = subprocess.Popen(
            command, cwd=folder, env={**env, "TERM": "xterm", **environment}, stdin=side, stdout=side, stderr=side,
            start_new_session=True, close_fds=True)
        os.close(side)
        self.main, self.text = main, ""

    def read(self, seconds=60, until=None):
        """What it writes until it ends, or until a pattern is there."""
        end = time.monotonic() + seconds
        while not (until and re.search(until, self.text)):
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.main], [], [], left)[0]:
                raise AssertionError(f"waited {seconds} s for {until or 'the end'}, read {self.text!r}")
            try:
                data = os.read(self.main, 65536)
            except OSError:
                break
            if not data:
                break
            self.text += data.decode(errors="replace")
        return self.text

    def type(self, keys):
        self.text = ""
        os.write(self.main, keys.encode())

    def close(self):
        if self.run.poll() is None and not select.select([self.main], [], [], 0)[0]:
            self.run.kill()
        os.close(self.main)
        return self.run.wait()


def piped(command, folder, **environment):
    """What a command writes where no terminal is: (stdout, stderr)."""
    run = subprocess.run(command, cwd=folder, env={**os.environ, "TERM": "xterm", **environment}, capture_output=True,
                         text=True, stdin=subprocess.DEVNULL, timeout=300)
    return run.stdout, run.stderr


def on_terminal(command, folder, **environment):
    """What it writes on one, as it comes."""
    terminal = Terminal(command, folder, **environment)
    text = terminal.read(seconds=300)
    terminal.close()
    return text


def screen(text):
    """What is left to be seen: a carriage return begins the line anew, and \\033[K wipes the rest of it."""
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        shown = ""
        for part in line.split("\r"):
            kept, *wiped = part.split("\033[K")
            shown = kept + ("" if wiped else shown[len(kept):])
            shown += "".join(wiped)
        lines.append(shown)
    return "\n".join(lines)


class WithTrace(unittest.TestCase):
    """With a routing trace of a short text, which leaves experts unused."""

    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.holder.name)
        (cls.folder / "text").write_text("The town was quiet. " * 20)
        (cls.folder / "long").write_text("The town was quiet. " * 6000)
        for words in (["profile", SOURCE / "models/tiny", "--text", "text", "-o", "trace"],
                      ["trace", "convert", "trace", "--counts", "-o", "counts"]):
            subprocess.run([PROGRAM, *map(str, words)], cwd=cls.folder, check=True, stderr=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()


class Progress(WithTrace):
    """Work that takes seconds everywhere, or tells how much of it is done: that is shown at once."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        lines = (f"{layer},{expert},{pow(3, 256 * layer + expert, 65537) ** 2 // 65537}\n" for layer in range(300)
                 for expert in range(256))
        (cls.folder / "load.csv").write_text("layer,expert,tokens\n" + "".join(lines))
        subprocess.run([PROGRAM, "profile", SOURCE / "models/tiny", "--text", "long", "-o", "many"], cwd=cls.folder,
                       check=True, stderr=subprocess.DEVNULL)

    COMMANDS = {
        f"run {SOURCE / 'models/tiny'} -p a -n 8 --stats": r"loading \[\.*\]   0 %",
        "predict --evaluate many --ranks 2": r"evaluating \[\.*\]   0 %",
        "place --load load.csv --topology fattree:ranks=64 --slots 2560": "placing, [1-9]",
        "bench roof --threads 1": "measuring roofs, [1-9]",
        "bench moe --shape 256,128,8,2 --tokens 16 --repeat 5": r"measuring roofs \[\.*\]   0 %, [1-9]",
        "group trace --split 1 --seconds 1.5": r"coterie \[#+\.*\] +[0-9]+ %, 1 s",
    }

    def test_is_told(self):
        """Work of seconds tells what it does and for how long, and leaves no trace of that."""
        for words, told in self.COMMANDS.items():
            with self.subTest(words):
                text = on_terminal([PROGRAM, *words.split()], self.folder, NO_COLOR="1")
                self.assertRegex(text, "\r" + told)
                left = screen(text)
                self.assertNotIn("\033", left)
                self.assertNotRegex(left, "measuring|loading|evaluating|placing|%, [1-9]|\\[[#.]")
                self.assertGreater(left.count("\n"), 4)

    def test_texts(self):
        """What reads a text through a model, too."""
        model = SOURCE / "models/tiny"
        for words, told in {f"profile {model} --text text -o again": r"profiling \[",
                            f"eval {model} --text long --threads 1 --precision fp32": "evaluating, [1-9]"}.items():  # fmt: skip
            with self.subTest(words):
                text = on_terminal([PROGRAM, *words.split()], self.folder, NO_COLOR="1")
                self.assertRegex(text, "\r" + told)
                self.assertNotRegex(screen(text), "\033|profiling|evaluating|%, [1-9]")

    def test_nowhere_else(self):
        """Neither in a file nor on a terminal that cannot; of every second command, each in one of the two."""
        for dumb, words in enumerate(list(self.COMMANDS)[1::2]):
            with self.subTest(words):
                command = [PROGRAM, *words.split()]
                text = on_terminal(command, self.folder, TERM="dumb") if dumb % 2 else "".join(
                    piped(command, self.folder))
                self.assertNotRegex(text.replace("\r\n", "\n"),
                                    r"[\r\033]|measuring roofs|loading|evaluating|placing")

    def test_model(self):
        text = on_terminal([PROGRAM, *"bench model --layers 1 --repeat 1 --prompt-tokens 8 --decode-tokens 1".split()],
                           self.folder)
        for told in (r"drawing weights \[#", r"measuring \[\.+\]   0 %", r"measuring \[#+\.+\]  50 %, [1-9]"):
            self.assertRegex(text, told)

    def test_notes_have_lines_of_their_own(self):
        text = screen(on_terminal([PROGRAM, "group", "counts", "--seconds", "0.5"], self.folder))
        self.assertRegex(text, "(?m)^coterie: note: counts have no sequences.*learnt from$")


class Colour(WithTrace):
    HELP = ["help", "run"]

    def test_headings(self):
        """Bold on a terminal alone; what is written is the same otherwise."""
        for words, heading in {"help run": "examples:", "--help": "commands:", "bench --help": "commands:",
                               "trace info trace": "layer    peak/mean"}.items():
            with self.subTest(words):
                command = [PROGRAM, *words.split()]
                bold = on_terminal(command, self.folder)
                out, err = piped(command, self.folder)
                self.assertRegex(bold, "\033\\[1m\\s*" + heading)
                self.assertEqual(bold.count("\033[1m"), bold.count("\033[0m") - bold.count("\033[33m"))
                self.assertNotIn("\033", out + err)
                self.assertIn(out, re.sub("\033\\[[0-9]*m", "", screen(bold)))

    def test_no_color(self):
        for environment, coloured in (({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False),
                                      ({"TERM": ""}, False), ({}, True)):
            with self.subTest(**environment):
                text = on_terminal([PROGRAM, *self.HELP], self.folder, **environment)
                self.assertEqual("\033[1m" in text, coloured)
                self.assertEqual("\033" in text, coloured)

    def test_warnings(self):
        command = [PROGRAM, "trace", "info", "trace"]
        self.assertRegex(on_terminal(command, self.folder), "coterie: \033\\[33mwarning: .*never used.*\033\\[0m\r\n")
        self.assertRegex(piped(command, self.folder)[1], "^coterie: warning: .*never used")

    def test_files(self):
        """A file stays plain though the other stream is a terminal."""
        for line in ("trace info trace", "help run", "run MODEL -p a --stats -n 1"):
            line = line.replace("MODEL", str(SOURCE / "models/tiny"))
            on_terminal(["sh", "-c", f"'{PROGRAM}' {line} >out"], self.folder)
            on_terminal(["sh", "-c", f"'{PROGRAM}' {line} 2>err"], self.folder)
            self.assertNotIn("\033", (self.folder / "out").read_text())
            self.assertNotIn("\033", (self.folder / "err").read_text())


@unittest.skipUnless(shutil.which("zsh"), "there is no zsh")
class Zsh(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        folder = pathlib.Path(self.folder.name)
        (folder / "model.txt").touch()
        (folder / "functions").mkdir()
        text = subprocess.run([PROGRAM, "completions", "zsh"], capture_output=True, text=True, check=True).stdout
        (folder / "functions" / "_coterie").write_text(text)
        self.zsh = Terminal(["zsh", "-f", "-i"], folder, PS1="ready> ", HOME=str(folder))
        self.addCleanup(self.zsh.close)
        self.zsh.type("unset zle_bracketed_paste; unsetopt PROMPT_SP AUTO_LIST; setopt AUTO_MENU; LISTMAX=1000; "
                      "fpath=($PWD/functions $fpath); autoload -U compinit; compinit -u -D; echo up''start\n")
        self.zsh.read(until="upstart")

    def completed(self, words):
        """The line that the words become: completed by a tab, then printed instead of run."""
        self.zsh.type(words + "\t\x01print -r -- '<<<\x05>>>'\n")
        text = self.zsh.read(seconds=20, until=r"\n<<<([^\r]*)>>>")
        return re.search(r"\n<<<([^\r]*)>>>", text)[1].strip()

    def test_completion(self):
        for words, line in {
            "coterie prof": "coterie profile",
            "coterie trace conv": "coterie trace convert",
            "coterie help topology dis": "coterie help topology distances",
            "coterie run --prec": "coterie run --precision",
            "coterie run --precision b": "coterie run --precision bf16",
            "coterie run --precision=f": "coterie run --precision=fp32",
            "coterie run mod": "coterie run model.txt",
            "coterie run -f mod": "coterie run -f model.txt",
            "coterie run m --max": "coterie run m --max-tokens",
            "coterie place --distance h": "coterie place --distance hops",
            "coterie place conv": "coterie place convert",
            "coterie topology distances --pl": "coterie topology distances --plot",
            "coterie bench moe --ranks mod": "coterie bench moe --ranks model.txt",
            "coterie run --ranks mod": "coterie run --ranks mod",
            "coterie completions z": "coterie completions zsh",
        }.items():
            with self.subTest(words):
                self.assertEqual(self.completed(words), line)


if __name__ == "__main__":
    if not shutil.which("zsh"):
        print("SKIPPED in part: there is no zsh to complete with")
    unittest.main()
