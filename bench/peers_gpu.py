#!/usr/bin/env python3
"""Times what one would pick instead of a fused kernel for the mixture-of-experts layer of one GPU, in bf16; a part of bench/device.

A layer here is all of it: gate, softmax over all experts, the best K with weights that sum to one, gate/up of each chosen
expert, SiLU(gate) * up, down, and the weighted sum.  Peers:

  torch        sort by expert, torch's grouped product twice, silu * mul, index_add
  triton-vllm  the design of vLLM's Triton path: rows aligned to blocks of one expert, a grouped product that gathers its rows,
               silu and mul, a second grouped product scaled by the routing weights, a sum over K.  Written anew here; block
               sizes: vLLM's published ones for the shape where there are some, its defaults else, and a few more, the best kept
  hf           transformers' OlmoeSparseMoeBlock with experts_implementation="grouped_mm"

Each is one CUDA graph over several copies of the layer's weights, so that no call finds its weights in the second cache.
Each is held to a float32 reference before it is timed.  Which experts tokens call is told by a file (device_points routing), so that it is
what others are measured with; rows and gate are such that each peer chooses them.  One line of JSON a point.

  bench/peers_gpu.py --routing FILE --shapes olmoe=2048:1024:64:8 --tokens 1,8,64,4096 [--peers torch,triton-vllm] [--budget 150]
  TRITON_INTERPRET=1 bench/peers_gpu.py --self-test     small sizes on a CPU, no timing
"""
import argparse
import json
import math
import os
import subprocess
import sys
import time
import traceback

try:
    import torch
    import torch.nn.functional as F

    from peers_gpu_layer import (DEVICE, DTYPE, calls_as_told, drawn, lacks_grouped, lacks_transformers, make_copy, make_hf, make_torch, make_x, reference, say, short, sticky,
                                 timed_peer, wrong)
    from peers_gpu_triton import INTERPRET, TritonMoe, candidates, cdiv, triton
except ImportError as error:
    torch, lacking = None, error.name

START = time.time()
PEERS = ("torch", "triton-vllm", "hf")
TOLERANCE = 1e-2


