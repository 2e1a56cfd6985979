"""Ranks that are killed or stopped at random moments of a run: all others end in time, one line names the right one, and
nothing stays behind.

  test_faults.py [TIMES]     6

COT_FABRIC (processes) and COT_TIMEOUT (seconds, 1) say of what and how patient; COT_SEED repeats what was drawn."""
import ctypes
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM, SOURCE = os.environ["COT_PROGRAM"], os.environ["COT_SOURCE"]
FABRIC = os.environ.get("COT_FABRIC", "processes")
TIMEOUT = float(os.environ.get("COT_TIMEOUT", "1"))
RANKS, TOKENS = 4, 100
WAYS = [[], ["--threads", "1"], ["--threads", "2"], ["--op", "bulk", "--attention", "dp"]]
SHARED = Path("/dev/shm")
PR_SET_CHILD_SUBREAPER = 36


def children_of(process):
    try:
        return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


# How the processes of the ranks that have begun are found, in their order, by what the program is.
RANKS_OF = {"processes": lambda process: [process, *children_of(process)]}


def lives(process):
    """Whether it is there, stopped ones included, zombies not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_until(done, seconds):
    """Whether that comes within so many seconds. Those in which this process did not run, as when all is stopped, are none."""
    passed, last = 0.0, time.monotonic()
    while not done():
        if passed > seconds:
            return False
        time.sleep(0.01)
        now = time.monotonic()
        passed, last = passed + min(now - last, 0.1), now
    return True


def reap():
    """What was left to this process by parents that ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


class Run:
    def __init__(self, folder, way):
        self.out, self.err = folder / "out", folder / "err"
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.program = subprocess.Popen(
                [PROGRAM, "run", f"{SOURCE}/models/tiny", "-p", "The town was", "-n", str(TOKENS), "--ignore-eos", "--ranks", str(RANKS),
                 "--fabric", FABRIC, "--timeout", str(TIMEOUT), *way],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder, env={**os.environ, "TMPDIR": str(folder)},
                start_new_session=True)  # fmt: skip

    def says(self):
        return self.err.read_text()

    def wrote(self):
        return self.out.read_bytes()


class Case:
    """One fault: a signal that rank `victim` gets so many seconds after the begin of the run, or of a part of its text."""

    def __init__(self, number, draw, answers):
        self.signal = (signal.SIGKILL, signal.SIGSTOP)[number % 2]
        self.victim = 0 if number % 6 < 2 else draw.randrange(1, RANKS)
        self.way = draw.choice(WAYS)
        self.bytes = int(draw.choice([0, 0, *[draw.random()] * 7, 1]) * len(answers[tuple(self.way)]))
        self.after = draw.uniform(0, 0.2 if self.bytes == 0 else 0.02)

    def __str__(self):
        way = " ".join(self.way) or "a run"
        return f"signal {self.signal:d} to rank {self.victim}, {self.after:.4f} s after {self.bytes} bytes of {way}"

    def expected(self):
        if self.signal == signal.SIGSTOP:
            return f"coterie: rank {self.victim} did not answer"
        how = "was killed by signal 9" if self.victim else "ended"
        return f"coterie: rank {self.victim} {how}"

    def check(self, folder, answers):
        run = Run(folder, self.way)
        try:
            return self.follow(run, answers[tuple(self.way)])
        finally:
            if run.program.poll() is None:
                os.killpg(run.program.pid, signal.SIGKILL)
                run.program.wait()

    def follow(self, run, answer):
        """What the fault came to, in a word; AssertionError: not what it should."""
        while len(run.wrote()) < self.bytes and run.program.poll() is None:
            time.sleep(0.001)
        time.sleep(self.after)
        ranks = RANKS_OF[FABRIC](run.program.pid)
        if run.program.poll() is not None or self.victim >= len(ranks):
            run.program.wait()
            assert run.program.returncode == 0 and run.wrote() == answer and not run.says(), run.says()
            return "missed"
        victim = ranks[self.victim]
        os.kill(victim, self.signal)

        def others_ended():
            for process in RANKS_OF[FABRIC](run.program.pid):
                if process not in ranks:
                    ranks.append(process)  # of a launch that was under way
            if victim != run.program.pid:
                run.program.poll()
            return not any(lives(process) for process in ranks if process != victim)

        alone = len(ranks) == 1 and self.victim == 0  # there is nobody yet, or nobody any more, to tell
        assert alone or wait_until(others_ended, 2 * TIMEOUT), f"others live after {2 * TIMEOUT} s: '{run.says()}'"
        said = run.says()
        if victim == run.program.pid:
            os.kill(victim, signal.SIGCONT)
        run.program.wait()
        reap()
        left = [process for process in ranks if lives(process)]
        assert not left, f"processes {left} live"
        if run.wrote() == answer and not said and run.program.returncode in (0, -signal.SIGKILL):
            return "too late"  # it was needed no more
        if alone and not said and run.program.returncode == -signal.SIGKILL:
            return "alone"
        assert said.startswith(self.expected()) and said.count("\n") == 1, f"'{said}'"
        assert run.program.returncode in ((-signal.SIGKILL,) if self.signal == signal.SIGKILL and not self.victim else (1,))
        if self.signal == signal.SIGSTOP and not self.victim:  # it learns that, too
            assert run.says()[len(said):].startswith("coterie: rank "), run.says()
        return "named"


class Answers:
    """What each way writes, by a run of its own that nothing happens to."""

    def __init__(self, folder):
        self.folder, self.known = folder, {}

    def __getitem__(self, way):
        if way not in self.known:
            run = Run(self.folder, way)
            assert run.program.wait() == 0 and not run.says(), run.says()
            self.known[way] = run.wrote()
        return self.known[way]


def check_pause(folder, answers):
    """All stopped for longer than the time-out, as by Ctrl-Z: none of them is to blame."""
    run = Run(folder, ())
    assert wait_until(lambda: len(RANKS_OF[FABRIC](run.program.pid)) == RANKS, 60)
    os.killpg(run.program.pid, signal.SIGSTOP)
    time.sleep(1.5 * TIMEOUT)
    os.killpg(run.program.pid, signal.SIGCONT)
    run.program.wait()
    assert run.program.returncode == 0 and run.wrote() == answers[()] and not run.says(), run.says()


def main():
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    seed = int(os.environ.get("COT_SEED", time.time_ns()))
    print(f"COT_SEED={seed}", flush=True)
    draw = random.Random(seed)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    shared = sorted(SHARED.iterdir()) if SHARED.is_dir() else []
    found, wrong = {}, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        answers = Answers(folder)
        check_pause(folder, answers)
        for number in range(times):
            case = Case(number, draw, answers)
            try:
                what = case.check(folder, answers)
            except AssertionError as error:
                what, wrong = "wrong", wrong + 1
                print(f"{case}: {error}", flush=True)
            found[what] = found.get(what, 0) + 1
        left = sorted(path.name for path in folder.iterdir() if path.name not in ("out", "err"))
        assert not left, left
    mine = [path for path in (sorted(SHARED.iterdir()) if SHARED.is_dir() else []) if path not in shared]
    mine = [path for path in mine if path.exists() and path.owner() == Path(f"/proc/{os.getpid()}").owner()
            and "cot" in path.name]  # fmt: skip
    assert not mine, mine
    print(", ".join(f"{count} {what}" for what, count in sorted(found.items())))
    assert 3 * found.get("named", 0) >= times, "most faults came when nobody was there any more"
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
