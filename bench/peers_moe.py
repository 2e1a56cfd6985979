#!/usr/bin/env python3
"""Measures one MoE layer side by side: Coterie, torch, and ggml as llama-cpp-python ships it; same shapes, threads, bf16.

    python3 -m venv out/peers && out/peers/bin/pip install torch numpy llama-cpp-python
    out/peers/bin/python bench/peers_moe.py --coterie build/release/coterie --shape olmoe,qwen3-30b --tokens 1,64,512

Each runs in a process of its own, in rounds, one after the other; every run finds cold caches; times are medians over all
rounds' runs. The layer is the whole of gate, experts and weighted sum, on random weights, tokens routed uniformly.

    coterie   bench moe, the operator named by --op, one rank
    torch     the fastest of: a loop over experts with index_add_; rows sorted by expert, a product for each, unsorted and
              summed; grouped_mm, where this torch has it on a CPU. In bf16, and in fp32 for comparison
    ggml      llama.cpp's graph of a MoE layer (argsort, mul_mat_id, swiglu), called through the libraries in the wheel;
              weights in bf16, and in f16 for comparison

The wheel of llama-cpp-python is built where it is installed, which takes long; GGML_FOLDER names a folder with the libggml*.so
of another build of it. A peer that is not installed is left out, with the reason. --json writes to standard output {"points": [{shape, tokens,
coterie_ns, peers: [{name, variant, type, median_ns, ratio}]}], "left_out": {name: reason}}; ratio = its time / Coterie's.
"""
import argparse
import ctypes
import glob
import json
import os
import statistics
import subprocess
import sys
import time

# H, I, E, K
SHAPES = {"olmoe": (2048, 1024, 64, 8), "qwen3-30b": (2048, 768, 128, 8), "mixtral": (4096, 14336, 8, 2),
          "deepseek-v2-lite": (2048, 1408, 64, 6), "deepseek-v3": (7168, 2048, 8, 1)}
FAR_SLOWER = 1.5  # variants that take so much longer than the fastest are not measured further
ROUND_SECONDS = 8
RUNS = 5          # a round


class Flush:
    """More than the last-level cache, read between runs."""

    def __init__(self):
        import numpy
        self.bytes = numpy.ones(96 << 20, dtype=numpy.uint8)

    def __call__(self):
        self.bytes[::64].sum()


# ---- torch ----

