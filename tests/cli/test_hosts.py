"""Ranks on hosts of their own (tools/hosts): texts and logits are those of threads, and what the interfaces of the hosts count
is what the ranks have counted, and a little more.

  test_hosts.py [all]     two and four hosts; all: one to eight, more texts, precisions, and ranks that are killed or stopped"""
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM, SOURCE = os.environ["COT_PROGRAM"], os.environ["COT_SOURCE"]
HOSTS, TINY = f"{SOURCE}/tools/hosts", f"{SOURCE}/models/tiny"
SKIPPED = 77
TEXT = "The town was quiet. A farmer has 12 hens and sells 3 of them. "
PROMPTS = [f"Question {number}: what is {number} + {number * 7}?" for number in range(20)]


def run(*words):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    # Open MPI has both a process and its parent set the process's group, and warns where the parent is late.
    said = [line for line in done.stderr.splitlines() if "plm:rsh: Warning: setpgid" not in line]
    assert done.returncode == 0 and not said, f"{words}: {done.returncode}, {done.stderr}"
    return done.stdout


def check_texts(ranks, prompts, link, tokens):
    words = ["run", TINY, "-n", str(tokens), "--precision", "fp32"]
    for prompt in prompts:
        words += ["-p", prompt]
    threads = run(PROGRAM, *words, "--ranks", str(ranks))
    found = run(HOSTS, str(ranks), "--link", link, PROGRAM, *words, "--fabric", "shmem", "--ranks", str(ranks))
    assert found == threads, f"{ranks} hosts: {found} for {threads}"


def check_logits(folder, ranks, precision, characters, most):
    """Those of data-parallel attention, and that so many times the counted bytes crossed the network at most."""
    (folder / "text").write_text((TEXT * 200)[:characters])
    words = ["eval", TINY, "--text", "text", "--attention", "dp", "--precision", precision, "--stats=stats", "-o"]
    os.chdir(folder)
    run(PROGRAM, *words, "threads", "--ranks", str(ranks))
    run(HOSTS, str(ranks), "--counters", "counters", "oshrun", "-np", str(ranks), PROGRAM, *words, "hosts")
    assert Path("threads").read_bytes() == Path("hosts").read_bytes(), f"{ranks} ranks, {precision}: other logits"
    phases = json.loads(Path("stats").read_text())["phases"]
    counted = sum(sum(map(sum, phase["bytes"])) for phase in phases.values())
    crossed = sum(host["out_bytes"] for host in json.loads(Path("counters").read_text()))
    print(f"{ranks} ranks, {precision}: {counted} bytes were put, {crossed} crossed the interfaces, {crossed / counted:.3f} times")
    assert 1 <= crossed / counted <= most, crossed / counted


def ranks_of(mark):
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


def check_fault(folder, draw, number, ranks=4, timeout=3):
    """While it generates, a rank on a host of its own is stopped or killed: the others say which, and all end."""
    mark, victim, what = f"{os.getpid()}.{number}", draw.randrange(ranks), (signal.SIGSTOP, signal.SIGKILL)[number % 3 == 2]
    out, err = folder / "out", folder / "err"
    with open(out, "wb") as to, open(err, "wb") as complaints:
        program = subprocess.Popen(
            [HOSTS, str(ranks), "--link", "125MB/s,0.1ms", PROGRAM, "run", TINY, *["-p", "town"] * 20, "-n", "400", "--ignore-eos",
             "--fabric", "shmem", "--ranks", str(ranks), "--timeout", str(timeout)],
            stdin=subprocess.DEVNULL, stdout=to, stderr=complaints, env={**os.environ, "COT_VICTIMS": mark})  # fmt: skip
    while out.stat().st_size < 20 and program.poll() is None:
        time.sleep(0.01)
    time.sleep(draw.uniform(0, 0.3))
    os.kill(ranks_of(mark)[victim], what)
    status = program.wait(20 * timeout)
    said = [line for line in err.read_text().splitlines() if "plm:rsh: Warning: setpgid" not in line]
    told = f"coterie: rank {victim} on host{victim} did not answer in"
    assert status == 1 and said and all(line.startswith(told) for line in said), f"{what} to rank {victim}: {status}, {said}"
    assert not ranks_of(mark), "a rank is left"


def main():
    if "COT_OSHRUN" not in os.environ:
        print("SKIPPED: this build has no ranks over OpenSHMEM")
        return SKIPPED
    if subprocess.run([HOSTS, "1", "true"]).returncode != 0:
        print("SKIPPED: this system makes no hosts to test with")
        return SKIPPED
    with tempfile.TemporaryDirectory() as name:
        if sys.argv[1:] == ["all"]:
            for ranks in (1, 2, 4, 8):
                check_texts(ranks, PROMPTS, "125MB/s,0.1ms", 16)
                if ranks > 1:
                    # With four ranks rows of fp32 are 64 KB or more from one to another in each layer of a step.
                    check_logits(Path(name), ranks, "fp32", 12000, 1.1 if ranks <= 4 else 1.3)
                    check_logits(Path(name), ranks, "bf16", 12000, 1.3)
            seed = int(os.environ.get("COT_SEED", time.time_ns()))
            print(f"COT_SEED={seed}", flush=True)
            draw = random.Random(seed)
            for number in range(12):
                check_fault(Path(name), draw, number)
        else:
            check_texts(2, PROMPTS[:2], "12.5MB/s,0.5ms", 6)
            check_logits(Path(name), 4, "fp32", 4000, 1.15)
    return 0


if __name__ == "__main__":
    sys.exit(main())