def one_point(peer, name, shape, tokens, x, copies, experts_hit, ref, device_name, most):
    hidden, inter, experts, chosen = shape
    rows, want = ref
    extra = {}
    if peer == "triton-vllm":
        moe = TritonMoe(tokens, shape, x)
        tries = candidates(tokens, shape, device_name, most)
        pair, table = moe.tune(tries, copies)
        own = tries[0]
        moe.config1, moe.config2 = pair
        run = moe
        extra = {"config_gate_up": pair[0], "config_down": pair[1], "naive": moe.plan(pair[0][0])["naive"], "tried": table}
    else:
        run, extra = {"torch": make_torch, "hf": make_hf}[peer](tokens, shape, x, copies)
    error = wrong(run(copies[0]), rows, want)
    if not error <= TOLERANCE:
        raise RuntimeError("relative error %.3g against the reference" % error)

    def all_copies():
        for copy in copies:
            run(copy)
    t = timed_peer(peer, all_copies, len(copies))
    if peer == "triton-vllm":
        # what vLLM's own pick makes of the whole layer
        if (own[1], own[1]) != pair:
            moe.config1 = moe.config2 = own[1]
            try:
                if wrong(run(copies[0]), rows, want) <= TOLERANCE:
                    mine = timed_peer(peer, all_copies, len(copies))
                    extra["us_vllm_pick"] = round(mine["us"], 2)
                    if mine["us"] < t["us"]:
                        t = mine
                        extra["config_gate_up"] = extra["config_down"] = own[1]
            except Exception as failed:
                if sticky():
                    raise
                extra["vllm_pick_failed"] = short(failed)
        else:
            extra["us_vllm_pick"] = round(t["us"], 2)
        extra["vllm_pick"] = {"origin": own[0], "config": own[1]}
    bytes_ = experts_hit * 3 * hidden * inter * 2
    flops = 2 * tokens * chosen * 3 * hidden * inter
    line = {"kind": "point", "peer": peer, "shape": name, "tokens": tokens, "us": round(t["us"], 2),
            "us_least": round(t["us_least"], 2), "us_most": round(t["us_most"], 2), "gbs": round(bytes_ / t["us"] / 1e3, 1),
            "tflops": round(flops / t["us"] / 1e6, 2), "experts_hit": round(experts_hit, 2), "copies": len(copies),
            "error": float("%.3g" % error), "graph": t["graph"], "replays": t["replays"]}
    line.update(extra)
    return line


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shapes", default="olmoe=2048:1024:64:8", metavar="NAME=H:I:E:K[,...]")
    p.add_argument("--tokens", default="1,8,32,128")
    p.add_argument("--peers", default=",".join(PEERS), help="of " + ",".join(PEERS))
    p.add_argument("--routing", metavar="FILE", help="what tokens call: a line of JSON for each (experts, top_k)")
    p.add_argument("--budget", type=float, default=150.0, help="seconds after which no new point begins")
    p.add_argument("--configs", type=int, default=6, help="Triton configurations to try a point, at most")
    p.add_argument("--self-test", action="store_true", help="small sizes on a CPU, no timing")
    p.add_argument("--from", dest="first", type=int, default=0, help=argparse.SUPPRESS)
    a = p.parse_args(argv)
    try:
        a.shapes = {name: tuple(map(int, numbers.split(":"))) for name, numbers in (s.split("=") for s in a.shapes.split(","))}
        a.tokens = [int(v) for v in a.tokens.split(",")]
        if any(len(shape) != 4 or min(shape) < 1 or shape[3] > shape[2] for shape in a.shapes.values()) or min(a.tokens) < 1:
            raise ValueError
    except ValueError:
        p.error("shapes are NAME=H:I:E:K, tokens are numbers above 0, with commas between")
    a.peers = a.peers.split(",")
    for q in a.peers:
        if q not in PEERS:
            p.error("no peer " + q)
    if not a.self_test and not a.routing:
        p.error("--routing FILE is needed")
    return a


def is_call(row, experts, chosen):
    """Whether a token may call these."""
    return isinstance(row, list) and len(row) == chosen == len(set(map(str, row))) and all(type(e) is int and 0 <= e < experts for e in row)


def read_routing(path, shapes, tokens):
    """What each of so many tokens calls, by (experts, top_k)."""
    try:
        with open(path, encoding="utf-8") as file:
            told = {(line["experts"], line["top_k"]): line["choices"] for line in map(json.loads, file)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"'{path}' tells no routing ({type(error).__name__}: {error})")
    for experts, chosen in sorted({shape[2:] for shape in shapes}):
        choices = told.get((experts, chosen))
        if not isinstance(choices, list) or len(choices) < tokens or not all(is_call(row, experts, chosen) for row in choices):
            raise ValueError(f"'{path}' does not tell what {tokens} tokens call of {experts} experts, {chosen} each")
    return told


def peers_here(names):
    """Those that can be measured; of others it is said why not."""
    lacks = {"torch": lacks_grouped(), "hf": lacks_transformers(), "triton-vllm": None if triton else "this Python has no triton"}
    for name in names:
        if lacks[name]:
            say({"kind": "absent", "peer": name, "absent": lacks[name]})
    return [name for name in names if not lacks[name]]


