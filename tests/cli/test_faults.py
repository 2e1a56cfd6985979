"""Ranks that are killed or stopped at random moments of a run: all others end in time, one line names the right one, and
nothing stays behind.

  test_faults.py [TIMES]     6

COT_FABRIC (processes, shmem, or hosts: shmem with each rank on one of tools/hosts) and COT_TIMEOUT (seconds, 1) say of what and
how patient; COT_SEED repeats what was drawn."""
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
HOSTS = [f"{SOURCE}/tools/hosts", str(RANKS), "--link", "125MB/s,0.1ms"]
WAYS = [[], ["--threads", "1"], ["--threads", "2"], ["--op", "bulk", "--attention", "dp"]]
SHARED = Path("/dev/shm")
PR_SET_CHILD_SUBREAPER = 36
SKIPPED = 77


def children_of(process):
    try:
        return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


def started_ranks(mark):
    """The processes of those that were started with this in their environment, by rank."""
    found = {}
    for process in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            words = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            program = os.readlink(f"/proc/{process}/exe")
        except OSError:
            continue
        rank = [word for word in words if word.startswith(b"OMPI_COMM_WORLD_RANK=")]
        if f"COT_VICTIMS={mark}".encode() in words and rank and os.path.samefile(program, PROGRAM):
            found[int(rank[0].partition(b"=")[2])] = process
    return found


