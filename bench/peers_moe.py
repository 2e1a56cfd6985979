#!/usr/bin/env python3
"""Measures one MoE layer side by side: Coterie, torch, and ggml as a wheel ships it; same shapes and threads.

    python3 -m venv out/peers && out/peers/bin/pip install torch numpy xllamacpp
    out/peers/bin/python bench/peers_moe.py --coterie build/release/coterie --shape olmoe,qwen3-30b --tokens 1,64,512

Each runs in a process of its own, in rounds, one after the other; every run finds cold caches; times are medians over all
rounds' runs, and the best of the rounds' medians. The layer is the whole of gate, experts and weighted sum, on random weights,
tokens routed uniformly.

    coterie   bench moe, the operator named by --op, one rank, by its best instruction set or those of --isa
    torch     the fastest of: a loop over experts with index_add_; rows sorted by expert, a product for each, unsorted and
              summed; grouped_mm, where this torch has it on a CPU. In bf16, and in fp32 for comparison
    ggml      llama.cpp's graph of a MoE layer (argsort, mul_mat_id, swiglu), called through the libraries in the wheel;
              weights in bf16, and in f16 for comparison; in Q8_0, Q4_0 and MXFP4, as they are and, where ggml has a layout
              for this CPU, repacked. Coterie beside these: int8, int4 and mxfp4, rows rounded to whole numbers as ggml does

Wheels of ggml: xllamacpp (a build for AVX2: the instruction sets that ggml says it was built for are printed), or
llama-cpp-python, which is built where it is installed; GGML_FOLDER names a folder with the libggml*.so of another build of it. A
peer that is not installed, or lacks a type, is left out, with the reason; one that crashes (ggml with Q8_0 repacked does, on some
CPUs) or does not answer is told so for that type and number of tokens. --json writes to standard output {"points": [{shape,
tokens, threads, coterie: [{weights, precision, isa, median_ns, best_ns}], peers: [{name, variant, type, built_for, median_ns,
best_ns, ratio: {isa: x}, best_ratio: {isa: x}}]}], "left_out": {name: reason}}; ratio = its time / Coterie's, of medians and of the
best rounds; the latter are in brackets in the table.
"""
import argparse
import ctypes
import glob
import json
import os
import select
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
ANSWER_SECONDS = 120
# What Coterie keeps weights as, and its arithmetic, beside a peer's type.
BESIDE = {"bf16": ("bf16", "bf16"), "fp32": ("bf16", "bf16"), "f16": ("bf16", "bf16"), "q8_0": ("int8", "int8"),
          "q4_0": ("int4", "int8"), "mxfp4": ("mxfp4", "int8")}
