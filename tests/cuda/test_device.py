#!/usr/bin/env python3
"""bench/device without a device: its words, and programs in the place of its own that are right, wrong, or hang."""
import importlib.machinery
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BENCH = os.environ["COT_SOURCE"] + "/bench/device"
POINTS = """#!/bin/sh
case "$1 " in
"about "*) echo '{"name": "None", "capability": "9.0"}' ;;
"probe "*) echo '{"case": "small", "tokens": 1, "right": true}'; %s ;;
"bits "*) echo '{"case": "up to 32 rows", "tiles": 64, "right": true}' ;;
"routing "*) echo "{\\"experts\\": $2, \\"top_k\\": $3, \\"choices\\": []}" ;;
"faults "*) echo '{"fault": "a silent rank", "named": true}' ;;
"phases "*) echo '{"tokens": 32, "passes": 1, "phases": {"gate": 7000, "up": 177700}}' ;;
"timeline "*) echo '{"tokens": 32, "ns_timed": 3000, "tasks": [[0, 0, "up", 0, 1000], [1, 0, "gate", 500, 1500], [0, 0, "down", 1500, 2000]]}' ;;
"self-test "*) echo '{"case": "all", "tokens": 129, "right": true}'; %s ;;
"time "*) echo '{"tokens": 8, "ns": 1000, "bytes_least": 2000000, "flops": 3000000, "bytes_in_turn": 90, "cache_bytes": 20}'; %s ;;
esac
"""
ROOFS = """#!/bin/sh
echo '{"roof": "read", "bytes_per_second": 4e12}'
echo '{"roof": "cublas", "absent": "the toolkit has no cuBLAS"}'
"""


SANITIZER = """#!/bin/sh
[ "$1 $3 $4 $5" = "--tool --error-exitcode 99 --log-file" ] || exit 2
echo "$2" >"$6"
shift 6
"$@" || exit 99
"""


def run(*words, path=""):
    return subprocess.run([BENCH, *words], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
                          env={**os.environ, "PATH": path + os.environ["PATH"]})


def load():
    """bench/device as a module."""
    loader = importlib.machinery.SourceFileLoader("device", BENCH)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("device", loader))
    loader.exec_module(module)
    return module


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def parts_of(path):
    """Those of the points that are written so far."""
    try:
        with open(path) as points:
            return [json.loads(line)["part"] for line in points if line.endswith("\n")]
    except FileNotFoundError:
        return []