def measure_shape(a, name, shape, choices, device_name, cache, index):
    """All points of a layer from the `first` on; whether the device is lost, and the number of the next point."""
    hidden, inter, experts, chosen = shape
    each = chosen * 3 * hidden * inter * 2                      # what one token's call touches
    whole = experts * (3 * hidden * inter + hidden) * 2
    free, _ = torch.cuda.mem_get_info()
    most = int(max(2, min(math.ceil(4 * cache / each), free * 0.5 // whole)))
    try:
        copies = [make_copy(shape, DEVICE, 7 + i) for i in range(most)]
    except Exception as error:
        say({"kind": "error", "where": "weights", "shape": name, "error": short(error)})
        return sticky(), index + len(a.tokens) * len(a.peers)
    if "triton-vllm" in a.peers:
        begun = time.time()
        sets = {c: None for m in a.tokens for _, c in candidates(m, shape, device_name, a.configs)}
        x = torch.empty(max(1, min(a.tokens)), hidden, dtype=DTYPE, device=DEVICE)
        TritonMoe(len(x), shape, x).compile(list(sets), copies[0])
        say({"kind": "note", "note": "compiled", "shape": name, "configs": len(sets), "seconds": round(time.time() - begun, 1)})
    for m in a.tokens:
        hit = len({e for row in choices[:m] for e in row})
        some = copies[:max(2, math.ceil(4 * cache / (hit * each / chosen)))]
        try:
            x = make_x(m, shape, choices, copies[0], DEVICE)
            ref = reference(x, copies[0], shape)
            if not calls_as_told(x, some, shape, choices):
                raise RuntimeError("the gate does not choose what was told")
        except Exception as error:
            say({"kind": "error", "where": "tokens", "shape": name, "tokens": m, "error": short(error)})
            index += len(a.peers)
            if sticky():
                return True, index
            continue
        for peer in a.peers:
            index += 1
            if index <= a.first:
                continue
            if time.time() - START > a.budget:
                return False, index - 1
            try:
                say(one_point(peer, name, shape, m, x, some, hit, ref, device_name, a.configs))
            except Exception as error:
                say({"kind": "error", "peer": peer, "shape": name, "tokens": m, "error": short(error),
                     "at": traceback.format_exc().strip().splitlines()[-3:][0].strip()[:200]})
                if sticky():
                    return True, index
            torch.cuda.empty_cache()
    return False, index


def main(argv):
    a = parse(argv)
    if torch is None:
        print(f"peers_gpu: this Python has no {lacking}", file=sys.stderr)
        return 1
    if a.self_test:
        return self_test()
    try:
        routing = read_routing(a.routing, a.shapes.values(), max(a.tokens))
    except ValueError as error:
        print(f"peers_gpu: {error}", file=sys.stderr)
        return 1
    torch.backends.cuda.matmul.allow_tf32 = False
    if not torch.cuda.is_available():
        print("peers_gpu: no CUDA device", file=sys.stderr)
        return 1
    a.peers = peers_here(a.peers)
    about = torch.cuda.get_device_properties(0)
    device_name = "H200" if "H200" in about.name else "H100"
    cache = getattr(about, "L2_cache_size", 0) or 60 << 20
    if a.first == 0:
        say({"kind": "device", "name": about.name, "cache_bytes": cache, "torch": torch.__version__,
             "triton": getattr(triton, "__version__", None), "multiprocessors": about.multi_processor_count})
    index, lost, points = 0, False, len(a.tokens) * len(a.peers)
    for name, shape in a.shapes.items():
        if lost or time.time() - START > a.budget:
            break
        if index + points <= a.first:
            index += points
            continue
        with torch.inference_mode():
            lost, index = measure_shape(a, name, shape, routing[shape[2:]], device_name, cache, index)
        torch.cuda.empty_cache()
    if lost:
        # the device's context is gone: what is left goes on in a new process
        left = a.budget - (time.time() - START)
        say({"kind": "note", "note": "context lost, going on in a new process", "from": index, "seconds_left": round(left, 1)})
        if left > 5:
            sys.stdout.flush()
            return subprocess.call([sys.executable, os.path.abspath(__file__)] + argv + ["--from", str(index), "--budget", str(left)])
    if index < len(a.shapes) * points:
        say({"kind": "note", "note": "over budget, points left out", "points": len(a.shapes) * points - index})
    return 0


def self_test():
    """Small sizes on a CPU: routing, aligning, products and whole layers of every peer against the reference."""
    bad = 0

    def check(what, good, note=""):
        nonlocal bad
        bad += not good
        print("%-60s %s %s" % (what, "ok" if good else "BAD", note), flush=True)
    for shape, counts in (((64, 32, 8, 2), (1, 2, 33, 300)), ((96, 48, 64, 8), (1, 5, 140)), ((64, 80, 16, 4), (1, 7))):
        experts, chosen = shape[2:]
        for tokens in counts:
            title = "H %d I %d E %d K %d, %d tokens: " % (shape + (tokens,))
            copies = [make_copy(shape, "cpu", 3 + i, torch.bfloat16) for i in range(2)]
            choices = drawn(shape, tokens)
            x = make_x(tokens, shape, choices, copies[0], "cpu")
            check(title + "routing as told", calls_as_told(x, copies, shape, choices))
            rows, want = reference(x, copies[0], shape)
            for peer, make in (("torch", make_torch), ("hf", make_hf)):
                try:
                    run, _ = make(tokens, shape, x, copies)
                    with torch.inference_mode():
                        error = wrong(run(copies[0]), rows, want)
                    check(title + peer, error <= TOLERANCE, "%.2g" % error)
                except ImportError as failed:
                    print("%-60s left out: %s" % (title + peer, failed), flush=True)
                except Exception as failed:
                    check(title + peer, False, short(failed))
            if not INTERPRET:
                continue
            # Triton's interpreter cannot multiply bf16: its kernels are tried in float32, held to a tighter bound
            copy = make_copy(shape, "cpu", 3, torch.float32)
            x = make_x(tokens, shape, choices, copy, "cpu")
            rows, want = reference(x, copy, shape)
            moe = TritonMoe(tokens, shape, x)
            moe.route(copy, moe.ids, moe.weights)
            w, ids = torch.topk(torch.softmax(F.linear(x, copy["gate"]).double(), -1), chosen, dim=-1)
            w = w / w.sum(-1, keepdim=True)
            got = moe.ids.view(tokens, chosen)[rows].long()
            check(title + "routes", bool((got == ids[rows]).all())
                  and float((moe.weights.view(tokens, chosen)[rows] - w[rows]).abs().max()) < 1e-5)
            for bm in (16, 32):
                plan = moe.new_plan(bm, moe.ids)
                moe.align(plan, moe.ids)
                check(title + "aligned to %d%s" % (bm, ", naive" if plan["naive"] else ""), aligned(plan, moe.ids, experts, bm))
            for c in ((16, 32, 32, 1, 4, 3), (32, 64, 64, 3, 4, 3)):
                moe.config1 = moe.config2 = c
                moe.out.fill_(float("nan"))
                error = wrong(moe(copy), rows, want)
                check(title + "triton %s" % (c[:4],), error <= 1e-5, "%.2g" % error)
    for shape in ((2048, 1024, 64, 8), (2048, 768, 128, 8), (2880, 2880, 128, 4), (4096, 14336, 8, 2), (2816, 704, 128, 8)):
        for tokens in (1, 8, 64, 512, 4096, 8192):
            for dev in ("H100", "H200"):
                c = candidates(tokens, shape, dev, 6)
                if not 3 <= len(c) <= 6:
                    check("candidates of %s, %d tokens, %s" % (shape, tokens, dev), False, str(c))
    print("self test: %s" % ("good" if not bad else "%d BAD" % bad))
    return 1 if bad else 0


def aligned(plan, ids, experts, bm):
    """Each slot once, in a block of its own expert; the rest padding; the sum that of whole blocks."""
    post = int(plan["post"])
    slots, ids = plan["slots"].tolist(), ids.tolist()
    owner = plan["owner"].tolist()
    seen = []
    for at, slot in enumerate(slots[:post]):
        if slot < len(ids):
            seen.append(slot)
            if owner[at // bm] != ids[slot]:
                return False
    if sorted(seen) != list(range(len(ids))):
        return False
    if plan["naive"]:
        return post == len(ids) * bm
    return post == sum(cdiv(ids.count(e), bm) * bm for e in range(experts)) and post <= len(slots)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