class Torch:
    name, types = "torch", ("bf16", "fp32")

    def __init__(self, shape, tokens, threads, kind):
        import torch
        import torch.nn.functional as functional
        self.torch, self.functional = torch, functional
        torch.set_num_threads(threads)
        torch.manual_seed(1)
        h, i, e, self.top_k = shape
        dtype = torch.bfloat16 if kind == "bf16" else torch.float32
        draw = lambda *size: (torch.rand(size) - 0.5).mul_(2 * (3 / size[-1]) ** 0.5).to(dtype)
        self.experts = e
        self.gate_up = torch.stack([draw(2 * i, h) for _ in range(e)])
        self.down = torch.stack([draw(h, i) for _ in range(e)])
        self.gate = draw(e, h).float()
        self.x = torch.rand(tokens, h).sub_(0.5).mul_(2)
        self.dtype = dtype
        self.variants = {"loop": self.loop, "sorted": self.sorted}
        grouped = getattr(functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
        if grouped:
            self.grouped_mm = grouped
            self.variants["grouped_mm"] = self.grouped

    def route(self):
        torch = self.torch
        weights, chosen = torch.softmax(self.functional.linear(self.x, self.gate), -1).topk(self.top_k, -1)
        return weights / weights.sum(-1, keepdim=True), chosen

    def act(self, both):
        gate, up = both.chunk(2, -1)
        return self.functional.silu(gate) * up

    def loop(self):
        torch, linear = self.torch, self.functional.linear
        weights, chosen = self.route()
        x, y = self.x.to(self.dtype), torch.zeros_like(self.x)
        for e in chosen.unique().tolist():
            token, place = (chosen == e).nonzero(as_tuple=True)
            rows = linear(self.act(linear(x[token], self.gate_up[e])), self.down[e])
            y.index_add_(0, token, rows.float() * weights[token, place, None])
        return y

    def in_order(self):
        """Rows sorted by expert, where each expert's end, and how to put them back."""
        torch = self.torch
        weights, chosen = self.route()
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        ends = torch.bincount(flat, minlength=self.experts).cumsum(0)
        rows = self.x.to(self.dtype)[torch.div(order, self.top_k, rounding_mode="floor")]
        return weights, order, ends, rows

    def put_back(self, weights, order, out):
        back = self.torch.empty_like(out)
        back[order] = out
        return (back.view(len(self.x), self.top_k, -1).float() * weights[..., None]).sum(1)

    def sorted(self):
        linear = self.functional.linear
        weights, order, ends, rows = self.in_order()
        out, begin = self.torch.empty_like(rows), 0
        for e, end in enumerate(ends.tolist()):
            if end > begin:
                out[begin:end] = linear(self.act(linear(rows[begin:end], self.gate_up[e])), self.down[e])
            begin = end
        return self.put_back(weights, order, out)

    def grouped(self):
        weights, order, ends, rows = self.in_order()
        ends = ends.to(self.torch.int32)
        both = self.grouped_mm(rows, self.gate_up.transpose(1, 2), offs=ends)
        return self.put_back(weights, order, self.grouped_mm(self.act(both), self.down.transpose(1, 2), offs=ends))

    def check(self):
        """Every variant gives the same rows."""
        with self.torch.inference_mode():
            want = self.loop()
            for name in list(self.variants):
                try:
                    got = self.variants[name]()
                except (RuntimeError, NotImplementedError, TypeError) as error:
                    print(f"torch's {name} does not run here: {str(error).splitlines()[0]}", file=sys.stderr)
                    del self.variants[name]
                    continue
                off = float((got - want).norm() / want.norm())
                if not off < 0.03:
                    raise SystemExit(f"torch's {name} answers {off:.3g} off")

    def run(self, variant):
        with self.torch.inference_mode():
            begin = time.perf_counter_ns()
            self.variants[variant]()
            return time.perf_counter_ns() - begin


# ---- ggml ----

class Ggml:
    name, types = "ggml", ("bf16", "f16")
    F32, F16, BF16 = 0, 1, 30  # enum ggml_type

    class Params(ctypes.Structure):
        _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]

    def __init__(self, shape, tokens, threads, kind):
        import numpy
        h, i, e, k = shape
        self.load()
        self.tokens, self.hidden, kind = tokens, h, self.BF16 if kind == "bf16" else self.F16
        row = 4 * (h * k + 3 * i * k + 3 * e + 4 * k) * 2 + 4 * h * (k + 4)
        weights = 2 * 3 * e * h * i + 4 * e * h
        self.context = self.call("ggml_init", self.Params(weights + tokens * row + (64 << 20), None, False))
        gate = self.gate = self.tensor(self.F32, h, e)
        self.gate_exps, self.up, self.down = (self.tensor(kind, h, i, e), self.tensor(kind, h, i, e),
                                              self.tensor(kind, i, h, e))
        self.x = self.tensor(self.F32, h, tokens)
        random = numpy.random.default_rng(1)
        self.fill(gate, random.uniform(-1, 1, e * h).astype(numpy.float32) * (3 / h) ** 0.5)
        self.fill(self.x, random.uniform(-1, 1, tokens * h).astype(numpy.float32))
        for weight, width in ((self.gate_exps, h), (self.up, h), (self.down, i)):
            for expert in range(e):
                values = random.uniform(-1, 1, h * i).astype(numpy.float32) * numpy.float32((3 / width) ** 0.5)
                packed = (values.view(numpy.uint32) >> 16).astype(numpy.uint16) if kind == self.BF16 else values.astype(
                    numpy.float16).view(numpy.uint16)
                self.fill(weight, packed, expert * h * i * 2)
        self.graph = self.build(gate, k, e)
        self.backend = self.call("ggml_backend_cpu_init")
        self.call("ggml_backend_cpu_set_n_threads", self.backend, ctypes.c_int(threads), result=None)
        room = ctypes.create_string_buffer(8192)  # struct ggml_threadpool_params, larger than any so far
        self.call("ggml_threadpool_params_init", room, ctypes.c_int(threads), result=None)
        pool = self.call("ggml_threadpool_new", room)
        self.call("ggml_backend_cpu_set_threadpool", self.backend, ctypes.c_void_p(pool), result=None)
        self.variants = {"mul_mat_id": None}

    def load(self):
        import importlib.util
        folder = os.environ.get("GGML_FOLDER")
        if not folder:
            package = importlib.util.find_spec("llama_cpp")
            if not package:
                raise ImportError("llama-cpp-python is not installed")
            folder = os.path.join(os.path.dirname(package.origin), "lib")
        paths = [p for name in ("libggml-base.so", "libggml-cpu.so", "libggml.so") for p in glob.glob(os.path.join(folder, name))]
        if not paths:
            raise ImportError(f"no libggml in {folder}")
        self.libraries = [ctypes.CDLL(p, mode=ctypes.RTLD_GLOBAL) for p in paths]

    def call(self, name, *arguments, result=ctypes.c_void_p):
        for library in self.libraries:
            if hasattr(library, name):
                function = getattr(library, name)
                function.restype = result
                return function(*[ctypes.c_void_p(a) if isinstance(a, int) else a for a in arguments])
        raise ImportError(f"this libggml has no {name}")

    def op(self, name, *arguments):
        return self.call("ggml_" + name, self.context, *arguments)

    def tensor(self, kind, *sizes):
        return self.op(f"new_tensor_{len(sizes)}d", ctypes.c_int(kind), *[ctypes.c_int64(n) for n in sizes])

    def fill(self, tensor, values, offset=0):
        ctypes.memmove(self.call("ggml_get_data", tensor) + offset, values.ctypes.data, values.nbytes)

    def build(self, gate, k, e):
        i64, tokens, hidden = ctypes.c_int64, self.tokens, self.hidden
        probabilities = self.op("soft_max", self.op("mul_mat", gate, self.x))
        chosen = self.op("argsort_top_k", probabilities, ctypes.c_int(k))
        weights = self.op("get_rows", self.op("reshape_3d", probabilities, i64(1), i64(e), i64(tokens)), chosen)
        flat = self.op("reshape_2d", weights, i64(k), i64(tokens))
        weights = self.op("reshape_3d", self.op("div", flat, self.op("sum_rows", flat)), i64(1), i64(k), i64(tokens))
        x = self.op("reshape_3d", self.x, i64(hidden), i64(1), i64(tokens))
        up = self.op("mul_mat_id", self.up, x, chosen)
        act = self.op("swiglu_split", self.op("mul_mat_id", self.gate_exps, x, chosen), up)
        rows = self.op("mul", self.op("mul_mat_id", self.down, act, chosen), weights)
        size = ctypes.c_size_t
        y = None
        for place in range(k):
            row = self.op("view_2d", rows, i64(hidden), i64(tokens), size(4 * hidden * k), size(4 * hidden * place))
            y = row if y is None else self.op("add", y, row)
        if k == 1:
            y = self.op("cont", y)
        self.y = y
        graph = self.op("new_graph")
        self.call("ggml_build_forward_expand", graph, y, result=None)
        return graph

    def check(self):
        import numpy
        self.run(None)
        y = numpy.ctypeslib.as_array((ctypes.c_float * (self.tokens * self.hidden)).from_address(
            self.call("ggml_get_data", self.y)))
        if not (numpy.isfinite(y).all() and y.std() > 1e-3):
            raise SystemExit("ggml's answer is not finite, or nothing")

    def run(self, variant):
        begin = time.perf_counter_ns()
        status = self.call("ggml_backend_graph_compute", self.backend, self.graph, result=ctypes.c_int)
        taken = time.perf_counter_ns() - begin
        if status != 0:
            raise SystemExit(f"ggml_backend_graph_compute: status {status}")
        return taken