def lives(process):
    """Whether it is there, stopped ones included, zombies not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def hit(process, number):
    """Whether there was such a process to be sent that signal."""
    try:
        if process is not None:
            os.kill(process, number)
        return process is not None
    except ProcessLookupError:
        return False


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
    number = 0

    def __init__(self, folder, way):
        Run.number += 1
        self.mark = f"{os.getpid()}.{Run.number}"
        self.forked = []
        self.out, self.err = folder / "out", folder / "err"
        fabric, first = ("shmem", HOSTS) if FABRIC == "hosts" else (FABRIC, [])
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.program = subprocess.Popen(
                [*first, PROGRAM, "run", f"{SOURCE}/models/tiny", "-p", "The town was", "-n", str(TOKENS), "--ignore-eos", "--ranks", str(RANKS),
                 "--fabric", fabric, "--timeout", str(TIMEOUT), *way],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder, env={**os.environ, "TMPDIR": str(folder), "COT_VICTIMS": self.mark},
                start_new_session=True)  # fmt: skip

    def ranks(self):
        """The processes of the ranks that have begun, by rank. Ranks are forked one after the other, and what the program starts
        once it has them all is none: AddressSanitizer looks for leaks in a process of its own as the program ends."""
        if FABRIC != "processes":
            return started_ranks(self.mark)
        new = [process for process in children_of(self.program.pid) if process not in self.forked]
        self.forked += new[: RANKS - 1 - len(self.forked)]
        return dict(enumerate([self.program.pid, *self.forked]))

    def wait_for(self, done, seconds=float("inf")):
        """Until that holds, it has ended or so many seconds have passed. It sees each rank begin, if its process is there to see."""
        end = time.monotonic() + seconds
        while not done() and self.program.poll() is None and time.monotonic() < end:
            self.ranks()
            time.sleep(0.001)

    def says(self):
        """But for what Open MPI warns of where a process sets its group before its parent does, and what carries messages."""
        known = "plm:rsh: Warning: setpgid", "note: messages between hosts are carried by tcp/eth0"
        return "".join(line for line in self.err.read_text().splitlines(True) if not any(words in line for words in known))

    def wrote(self):
        return self.out.read_bytes()


class Case:
    """One fault: a signal that rank `victim` gets so many seconds after the begin of the run, or of a part of its text."""

    longest = [0.0]  # that others took to end

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
        host = f" on host{self.victim}" if FABRIC == "hosts" else ""
        if self.signal == signal.SIGSTOP:
            return f"coterie: rank {self.victim}{host} did not answer"
        if FABRIC == "hosts":  # where only silence tells
            return f"coterie: rank {self.victim} on host{self.victim} "
        how = "was killed by signal 9" if self.victim and FABRIC == "processes" else "ended"
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
        run.wait_for(lambda: len(run.wrote()) >= self.bytes)
        run.wait_for(lambda: FABRIC == "processes" or self.victim in run.ranks())
        run.wait_for(lambda: False, self.after)
        ranks = run.ranks()
        victim = ranks.get(self.victim)
        if run.program.poll() is not None or not hit(victim, self.signal):
            run.program.wait()
            assert run.program.returncode == 0 and run.wrote() == answer and not run.says(), run.says()
            return "missed"

        def others_ended():
            ranks.update({rank: process for rank, process in run.ranks().items() if rank != self.victim})  # begun since
            if victim != run.program.pid:
                run.program.poll()
            return not any(lives(process) for process in ranks.values() if process != victim)

        alone = len(ranks) == 1 and victim == run.program.pid  # there is nobody yet, or nobody any more, to tell
        began = time.monotonic()
        assert alone or wait_until(others_ended, 2 * TIMEOUT), f"others live after {2 * TIMEOUT} s: '{run.says()}'"
        self.longest[0] = max(self.longest[0], time.monotonic() - began)
        said = run.says()
        if victim == run.program.pid:
            os.kill(victim, signal.SIGCONT)
        run.program.wait()
        reap()
        if FABRIC != "processes":
            said = run.says()  # through those that started it
        left = [process for process in ranks.values() if lives(process)]
        assert not left, f"processes {left} live"
        if run.wrote() == answer and not said and run.program.returncode in (0, -signal.SIGKILL):
            return "too late"  # it was needed no more
        if alone and not said and run.program.returncode == -signal.SIGKILL:
            return "alone"
        lines = said.splitlines()
        unborn = (  # lost before it could tell where it is, or that it is there
            f"coterie: rank {self.victim} did not answer at the start",
            f"coterie: rank {self.victim} did not begin within ",
        )
        if FABRIC != "processes" and self.signal == signal.SIGSTOP:  # who ends it lets it go on first, and it may come to speak
            lines = [line for line in lines if not (line.startswith(f"coterie: rank {self.victim}") and " given up by the others " in line)]
        told = f"status {run.program.returncode}, {len(run.wrote())} bytes of {len(answer)}, '{said}'"
        assert lines and all(line.startswith((self.expected(), *unborn)) for line in lines), told
        assert len(lines) == 1 or (FABRIC != "processes" and not self.victim), f"'{said}'"
        dies = self.signal == signal.SIGKILL and victim == run.program.pid
        assert run.program.returncode == (-signal.SIGKILL if dies else 1), run.program.returncode
        if self.signal == signal.SIGSTOP and victim == run.program.pid:  # it learns that, too
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
    assert wait_until(lambda: len(run.ranks()) == RANKS, 60)
    processes = {run.program.pid, *run.ranks().values()}
    while more := {child for process in processes for child in children_of(process)} - processes:
        processes |= more
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for process in processes:
            os.kill(process, number)
        time.sleep(1.5 * TIMEOUT if number == signal.SIGSTOP else 0)
    run.program.wait()
    assert run.program.returncode == 0 and run.wrote() == answers[()] and not run.says(), run.says()


def main():
    if FABRIC != "processes" and "COT_OSHRUN" not in os.environ:
        print("SKIPPED: this build has no ranks over OpenSHMEM")
        return SKIPPED
    if FABRIC == "hosts" and subprocess.run([HOSTS[0], "1", "true"]).returncode != 0:
        print("SKIPPED: this system makes no hosts to test with")
        return SKIPPED
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
            and ("cot" in path.name or FABRIC != "processes")]  # fmt: skip
    assert not mine, mine
    print(", ".join(f"{count} {what}" for what, count in sorted(found.items())), f"; others ended within {Case.longest[0]:.2f} s")
    assert 3 * found.get("named", 0) >= times, "most faults came when nobody was there any more"
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
