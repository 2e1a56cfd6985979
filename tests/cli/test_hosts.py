"""Ranks on hosts of their own (tools/hosts): texts and logits are those of threads, and what the interfaces of the hosts count
is what the ranks have counted, and a little more.

  test_hosts.py [all]     two and four hosts; all: one to eight, more texts and precisions, and golden checkpoints over oshrun
  test_hosts.py serve     on the first of several hosts: asks a server over two of them, and prints what came of it"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

PROGRAM, SOURCE = os.environ["COT_PROGRAM"], os.environ["COT_SOURCE"]
HOSTS, TINY = f"{SOURCE}/tools/hosts", f"{SOURCE}/models/tiny"
SHARED = os.environ.get("COT_SHARED", f"{SOURCE}/../shared")
SKIPPED = 77
TEXT = "The town was quiet. A farmer has 12 hens and sells 3 of them. "
PROMPTS = [f"Question {number}: what is {number} + {number * 7}?" for number in range(20)]

CARRIED = ["note: messages between hosts are carried by tcp/eth0"]
# What oshrun may need to be told: that it runs as root, and more ranks than cores.
ALLOWED = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def run(*words, expected=()):
    """What that writes to standard output; to the other it writes the expected lines."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env={**os.environ, **ALLOWED})
    # Open MPI has both a process and its parent set the process's group, and warns where the parent is late.
    said = [line for line in done.stderr.splitlines() if "plm:rsh: Warning: setpgid" not in line]
    assert done.returncode == 0 and said == list(expected), f"{words}: {done.returncode}, {done.stderr}"
    return done.stdout


def check_texts(ranks, prompts, link, tokens):
    words = ["run", TINY, "-n", str(tokens), "--precision", "fp32"]
    for prompt in prompts:
        words += ["-p", prompt]
    threads = run(PROGRAM, *words, "--ranks", str(ranks))
    expected = CARRIED if ranks > 1 else []
    found = run(HOSTS, str(ranks), "--link", link, PROGRAM, *words, "--fabric", "shmem", "--ranks", str(ranks), expected=expected)
    assert found == threads, f"{ranks} hosts: {found} for {threads}"