REPACKED = "-repacked"


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
    QUANTISED = "q8_0", "q4_0", "mxfp4"
    name, types = "ggml", ("bf16", "f16") + tuple(q + end for q in QUANTISED for end in ("", REPACKED))
    F32 = 0
    TYPES = {"f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30, "mxfp4": 39}  # enum ggml_type

    class Params(ctypes.Structure):
        _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]

    def __init__(self, shape, tokens, threads, kind):
        import numpy
        h, i, e, k = shape
        self.load()
        self.tokens, self.hidden, kind, repacked = tokens, h, kind.removesuffix(REPACKED), kind.endswith(REPACKED)
        row = 4 * (h * k + 3 * i * k + 3 * e + 4 * k) * 2 + 4 * h * (k + 4)
        self.context = self.call("ggml_init", self.Params(4 * e * h + tokens * row + (64 << 20), None, False))
        gate = self.gate = self.tensor(self.F32, h, e)
        self.x = self.tensor(self.F32, h, tokens)
        work, self.context = self.context, self.call("ggml_init", self.Params(1 << 20, None, True))
        self.gate_exps, self.up, self.down = (self.tensor(self.TYPES[kind], *sizes)
                                              for sizes in ((h, i, e), (h, i, e), (i, h, e)))
        self.backend = self.call("ggml_backend_cpu_init")
        place = self.repacking() if repacked else self.call("ggml_backend_cpu_buffer_type")
        if not self.call("ggml_backend_alloc_ctx_tensors_from_buft", self.context, place):
            raise MemoryError("ggml has no memory for the weights")
        self.context = work
        random = numpy.random.default_rng(1)
        self.fill(gate, random.uniform(-1, 1, e * h).astype(numpy.float32) * (3 / h) ** 0.5)
        self.fill(self.x, random.uniform(-1, 1, tokens * h).astype(numpy.float32))
        for weight, width in ((self.gate_exps, h), (self.up, h), (self.down, i)):
            packed = numpy.tile(self.pack(random, kind, h * i, width), e)  # all experts alike
            self.call("ggml_backend_tensor_set", weight, packed.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(0),
                      ctypes.c_size_t(packed.nbytes), result=None)
        self.graph = self.build(gate, k, e)
        self.call("ggml_backend_cpu_set_n_threads", self.backend, ctypes.c_int(threads), result=None)
        room = ctypes.create_string_buffer(8192)  # struct ggml_threadpool_params, larger than any so far
        self.call("ggml_threadpool_params_init", room, ctypes.c_int(threads), result=None)
        pool = self.call("ggml_threadpool_new", room)
        self.call("ggml_backend_cpu_set_threadpool", self.backend, ctypes.c_void_p(pool), result=None)
        self.variants = {"mul_mat_id": None}

    def load(self):
        import importlib.util
        folder = os.environ.get("GGML_FOLDER")
        names = ["libggml-base.so", "libggml-cpu.so", "libggml.so"]
        if not folder and (package := importlib.util.find_spec("xllamacpp")):
            folder, names = os.path.dirname(package.origin), ["xllamacpp*.so"]  # all in one
        elif not folder and (package := importlib.util.find_spec("llama_cpp")):
            folder = os.path.join(os.path.dirname(package.origin), "lib")
        if not folder:
            raise ImportError("neither xllamacpp nor llama-cpp-python is installed")
        paths = [p for name in names for p in glob.glob(os.path.join(folder, name))]
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

    def pack(self, random, kind, n, width):
        """One expert's matrix in ggml's form."""
        import numpy
        values = random.uniform(-1, 1, n).astype(numpy.float32) * numpy.float32((3 / width) ** 0.5)
        if kind == "bf16":
            return (values.view(numpy.uint32) >> 16).astype(numpy.uint16)
        if kind == "f16":
            return values.astype(numpy.float16).view(numpy.uint16)
        type_, i64 = ctypes.c_int(self.TYPES[kind]), ctypes.c_int64
        packed = numpy.empty(n // width * self.call("ggml_row_size", type_, i64(width), result=ctypes.c_size_t), numpy.uint8)
        self.call("ggml_quantize_chunk", type_, values.ctypes.data_as(ctypes.c_void_p),
                  packed.ctypes.data_as(ctypes.c_void_p), i64(0), i64(n // width), i64(width), None, result=ctypes.c_size_t)
        return packed

    def repacking(self):
        """The buffers that change a weight's layout to what this CPU multiplies best. A type without such a layout ends
        ggml, and so this process."""
        registry = self.call("ggml_backend_cpu_reg")
        extra = self.call("ggml_backend_reg_get_proc_address", registry, ctypes.c_char_p(b"ggml_backend_dev_get_extra_bufts"))
        if not extra:
            raise ImportError("this ggml has no further layouts")
        device = self.call("ggml_backend_reg_dev_get", registry, ctypes.c_size_t(0))
        types = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(extra)(device)
        at = 0
        while types[at]:
            if "REPACK" in self.call("ggml_backend_buft_name", types[at], result=ctypes.c_char_p).decode():
                return types[at]
            at += 1
        raise ImportError("this ggml repacks nothing")

    def about(self):
        sets = "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx_int8", "neon", "dotprod"
        return [s for s in sets if self.call(f"ggml_cpu_has_{s}", result=ctypes.c_int)]

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
    print(json.dumps({"variants": list(peer.variants), "about": peer.about() if hasattr(peer, "about") else None}), flush=True)
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
    """A peer's process for one type and number of tokens. `error`: why there is no figure; `ended`: for this one alone."""

    def __init__(self, name, kind, shape, tokens, threads):
        self.name, self.kind, self.times, self.best, self.ended = name, kind, {}, {}, False
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--serve", name, kind, ",".join(map(str, shape)), str(tokens), str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        told = self.answer()
        self.error, self.about = told.get("error"), told.get("about")

    def answer(self):
        """What it says next, a line. It may have crashed, or say nothing."""
        if not select.select([self.process.stdout], [], [], ANSWER_SECONDS)[0]:
            self.process.kill()
            self.ended = True
            return {"error": f"no answer in {ANSWER_SECONDS} seconds"}
        line = self.process.stdout.readline()
        self.ended = not line
        return json.loads(line) if line else {"error": f"crashed, status {self.process.wait()}"}

    def round(self):
        if self.error:
            return
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer tells
        told = self.answer()
        self.error = told.get("error")
        for variant, times in told.items() if not self.error else ():
            self.times.setdefault(variant, []).extend(times)
            self.best[variant] = min(self.best.get(variant, 1e30), statistics.median(times))

    def close(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.wait()


def coterie_round(o, shape, tokens, weights, precision, isa):
    """The median of a round's runs."""
    words = [o.coterie, "bench", "moe", "--json", "--shape", shape, "--tokens", str(tokens), "--op", o.op, "--threads",
             str(o.threads), "--repeat", str(RUNS), "--precision", precision]
    words += ["--weights", weights] if weights != precision else []
    words += ["--isa", isa] if isa != "best" else []
    out = subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout
    return json.loads(out)["points"][0]["median_ns"]


def measure(o, shape, tokens, left_out):
    servers = []
    for peer in PEERS.values():
        for kind in peer.types:
            if (o.types and kind not in o.types) or peer.name in left_out or f"{peer.name} {kind}" in left_out:
                continue
            server = Server(peer.name, kind, SHAPES[shape], tokens, o.threads)
            if server.error and not server.ended:
                none = "installed" in server.error or kind == peer.types[0]
                left_out[peer.name if none else f"{peer.name} {kind}"] = server.error
                server.close()
            else:
                servers.append(server)
    beside = lambda server: BESIDE[server.kind.removesuffix(REPACKED)]
    coterie = {(*way, isa): [] for way in sorted({beside(server) for server in servers} or {BESIDE["bf16"]}) for isa in o.isa}
    for _ in range(o.rounds):
        for way in coterie:
            coterie[way].append(coterie_round(o, shape, tokens, *way))
        for server in servers:
            server.round()
    found = []
    for server in servers:
        server.close()
        if server.error:
            found.append({"name": server.name, "type": server.kind, "error": server.error})
            continue
        medians = {variant: statistics.median(times) for variant, times in server.times.items()}
        variant = min(medians, key=medians.get)
        ours, best = {isa: coterie[(*beside(server), isa)] for isa in o.isa}, server.best[variant]
        found.append({"name": server.name, "variant": variant, "type": server.kind, "built_for": server.about,
                      "median_ns": medians[variant], "best_ns": best,
                      "ratio": {isa: medians[variant] / statistics.median(times) for isa, times in ours.items()},
                      "best_ratio": {isa: best / min(times) for isa, times in ours.items()}})
    return {"shape": shape, "tokens": tokens, "threads": o.threads, "peers": found,
            "coterie": [{"weights": way[0], "precision": way[1], "isa": way[2], "median_ns": statistics.median(times),
                         "best_ns": min(times)} for way, times in coterie.items()]}


def show(o, point):
    for c in point["coterie"]:
        print(f"{point['shape']}, {point['tokens']} tokens, {o.threads} threads: coterie {o.op} {c['weights']:5} {c['isa']:5} "
              f"{c['median_ns'] / 1e6:9.2f} ms, best round {c['best_ns'] / 1e6:9.2f} ms")
    for p in point["peers"]:
        if "error" in p:
            print(f"  {p['name']:6} {p['type']:14} {p['error']}", flush=True)
            continue
        ratios = ", ".join(f"{p['ratio'][isa]:.2f} x ({p['best_ratio'][isa]:.2f}) {isa}" for isa in o.isa)
        built = f"; built for {', '.join(p['built_for'])}" if p["built_for"] else ""
        print(f"  {p['name']:6} {p['type']:14} {p['variant']:11} {p['median_ns'] / 1e6:9.2f} ms, best {p['best_ns'] / 1e6:9.2f} ms: "
              f"{ratios}{built}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coterie", default="build/release/coterie", help="the program")
    parser.add_argument("--shape", default="olmoe", help="comma list of " + ", ".join(SHAPES))
    parser.add_argument("--tokens", default="1,64,512", help="comma list")
    parser.add_argument("--op", default="fused", help="Coterie's operator")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help=f"rounds of {RUNS} runs each")
    parser.add_argument("--types", type=lambda text: text.split(","),
                        help="comma list, of torch " + ", ".join(Torch.types) + ", of ggml " + ", ".join(Ggml.types))
    parser.add_argument("--isa", default=["best"], type=lambda text: text.split(","),
                        help="Coterie's instruction sets, as best,avx2 beside a peer that was built for AVX2")
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
                show(o, point)
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