class Device(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def program(self, name, text):
        with open(f"{self.folder.name}/{name}", "w") as out:
            out.write(text)
        os.chmod(f"{self.folder.name}/{name}", 0o755)

    def bench(self, probe, timed, *words, points=POINTS, sanitizer=True):
        """With programs that end so; the run, and its points."""
        at = self.folder.name
        self.program("device_points", points % (probe, probe, timed))
        self.program("roofs", ROOFS)
        if sanitizer:
            self.program("compute-sanitizer", SANITIZER)
        done = run("--programs", at, "-o", f"{at}/out", *words, path=f"{at}:")
        self.assertNotIn("Traceback", done.stderr)
        with open(f"{at}/out/points.jsonl") as points:
            return done, [json.loads(line) for line in points]

    def test_built_for_a_device_that_is_not_here(self):
        """What a machine with a device builds, by the compiler that is at hand; the program starts, and finds none."""
        if not (nvcc := os.environ.get("COT_NVCC")):
            self.skipTest("COT_NVCC names no compiler")
        at = f"{self.folder.name}/out"
        built = subprocess.run([BENCH, "--build", "9", "-o", at], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                               env={**os.environ, "PATH": os.path.dirname(nvcc) + ":" + os.environ["PATH"]})
        with open(f"{at}/build.log") as log:
            self.assertEqual(built.returncode, 0, built.stderr + log.read())
        self.assertIn("built in ", built.stderr)
        programs = os.environ["COT_SOURCE"] + "/build/device"
        self.assertEqual(subprocess.run([f"{programs}/roofs", "starts"]).returncode, 0)
        said = subprocess.run([f"{programs}/device_points", "about"], capture_output=True, text=True)
        if said.returncode:
            self.assertRegex(said.stderr, "^device_points: .*NVIDIA driver.*\n$")

    def test_ended_from_outside(self):
        """By a machine whose time is up: what was measured is there, and nothing goes on."""
        parts = ["about", "roofs", "roofs", "latency"]
        with tempfile.TemporaryDirectory() as at:
            hang = f"echo $$ >{at}/new; mv {at}/new {at}/pid; exec sleep 60"
            for name, text in (("device_points", POINTS % ("true", "true", hang)), ("roofs", ROOFS)):
                with open(f"{at}/{name}", "w") as out:
                    out.write(text)
                os.chmod(f"{at}/{name}", 0o755)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
                bench = subprocess.Popen([BENCH, "--programs", at, "-o", f"{at}/out", "--only", "roofs,latency"],
                                         stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
                until = time.monotonic() + 60
                while not (os.path.exists(f"{at}/pid") and parts_of(f"{at}/out/points.jsonl") == parts) and time.monotonic() < until:
                    time.sleep(0.01)
                bench.send_signal(number)
                said = bench.communicate(timeout=60)[1]
                self.assertEqual(bench.returncode, -number if number == signal.SIGKILL else 1)
                self.assertEqual(f"bench/device: ended by {number.name}\n" in said, number != signal.SIGKILL)
                with open(f"{at}/out/summary.md") as summary:
                    self.assertIn("read: 4e+12 a second", summary.read())
                self.assertEqual(parts_of(f"{at}/out/points.jsonl"), parts)
                with open(f"{at}/pid") as pid:
                    child = pid.read().strip()
                until = time.monotonic() + 60
                while is_running(child) and time.monotonic() < until:
                    time.sleep(0.01)
                self.assertFalse(is_running(child))
                os.remove(f"{at}/pid")
                os.remove(f"{at}/out/points.jsonl")

    def test_words(self):
        self.assertIn("--budget", run("--help").stdout)
        for words, said in ((["--only", "latency,x"], "there is no part 'x'"), (["--budget", "fast"], "not 'fast'"),
                            (["--budget", "0s"], "not '0s'"), (["more"], "more"), (["--programs"], "--programs"),
                            (["--build", "99"], "not '99' (there are kernels for 8.x, 9.x, 10.x, 12.x)"), (["--build", "x"], "not 'x'"),
                            (["--build", "9", "--programs", "/nowhere"], "--build builds alone"),
                            (["--build", "9", "--only", "roofs"], "--build builds alone")):
            done = run(*words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), words)
            self.assertIn(said, done.stderr)

    def test_no_device(self):
        at = f"{self.folder.name}/out"
        done = run("-o", at)
        if "building" in done.stderr:
            self.skipTest("there is one")
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1))
        self.assertIn("bench/device: ", done.stderr)
        self.assertFalse(os.path.exists(at))

    def test_what_is_measured(self):
        done, points = self.bench("true", "true", "--only", "roofs,latency")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([p["part"] for p in points], ["about", "roofs", "roofs", "latency"])
        self.assertIn("| latency | cuda | 8 | 2048 | 2048 | 64 | 8 | 1.0 | 2000 | 0.50 | 3.0 | - | 4.5 |", done.stdout)
        with open(f"{self.folder.name}/out/summary.md") as summary:
            self.assertEqual(summary.read(), done.stdout)

    def test_bits(self):
        done, points = self.bench("true", "true", "--only", "bits")
        self.assertEqual((done.returncode, [p["op"] for p in points[1:]]), (0, ["cuda", "cuda-bulk"]))
        self.assertIn("bits: 2 layers as the emulator has them\n", done.stdout)
        done, points = self.bench("true", "true", "--only", "bits", points=POINTS.replace('"case": "up to 32 rows", "tiles": 64, "right": true', '"absent": "others"'))
        self.assertEqual(done.returncode, 0)
        self.assertIn("bits: not there: others\n", done.stdout)

    def test_phases_and_a_time_line(self):
        done, points = self.bench("true", "true", "--only", "phases,timeline")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| cuda-bulk, us | gate | up | sum |\n|---|---|---|---|\n| 32 tokens | 7.0 | 177.7 | 184.7 |", done.stdout)
        self.assertIn("timeline: timeline-32.svg, 3 tasks in 2.0 us, processors at work 62 % of it", done.stdout)
        self.assertEqual((points[-1]["svg"], points[-1]["op"], points[-1]["tasks"]), ("timeline-32.svg", "cuda", 3))
        with open(f"{self.folder.name}/out/timeline-32.svg") as svg:
            text = svg.read()
        for word in ("<svg ", "OLMoE&#x27;s layer, 32 tokens", "up</text>", "0.001 ms"):
            self.assertIn(word, text)
        self.assertEqual(text.count('height="20"'), 3)  # a task each

    def test_sanitizers(self):
        done, points = self.bench("true", "true", "--only", "sanitizers")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([(p["tool"], p["op"]) for p in points if "clean" in p],
                         [(tool, op) for tool in ("memcheck", "synccheck", "initcheck") for op in ("cuda", "cuda-bulk")] +
                         [("racecheck", "cuda-bulk")])
        self.assertIn("sanitizers: no error by memcheck of cuda, ", done.stdout)
        with open(f"{self.folder.name}/out/racecheck-cuda-bulk.log") as log:
            self.assertEqual(log.read(), "racecheck\n")
        done, points = self.bench("exit 1", "true", "--only", "sanitizers")
        self.assertEqual((done.returncode, sum("wrong" in p for p in points), sum("clean" in p for p in points)), (1, 7, 0))
        self.assertEqual(points[-1]["wrong"], "exit status 99")

    def test_peers(self):
        """They are measured where they are, and else said to be absent, which is a failure where they were asked for; all get one routing."""
        device = load()
        if device.python_with("torch", "triton"):
            self.skipTest("there are torch and triton")
        done, points = self.bench("true", "true", "--only", "peers")
        self.assertEqual((done.returncode, points[-1]["absent"]), (1, "no Python here has torch and triton"))
        self.assertIn("peers: not there: no Python here has torch and triton", done.stdout)
        self.assertIn("\npeers: no Python here has torch and triton\n", done.stderr)
        at = self.folder.name
        programs = {"points": [f"{at}/device_points"], "peers": ["python", "peers_gpu.py"]}
        words = device.words_of(programs, ["peers"], at)
        self.assertEqual(words[:4], ["python", "peers_gpu.py", "--routing", f"{at}/routing.jsonl"])
        self.assertIn("gpt-oss=2880:2880:128:4", words[5])
        with open(words[3]) as file:
            told = {(line["experts"], line["top_k"]) for line in map(json.loads, file)}
        self.assertEqual(told, {shape[2:] for shape in device.LAYERS.values()})

    def test_peers_that_are_wrong(self):
        """One is a failure, of which the rest is told; one that is not there is none."""
        device, at = load(), self.folder.name
        said = [{"kind": "point", "peer": "torch", "shape": "olmoe", "tokens": 8, "us": 3.25},
                {"kind": "absent", "peer": "hf", "absent": "this Python has no transformers"},
                {"kind": "note", "note": "over budget, points left out", "points": 3}]
        for more, good, line in (([], True, "peers: hf: this Python has no transformers"),
                                 ([{"kind": "error", "peer": "torch", "shape": "olmoe", "tokens": 1, "error": "nan"}], False,
                                  "peers: torch, olmoe, 1 tokens: nan"),
                                 ([{"kind": "error", "where": "weights", "shape": "mixtral", "error": "no memory"}], False,
                                  "peers: weights, mixtral, all tokens: no memory"),
                                 ([], True, "peers: over budget, points left out: 3")):
            self.program("peers", "#!/bin/sh\n" + "".join(f"echo '{json.dumps(point)}'\n" for point in said + more))
            self.program("device_points", POINTS % ("true", "true", "true"))
            programs = {"points": [f"{at}/device_points"], "peers": [f"{at}/peers"], "images": at}
            points, went_well = device.measure(programs, ["peers"], True, 60, at)
            self.assertEqual(went_well, good, line)
            self.assertIn(line, device.table(points))

    def test_a_routing_that_is_not_told(self):
        device, at = load(), self.folder.name
        self.program("device_points", POINTS.replace('"routing "*)', '"routing "*) echo no room >&2; exit 3;') % ("true", "true", "true"))
        programs = {"points": [f"{at}/device_points"], "peers": ["false"], "images": at}
        points, went_well = device.measure(programs, ["peers"], True, 60, at)
        self.assertEqual((went_well, points[-1]["wrong"]), (False, "the routing of 8 experts, top 2: no room"))

    def test_a_routing_for_peers(self):
        """Peers refuse one that tells too little in a line, and a Python without torch likewise."""
        peers = os.environ["COT_SOURCE"] + "/bench/peers_gpu.py"
        python = load().python_with("torch")
        for text in ("", "[1]\n", "x", '{"experts": 64, "top_k": 8, "choices": []}\n', '{"experts": 64, "top_k": 8, "choices": [[1]]}\n'):
            with open(f"{self.folder.name}/routing", "w") as out:
                out.write(text)
            done = subprocess.run([python or "python3", "-B", peers, "--routing", out.name, "--tokens", "1"], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), done.stderr)
            self.assertRegex(done.stderr, f"^peers_gpu: '{out.name}' " if python else "^peers_gpu: this Python has no torch\n")

    def test_what_routing_peers_take(self):
        loader = importlib.machinery.SourceFileLoader("peers_gpu", os.environ["COT_SOURCE"] + "/bench/peers_gpu.py")
        peers = importlib.util.module_from_spec(importlib.util.spec_from_loader("peers_gpu", loader))
        sys.path.insert(0, os.environ["COT_SOURCE"] + "/bench")
        self.addCleanup(sys.path.pop, 0)
        loader.exec_module(peers)
        path = f"{self.folder.name}/routing"
        for choices, good in (([[0, 3], [2, 1]], True), ([[0, 3]], False), (None, False), (7, False), ([1, 2], False), ([[0, 4], [2, 1]], False),
                              ([[0, -1], [2, 1]], False), ([[0, "x"], [2, 1]], False), ([[1, 1], [2, 1]], False), ([[0, 1, 2], [2, 1]], False)):
            with open(path, "w") as out:
                json.dump({"experts": 4, "top_k": 2, "choices": choices}, out)
            if good:
                self.assertEqual(peers.read_routing(path, [(64, 32, 4, 2)], 2), {(4, 2): choices})
            else:
                with self.assertRaisesRegex(ValueError, "does not tell what 2 tokens call of 4 experts, 2 each"):
                    peers.read_routing(path, [(64, 32, 4, 2)], 2)

    def test_peers_on_a_cpu(self):
        """Small layers of each peer against sums in double precision, where there are torch and triton."""
        python = load().python_with("torch", "triton")
        if not python:
            self.skipTest("no Python here has torch and triton")
        done = subprocess.run([python, "-B", os.environ["COT_SOURCE"] + "/bench/peers_gpu.py", "--self-test"], capture_output=True,
                              text=True, env={**os.environ, "TRITON_INTERPRET": "1"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_side_by_side(self):
        layer = {"part": "layers", "hidden": 2048, "intermediate": 1024, "experts": 64, "top_k": 8, "tokens": 8, "bytes_least": 4e6}
        points = [{**layer, "op": "cuda", "ns": 2000}, {**layer, "op": "cuda-bulk", "ns": 1500},
                  {"part": "peers", "kind": "point", "peer": "torch", "shape": "olmoe", "tokens": 8, "us": 3.25},
                  {"part": "peers", "kind": "point", "peer": "hf", "shape": "mixtral", "tokens": 1, "us": 9, "graph": False}]
        lines = load().side_by_side(points, {"read": 4e12})
        self.assertEqual(lines[1], "| layer | tokens | cuda | cuda-bulk | Triton, vLLM's design | torch grouped_mm | transformers | "
                                   "reading alone |")
        self.assertEqual(lines[3:], ["| olmoe | 8 | 2.0 | 1.5 | - | 3.2 | - | 1 |", "| mixtral | 1 | - | - | - | - | 9.0* | - |", "",
                                     "*: launched call by call, where no graph could be had"])

    def test_images_that_were_moved(self):
        device, at = load(), self.folder.name
        self.assertTrue(device.knows_its_place(at))  # there are none
        for where, known in ((at, True), ("/elsewhere", False)):
            with open(f"{at}/image.h", "w") as file:
                file.write(f'#define COT_CUDA_FUSED "{where}/fused.fatbin"\n')
            self.assertEqual(device.knows_its_place(at), known)

    def test_which_kernels(self):
        device, at = load(), self.folder.name
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        self.assertIsNone(device.how_made(at))
        for told, said in (({"looked_through": True, "boot": boot}, "nvcc 13.0.88, looked through by tools/check_sass, made on this machine"),
                           ({"looked_through": False, "boot": "?"}, "nvcc 13.0.88, not looked through by tools/check_sass, made elsewhere")):
            with open(f"{at}/made.json", "w") as file:
                json.dump({"compiler": "nvcc 13.0.88", **told}, file)
            self.assertEqual(device.how_made(at), said)
        with open(f"{at}/made.json") as file:
            made = file.read()
        done, _ = self.bench("true", "true", "--only", "roofs")
        self.assertIn("kernels: nvcc 13.0.88, not looked through by tools/check_sass, made elsewhere\n", done.stdout, made)
        for text in (made[:30], "[1]", "{}", ""):
            with open(f"{at}/made.json", "w") as file:
                file.write(text)
            self.assertEqual(device.how_made(at), f"{at}/made.json does not say how they were made")

    def test_what_is_wrong_ends_it(self):
        done, points = self.bench("echo wrong >&2; exit 1", "true", "--only", "correct,latency")
        self.assertEqual(done.returncode, 1)
        self.assertEqual([p["part"] for p in points], ["about", "correct", "correct"])
        self.assertEqual(points[-1]["wrong"], "wrong")
        self.assertIn("correct: wrong", done.stdout)

    def test_a_part_before_that_failed(self):
        """What is right in `correct` is not ended by a fault of another part."""
        done, points = self.bench("true", "true", "--only", "faults,correct,phases", points=POINTS.replace('"routing "', '"faults ") exit 3 ;;\n"routing "'))
        self.assertEqual(done.returncode, 1)
        self.assertEqual([p["part"] for p in points][-2:], ["correct", "phases"])

    def test_sanitizers_that_are_not_there(self):
        """That is a failure where they were asked for by name."""
        if load().find_programs("/nowhere", "/nowhere")["sanitizer"]:
            self.skipTest("there is a compute-sanitizer")
        done, points = self.bench("true", "true", "--only", "sanitizers", sanitizer=False)
        self.assertEqual((done.returncode, points[-1]["absent"]), (1, "there is no compute-sanitizer"))
        device, at = load(), self.folder.name
        programs = {"points": [f"{at}/device_points"], "sanitizer": None, "images": at}
        self.assertTrue(device.measure(programs, ["sanitizers"], False, 60, at)[1])

    def test_no_time_line(self):
        done, points = self.bench("true", "true", "--only", "timeline", points=re.sub('"tasks": .*]]', '"tasks": []', POINTS))
        self.assertEqual((done.returncode, points[-1]["wrong"]), (1, "no task was noted at 32 tokens"))
        draw = os.environ["COT_SOURCE"] + "/bench/timeline_svg.py"
        named = '{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "p"}}'

        def task(**other):
            return json.dumps({"ph": "X", "pid": 1, "tid": 0, "name": "up", "ts": 1, "dur": 2, "args": {"rank": 0}, **other})

        odd = [task(tid="a"), task(ts="1"), task(ts=-1), task(dur=None), task(dur=float("nan")), task(args=None), task(args={}), task(name=3),
               task(pid=None), task(pid=[1]), "7", "{}", '{"ph": "M", "pid": 1, "args": {}}', '{"ph": 3}']
        for text, words in [("", ()), ("[1]", ()), ("7", ()), ('{"traceEvents": 7}', ()), ("[" * 100000, ()), ("\xff", ()),
                            *((f'{{"traceEvents": [{events}]}}', words) for events, words in
                              [("", ()), (named, ()), (task(pid=2), ()), (f"{named}, {task(ts=0, dur=0)}", ()), (f"{named}, {task()}", ("--process", "3")),
                               *((f"{named}, {one}", ()) for one in odd)])]:
            with open(f"{self.folder.name}/line.json", "w", encoding="latin-1") as out:
                out.write(text)
            done = subprocess.run([draw, out.name, *words], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), text[:200] + done.stderr[-400:])
            self.assertIn(f"timeline_svg: {out.name} ", done.stderr)
        with open(out.name, "w") as out:
            out.write(f'{{"traceEvents": [{named}, {task()}, {{"ph": "i"}}]}}')
        done = subprocess.run([draw, out.name, "--process", "1,1"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout.count(">p<")), (0, 1), done.stderr)
        for words in ("1,", "one", "-1"):
            self.assertEqual(subprocess.run([draw, out.name, f"--process={words}"], capture_output=True).returncode, 2)

    def test_a_part_that_fails_and_one_that_prints_anything(self):
        done, points = self.bench("true", "exit 3", "--only", "latency,roofs")
        self.assertEqual((done.returncode, points[-3]["wrong"], points[-1]["part"]), (1, "exit status 3", "roofs"))
        done, points = self.bench("true", "echo anything", "--only", "latency")
        self.assertEqual((done.returncode, points[-1]["wrong"]), (1, "printed what is no JSON"))
        for printed, wrong in (("[1]", "printed what is no point: '[1]'"), ('\\377', "printed what is no JSON")):
            done, points = self.bench("true", f"printf '{printed}\\n'", "--only", "latency")
            self.assertEqual((done.returncode, points[-1]["wrong"]), (1, wrong))
        for printed, part, lacks in (('{"tokens": 8, "ns": 0, "bytes_least": 1, "flops": 1}', "time", "ns"),
                                     ('{"tokens": 8, "ns": "x", "flops": 1}', "time", "ns or bytes_least"),
                                     ('{"tokens": 8, "ns": NaN, "bytes_least": 1, "flops": 1, "bytes_in_turn": 1, "cache_bytes": 1}', "time", "ns"),
                                     ('{"right": false}', "probe", "right"), ('{"right": 1}', "probe", "right"), ('{"right": false}', "bits", "right"), ('{}', "faults", "fault"),
                                     ('{"tokens": 8, "phases": [1]}', "phases", "phases"), ('{"tokens": 8, "tasks": 7}', "timeline", "tasks"),
                                     ('{"tokens": 8, "tasks": [[1, 2, "up", 3]]}', "timeline", "tasks")):
            name = {"time": "latency", "probe": "correct"}.get(part, part)
            mock = POINTS.replace('"about "*)', f"\"{part} \"*) echo '{printed}'; exit ;;\n\"about \"*)")
            done, points = self.bench("true", "true", "--only", name, points=mock)
            self.assertEqual(done.returncode, 1, printed)
            self.assertIn(f"printed a point without {lacks}: ", points[-1]["wrong"])
            done, points = self.bench("true", "true", "--only", name, points=mock.replace(f"echo '{printed}'", "true"))
            self.assertEqual((done.returncode, points[-1]["wrong"]), (1, "printed no point"))
        done, points = self.bench("true", "printf '{}'", "--only", "latency")
        self.assertEqual((done.returncode, points[-1]["wrong"]), (1, "ended in the midst of a line"))

    def test_a_part_that_hangs_and_a_budget_that_ends(self):
        began = time.monotonic()
        hang = f"sleep 60 & echo $! >{self.folder.name}/pid; wait"
        done, points = self.bench("true", hang, "--only", "latency,ranks,overlap", "--budget", "0.5s")
        self.assertLess(time.monotonic() - began, 20)
        self.assertEqual(done.returncode, 1)
        self.assertEqual([p["part"] for p in points], ["about", "latency", "latency", "ranks", "overlap"])
        self.assertEqual(points[1]["ns"], 1000)  # written before
        self.assertIn("ended at its limit of 0.", points[2]["wrong"])
        self.assertEqual(points[3]["wrong"], "not run: the budget is spent")
        with open(f"{self.folder.name}/pid") as pid:
            self.assertFalse(is_running(pid.read().strip()))  # ended with what began it


unittest.main()