def serve():
    """Prints a text, the reasons why a stream ended during which the server was told to end, its exit status and what it said first."""
    server = subprocess.Popen([PROGRAM, "serve", TINY, "--fabric", "shmem", "--ranks", "2", "--precision", "fp32", "--port", "0"],
                              stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # fmt: skip
    said = []
    while not said or "/v1" not in said[-1]:
        said.append(server.stderr.readline().strip())
        assert said[-1], said

    def ask(**fields):
        body = json.dumps({"temperature": 0, "prompt": PROMPTS[0], **fields}).encode()
        request = urllib.request.Request(said[-1].split()[-1] + "/completions", body, {"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=60)

    text = json.load(ask(max_tokens=6))["choices"][0]["text"]
    events = []
    with ask(max_tokens=300, ignore_eos=True, stream=True) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                events.append(json.loads(line[6:])["choices"][0]["finish_reason"])
                if len(events) == 1:
                    server.terminate()
    server.stderr.read()
    print(json.dumps({"text": text, "events": len(events), "reasons": [reason for reason in events if reason], "status": server.wait(),
                      "notes": said[:-1]}))


def check_server():
    """A server over two hosts answers as threads do, says what carries its messages, and ends when it has answered."""
    found = json.loads(run(HOSTS, "2", "--link", "125MB/s,0.1ms", sys.executable, "-B", __file__, "serve"))
    text = run(PROGRAM, "run", TINY, "-n", "6", "--precision", "fp32", "--temperature", "0", "-p", PROMPTS[0])
    assert found.pop("text") + "\n" == text, (found, text)
    assert found.pop("events") > 10 and found == {"reasons": ["length"], "status": 0, "notes": CARRIED}, found


def check_uneven_hosts():
    """Hosts that have unlike numbers of ranks agree about threads, which nobody gave."""
    words = ["run", TINY, "-n", "4", "--precision", "fp32", "-p", PROMPTS[0], "--ranks", "3"]
    found = run(HOSTS, "2", PROGRAM, *words, "--fabric", "shmem", expected=CARRIED)
    assert found == run(PROGRAM, *words), found


def check_absent_module(folder):
    """A host without the module says so itself, as no other can."""
    shutil.copy(PROGRAM, folder / "coterie")
    words = ["run", TINY, "-p", "A"]
    done = subprocess.run([HOSTS, "2", "oshrun", "-np", "1", PROGRAM, *words, ":", "-np", "1", folder / "coterie", *words],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, env={**os.environ, **ALLOWED})  # fmt: skip
    said = [line for line in done.stderr.splitlines() if line.startswith("coterie: ")]
    needs = "coterie: rank 1 (host1): ranks over OpenSHMEM need libcoterie-shmem.so"
    assert done.returncode and len(said) == 1 and said[0].startswith(needs), done.stderr


def check_maker(folder):
    """tools/hosts itself: what is wrong is a line, and signals leave nothing behind."""
    ask = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    done = subprocess.run([HOSTS, "1", "--slots", "0", "true"], **ask)
    assert done.returncode == 2 and done.stderr.startswith("Hosts of their own"), done
    done = subprocess.run([HOSTS, "--enter", "10.77.0.3", "true"], env={**os.environ, "COT_HOSTS": "1 2"}, **ask)
    line = "hosts: no host has the address '10.77.0.3': there are 10.77.0.1, 10.77.0.2\n"
    assert (done.returncode, done.stderr) == (255, line), done
    # Ctrl-C while hosts are made
    (folder / "ip").write_text(f'#!/bin/sh\nkill -INT $PPID\nexec {shutil.which("ip")} "$@"\n')
    (folder / "ip").chmod(0o755)
    done = subprocess.run([HOSTS, "2", "true"], env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}, **ask)
    assert (done.returncode, done.stderr) == (130, ""), done
    # a terminal that is closed
    maker = subprocess.Popen([HOSTS, "1", "sh", "-c", "echo $$; exec sleep 1000"], stdout=subprocess.PIPE, text=True)
    command = int(maker.stdout.readline())
    maker.send_signal(signal.SIGHUP)
    assert maker.wait() == 128 + signal.SIGHUP, maker.returncode
    maker.stdout.close()
    while Path(f"/proc/{command}").exists():  # until who inherits it has seen its end
        time.sleep(0.01)


# In place of the barrier: of three ranks the last one ends within it, and the second comes late, so that it passes it and the
# first, which the last one has to answer, does not.
BARRIER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
static void *ends(void *unused) { usleep(300000); raise(SIGKILL); return unused; }
void shmem_barrier_all(void)
{
    static int times;
    pthread_t thread;
    void (*barrier)(void) = (void (*)(void))dlsym(dlopen("liboshmem.so.40", RTLD_NOW | RTLD_NOLOAD), "shmem_barrier_all");
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (!times++ && *rank == '2') pthread_create(&thread, 0, ends, 0);
    if (times == 1 && *rank == '1') sleep(1);
    barrier();
}
"""


def check_lost_while_they_meet(folder):
    """Not one who has not come to where the others are, since it waits for the one that is lost."""
    (folder / "barrier.c").write_text(BARRIER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "barrier.so", folder / "barrier.c", "-ldl", "-lpthread"], check=True)
    words = ["run", TINY, "-p", "A", "--fabric", "shmem", "--ranks", "3", "--timeout", "3"]
    done = subprocess.run([HOSTS, "3", "env", f"LD_PRELOAD={folder}/barrier.so", PROGRAM, *words],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, env={**os.environ, **ALLOWED})  # fmt: skip
    line = "coterie: rank 2 on host2 did not answer at the start within 3.0 s\n"
    assert (done.returncode, done.stderr) == (1, line), done


def check_logits(folder, ranks, precision, characters, most):
    """Those of data-parallel attention, and that so many times the counted bytes crossed the network at most."""
    (folder / "text").write_text((TEXT * 200)[:characters])
    words = ["eval", TINY, "--text", "text", "--attention", "dp", "--precision", precision, "--stats=stats", "-o"]
    os.chdir(folder)
    run(PROGRAM, *words, "threads", "--ranks", str(ranks))
    run(HOSTS, str(ranks), "--counters", "counters", "oshrun", "-np", str(ranks), PROGRAM, *words, "hosts", expected=CARRIED)
    assert Path("threads").read_bytes() == Path("hosts").read_bytes(), f"{ranks} ranks, {precision}: other logits"
    phases = json.loads(Path("stats").read_text())["phases"]
    counted = sum(sum(map(sum, phase["bytes"])) for phase in phases.values())
    crossed = sum(host["out_bytes"] for host in json.loads(Path("counters").read_text()))
    print(f"{ranks} ranks, {precision}: {counted} bytes were put, {crossed} crossed the interfaces, {crossed / counted:.3f} times")
    assert 1 <= crossed / counted <= most, crossed / counted


def check_carriers(ranks, slots, expected):
    """What UCX has chosen is told."""
    words = ["bench", "fabric", "--bytes", "8", "--seconds", "0.001", "--json", "--fabric", "shmem", "--ranks", str(ranks)]
    rows = json.loads(run(HOSTS, str(ranks // slots), "--slots", str(slots), PROGRAM, *words))
    assert {row["carriers"] for row in rows} == {expected}, rows


def check_golden(folder, ranks):
    """The logits and routing of other people's checkpoints, which threads' are held against (engine/test_golden)."""
    models = sorted(path.parent for path in Path(SHARED, "golden").glob("*/expected.safetensors"))
    print(f"{len(models)} golden checkpoints" if models else "SKIPPED: there are no golden checkpoints")
    for model in models:
        for attention in ("dp", "tp"):
            words = ["eval", model, "--tokens", model / "expected.safetensors", "--precision", "fp32", "--attention", attention, "-o"]
            run(PROGRAM, *words, folder / "threads", "--ranks", str(ranks))
            run("oshrun", "-np", str(ranks), PROGRAM, *words, folder / "oshrun")
            assert (folder / "threads").read_bytes() == (folder / "oshrun").read_bytes(), f"{model}, {attention}: other logits"


def main():
    if sys.argv[1:] == ["serve"]:
        serve()
        return 0
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
                    check_logits(Path(name), ranks, "bf16", 12000, 1.1 if ranks <= 4 else 1.3)
            check_golden(Path(name), 4)
            check_lost_while_they_meet(Path(name))
        else:
            check_carriers(2, 1, "tcp/eth0")
            check_texts(2, PROMPTS[:2], "12.5MB/s,0.5ms", 6)
            check_uneven_hosts()
            check_server()
            check_absent_module(Path(name))
            check_maker(Path(name))
            check_logits(Path(name), 4, "bf16", 4000, 1.1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