PEERS = {peer.name: peer for peer in (Torch, Ggml)}


def serve(name, shape, tokens, threads, kind):
    """A peer's process: says which variants it has, then does a round whenever a line comes."""
    try:
        peer = PEERS[name](shape, tokens, threads, kind)
        peer.check()
        flush = Flush()
    except (ImportError, OSError, MemoryError) as error:
        print(json.dumps({"error": str(error).splitlines()[0]}), flush=True)
        return
    first = {variant: peer.run(variant) for variant in peer.variants}
    peer.variants = {variant: peer.variants[variant] for variant in first if first[variant] <= FAR_SLOWER * min(first.values())}
    print(json.dumps({"variants": list(peer.variants)}), flush=True)
    for _ in sys.stdin:
        times = {}
        for variant in peer.variants:
            times[variant] = []
            begin = time.monotonic()
            while len(times[variant]) < RUNS and (not times[variant] or time.monotonic() - begin < ROUND_SECONDS):
                flush()
                times[variant].append(peer.run(variant))
        print(json.dumps(times), flush=True)


# ---- rounds ----

class Server:
    def __init__(self, name, kind, shape, tokens, threads):
        self.name, self.kind, self.times = name, kind, {}
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--serve", name, kind, ",".join(map(str, shape)), str(tokens), str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.error = self.answer().get("error")

    def answer(self):
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": f"its process ended with status {self.process.wait()}"}

    def round(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        for variant, times in self.answer().items():
            self.times.setdefault(variant, []).extend(times)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def coterie_round(o, shape, tokens):
    """The median of a round's runs."""
    out = subprocess.run([o.coterie, "bench", "moe", "--json", "--shape", shape, "--tokens", str(tokens), "--op", o.op,
                          "--threads", str(o.threads), "--repeat", str(RUNS)], stdout=subprocess.PIPE, check=True).stdout
    return json.loads(out)["points"][0]["median_ns"]


def measure(o, shape, tokens, left_out):
    servers = []
    for peer in PEERS.values():
        for kind in peer.types:
            if peer.name in left_out:
                continue
            server = Server(peer.name, kind, SHAPES[shape], tokens, o.threads)
            if server.error:
                left_out[peer.name] = server.error
                server.close()
            else:
                servers.append(server)
    coterie = []
    for _ in range(o.rounds):
        coterie.append(coterie_round(o, shape, tokens))
        for server in servers:
            server.round()
    coterie_ns = statistics.median(coterie)
    found = []
    for server in servers:
        server.close()
        medians = {variant: statistics.median(times) for variant, times in server.times.items()}
        variant = min(medians, key=medians.get)
        found.append({"name": server.name, "variant": variant, "type": server.kind, "median_ns": medians[variant],
                      "ratio": medians[variant] / coterie_ns})
    return {"shape": shape, "tokens": tokens, "coterie_ns": coterie_ns, "peers": found}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coterie", default="build/release/coterie", help="the program")
    parser.add_argument("--shape", default="olmoe", help="comma list of " + ", ".join(SHAPES))
    parser.add_argument("--tokens", default="1,64,512", help="comma list")
    parser.add_argument("--op", default="fused", help="Coterie's operator")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help=f"rounds of {RUNS} runs each")
    parser.add_argument("--json", action="store_true")
    o = parser.parse_args()
    unknown = [s for s in o.shape.split(",") if s not in SHAPES]
    if unknown:
        parser.error(f"unknown shape '{unknown[0]}'")
    left_out, points = {}, []
    for shape in o.shape.split(","):
        for tokens in o.tokens.split(","):
            point = measure(o, shape, int(tokens), left_out)
            points.append(point)
            if not o.json:
                print(f"{shape}, {tokens} tokens: coterie {o.op} bf16 {point['coterie_ns'] / 1e6:.2f} ms")
                for p in point["peers"]:
                    print(f"  {p['name']:6} {p['type']:5} {p['variant']:11} {p['median_ns'] / 1e6:9.2f} ms  {p['ratio']:6.2f} x",
                          flush=True)
    if o.json:
        json.dump({"points": points, "left_out": left_out}, sys.stdout, indent=1)
        print()
    for name, reason in left_out.items():
        print(f"{name} is left out: {reason}", file=sys.stderr)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        name, kind, shape, tokens, threads = sys.argv[2:]
        serve(name, tuple(map(int, shape.split(","))), int(tokens), int(threads), kind)
    else:
        main()
