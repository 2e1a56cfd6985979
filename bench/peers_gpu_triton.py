"""vLLM's Triton path, written anew for bench/peers_gpu.py: its block sizes, its kernels, and a layer made of them."""
import math
import os

import torch

from peers_gpu_layer import say, short, sticky, timed

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

INTERPRET = os.environ.get("TRITON_INTERPRET", "0") == "1"

# Block sizes that vLLM publishes (fused_moe/configs, bf16), by (experts, intermediate) and device: tokens: (BLOCK_M, BLOCK_N,
# BLOCK_K, GROUP_M, warps, stages).  Only the token counts nearest to those asked here.  It has none for 64 experts of 1024 or
# 2048; there it takes its defaults, and those of its 64 experts of 1280 stand here as a neighbour's, to be tried.
PUBLISHED = {
    (128, 768, "H100"): {
        1: (16, 32, 64, 1, 4, 4), 2: (16, 64, 64, 32, 4, 3), 4: (16, 128, 64, 1, 4, 4), 8: (16, 64, 64, 64, 4, 5),
        16: (16, 32, 256, 64, 4, 2), 32: (16, 32, 128, 1, 4, 5), 64: (16, 256, 128, 1, 8, 3), 128: (16, 256, 128, 1, 8, 2),
        256: (32, 256, 128, 1, 8, 3), 512: (64, 128, 64, 1, 4, 3), 1024: (64, 256, 64, 1, 8, 5), 2048: (128, 256, 64, 1, 8, 4),
        4096: (128, 256, 64, 1, 8, 4)},
    (128, 768, "H200"): {
        1: (16, 64, 64, 1, 4, 5), 2: (16, 64, 64, 1, 4, 4), 4: (16, 64, 128, 16, 4, 2), 8: (16, 64, 128, 1, 4, 3),
        16: (16, 64, 256, 1, 4, 2), 32: (16, 64, 128, 16, 4, 2), 64: (16, 256, 128, 1, 8, 2), 128: (16, 128, 128, 1, 4, 2),
        256: (32, 256, 128, 16, 4, 2), 512: (64, 128, 64, 1, 4, 3), 1024: (128, 256, 64, 16, 8, 4),
        2048: (128, 256, 64, 1, 8, 4), 4096: (128, 256, 64, 16, 8, 4)},
    (128, 704, "H100"): {
        1: (16, 32, 64, 1, 4, 5), 2: (16, 32, 64, 1, 4, 3), 4: (16, 32, 64, 1, 4, 3), 8: (16, 64, 128, 1, 4, 4),
        16: (16, 64, 128, 1, 4, 4), 32: (16, 64, 128, 1, 4, 4), 64: (16, 64, 128, 1, 4, 4), 128: (16, 64, 128, 1, 4, 4),
        256: (32, 64, 128, 1, 4, 4), 512: (64, 64, 64, 1, 4, 3), 1024: (64, 128, 64, 1, 4, 3), 2048: (128, 256, 64, 1, 8, 4),
        4096: (128, 256, 64, 1, 8, 4)},
    (128, 704, "H200"): {
        1: (16, 256, 128, 1, 8, 2), 2: (16, 64, 64, 1, 4, 4), 4: (16, 64, 128, 1, 4, 4), 8: (16, 64, 128, 1, 4, 4),
        16: (16, 64, 128, 64, 4, 4), 32: (16, 64, 128, 1, 4, 4), 64: (16, 128, 128, 1, 8, 4), 128: (16, 64, 128, 16, 4, 4),
        256: (32, 64, 128, 16, 4, 4), 512: (64, 128, 64, 16, 4, 3), 1024: (64, 128, 64, 1, 4, 3),
        2048: (128, 256, 64, 1, 8, 4), 4096: (128, 256, 64, 1, 8, 3)},
    (8, 14336, "H100"): {
        1: (16, 64, 256, 16, 8, 5), 2: (16, 64, 128, 64, 4, 3), 4: (16, 64, 128, 64, 4, 3), 8: (32, 64, 256, 32, 8, 5),
        16: (64, 128, 128, 1, 8, 2), 32: (32, 128, 128, 1, 8, 4), 64: (64, 128, 128, 1, 8, 4), 128: (64, 128, 64, 1, 8, 5),
        256: (128, 128, 64, 1, 4, 5), 512: (128, 256, 64, 16, 8, 4), 1024: (128, 256, 64, 64, 8, 4),
        2048: (128, 256, 64, 64, 8, 4), 4096: (128, 256, 64, 16, 8, 3)},
    (8, 14336, "H200"): {
        1: (16, 128, 128, 16, 4, 5), 2: (32, 64, 128, 1, 4, 5), 4: (16, 64, 64, 1, 4, 5), 8: (16, 128, 128, 1, 4, 5),
        16: (16, 64, 256, 16, 4, 3), 32: (16, 128, 128, 16, 8, 3), 64: (32, 128, 128, 64, 4, 3), 128: (64, 128, 128, 1, 8, 4),
        256: (128, 256, 64, 1, 8, 4), 512: (128, 256, 64, 16, 8, 4), 1024: (128, 256, 64, 16, 8, 4),
        2048: (128, 256, 64, 32, 8, 4), 4096: (128, 256, 64, 16, 8, 4)},
    (128, 2880, "H100"): {
        1: (16, 32, 64, 1, 4, 4), 2: (16, 32, 64, 1, 4, 3), 4: (16, 64, 128, 64, 4, 4), 8: (16, 64, 128, 64, 4, 4),
        16: (16, 32, 256, 16, 4, 5), 32: (16, 32, 256, 1, 8, 4), 64: (16, 64, 256, 1, 4, 4), 128: (16, 64, 256, 1, 4, 5),
        256: (32, 64, 256, 1, 4, 5), 512: (32, 64, 256, 1, 4, 5), 1024: (64, 128, 128, 1, 8, 4),
        2048: (128, 128, 64, 1, 8, 5), 4096: (128, 256, 64, 1, 8, 3)},
}
NEIGHBOUR = {
    (64, "H100"): {
        1: (16, 256, 128, 32, 8, 3), 2: (16, 64, 128, 64, 4, 5), 4: (16, 64, 128, 64, 4, 5), 8: (16, 128, 128, 64, 4, 3),
        16: (16, 64, 128, 1, 4, 5), 32: (32, 128, 128, 1, 4, 3), 64: (16, 128, 128, 1, 4, 5), 128: (64, 64, 64, 1, 4, 3),
        512: (128, 128, 64, 1, 8, 3), 1024: (128, 256, 64, 1, 8, 4), 4096: (128, 256, 64, 32, 8, 4)},
    (64, "H200"): {
        1: (16, 64, 64, 1, 4, 4), 2: (16, 128, 128, 16, 4, 2), 4: (16, 64, 128, 32, 4, 5), 8: (16, 128, 128, 32, 4, 3),
        16: (16, 64, 128, 16, 4, 2), 32: (16, 128, 128, 1, 4, 4), 64: (16, 128, 128, 1, 8, 3), 128: (32, 128, 128, 1, 4, 3),
        512: (128, 256, 64, 1, 8, 4), 1024: (128, 256, 64, 1, 8, 4), 4096: (128, 256, 64, 16, 8, 4)},
}
SHARED_MAX = 227 * 1024


def nearest(table, tokens):
    return table[min(table, key=lambda m: abs(m - tokens))]


def default_config(tokens, experts, chosen):
    """What vLLM takes without a published file (the rule of 2026)."""
    bm = 16 if tokens <= 32 else 32 if tokens <= 96 else 64 if tokens <= 512 else 128
    return (bm, 64 if tokens <= 64 else 128, 128 if tokens <= 64 else 64, 16 if tokens * chosen // experts > 128 else 1,
            4 if tokens <= 128 else 8, 4 if tokens <= 32 else 3)


def older_default(tokens, experts):
    """What it took before, with Triton's own 4 warps and 3 stages."""
    return (16, 32, 64, 1, 4, 3) if tokens <= experts else (64, 64, 32, 8, 4, 3)


def candidates(tokens, shape, device, most):
    """Configurations to try, the first of them what vLLM would take itself: [(origin, config)]."""
    hidden, inter, experts, chosen = shape
    found = []
    for dev in (device, "H100", "H200"):
        table = PUBLISHED.get((experts, inter, dev))
        if table:
            found.append(("published " + dev, nearest(table, tokens)))
            break
    found.append(("default", default_config(tokens, experts, chosen)))
    neighbour = NEIGHBOUR.get((experts, device))
    if neighbour and len(found) == 1:
        found.append(("neighbour", nearest(neighbour, tokens)))
    each = tokens * chosen / experts
    if each <= 4:
        more = [(16, 64, 128, 1, 4, 4), (16, 128, 128, 1, 4, 3), (16, 64, 256, 1, 4, 3), (16, 32, 256, 1, 4, 4)]
    elif each <= 24:
        more = [(16, 64, 128, 1, 4, 4), (16, 128, 128, 1, 4, 3), (16, 256, 128, 1, 8, 3), (32, 128, 128, 1, 4, 3)]
    elif each <= 96:
        more = [(64, 128, 64, 1, 4, 4), (32, 128, 128, 1, 4, 3), (64, 256, 64, 1, 8, 4), (64, 128, 128, 1, 8, 3)]
    else:
        more = [(128, 256, 64, 16, 8, 4), (128, 128, 64, 16, 8, 4), (64, 256, 64, 16, 8, 4), (128, 256, 64, 1, 8, 3)]
    found += [("tried", c) for c in more]
    if each <= 4:
        found.append(("older default", older_default(tokens, experts)))
    out, seen = [], set()
    for origin, c in found:
        bm, bn, bk, _, _, stages = c
        if c in seen or stages * (bm * bk + bk * bn) * 2 > SHARED_MAX:
            continue
        seen.add(c)
        out.append((origin, c))
    return out[:most]


if triton is not None:

    @triton.jit(do_not_specialize=["rows"])
    def k_route(logits, ids, weights, rows, E: tl.constexpr, K: tl.constexpr, EP: tl.constexpr, KP: tl.constexpr,
                R: tl.constexpr):
        """The best K of a row of logits and their softmax among themselves (which is the whole softmax, normalised)."""
        r = tl.program_id(0) * R + tl.arange(0, R)
        col = tl.arange(0, EP)
        slot = tl.arange(0, KP)
        live = r < rows
        v = tl.load(logits + r[:, None].to(tl.int64) * E + col[None, :], mask=live[:, None] & (col < E)[None, :],
                    other=float("-inf")).to(tl.float32)
        v = tl.where(live[:, None], v, 0.0)
        top = tl.max(v, 1)
        w = tl.zeros((R, KP), tl.float32)
        chosen = tl.zeros((R, KP), tl.int32)
        total = tl.zeros((R,), tl.float32)
        for k in tl.static_range(K):
            best = tl.max(v, 1)
            at = tl.argmax(v, 1)
            e = tl.exp(best - top)
            total += e
            w = tl.where(slot[None, :] == k, e[:, None], w)
            chosen = tl.where(slot[None, :] == k, at[:, None].to(tl.int32), chosen)
            v = tl.where(col[None, :] == at[:, None], float("-inf"), v)
        w = w / total[:, None]
        to = r[:, None] * K + slot[None, :]
        keep = live[:, None] & (slot < K)[None, :]
        tl.store(weights + to, w, mask=keep)
        tl.store(ids + to, chosen, mask=keep)

    @triton.jit(do_not_specialize=["count", "padded_most"])
    def k_align(ids, slots, owner, cursor, post, count, padded_most, EP: tl.constexpr, BM: tl.constexpr, CH: tl.constexpr,
                ALONE: tl.constexpr):
        """Where each expert's rows begin, each expert's padded to whole blocks; which expert owns each block.  ALONE: one
        program does all, the scatter too; else program 1 clears the slots and k_scatter follows."""
        lane = tl.arange(0, CH)
        if ALONE or tl.program_id(0) == 1:
            for c in range(0, padded_most, CH):
                tl.store(slots + c + lane, tl.zeros((CH,), tl.int32) + count, mask=c + lane < padded_most)
        if ALONE or tl.program_id(0) == 0:
            counts = tl.zeros((EP,), tl.int32)
            for c in range(0, count, CH):
                m = c + lane < count
                counts += tl.histogram(tl.load(ids + c + lane, mask=m, other=0), EP, mask=m)
            padded = (counts + BM - 1) // BM * BM
            ends = tl.cumsum(padded, 0)
            tl.store(post, tl.sum(padded, 0))
            tl.store(cursor + tl.arange(0, EP), ends - padded)
            few = tl.arange(0, 32)
            blocks = padded_most // BM
            for b in range(0, blocks, 32):
                who = tl.sum((ends[None, :] <= ((b + few) * BM)[:, None]).to(tl.int32), 1)
                tl.store(owner + b + few, who, mask=b + few < blocks)
            if ALONE:
                tl.debug_barrier()
                for c in range(0, count, CH):
                    m = c + lane < count
                    e = tl.load(ids + c + lane, mask=m, other=0)
                    at = tl.atomic_add(cursor + e, 1, mask=m)
                    tl.store(slots + at, c + lane, mask=m)

    @triton.jit(do_not_specialize=["count"])
    def k_scatter(ids, slots, cursor, count, CH: tl.constexpr):
        i = tl.program_id(0) * CH + tl.arange(0, CH)
        m = i < count
        at = tl.atomic_add(cursor + tl.load(ids + i, mask=m, other=0), 1, mask=m)
        tl.store(slots + at, i, mask=m)

    @triton.jit(do_not_specialize=["rows", "divide", "blocks_m", "group_m"])
    def k_grouped(a, b, c, weights, slots, owner, post, n, k, rows, divide, blocks_m, group_m, BM: tl.constexpr,
                  BN: tl.constexpr, BK: tl.constexpr, WEIGHTED: tl.constexpr, EVEN: tl.constexpr):
        """c[slot] = a[slot / divide] . b[owner]^T (times the slot's weight), a block of BM slots of one expert by BN columns a
        program; programs side by side share columns of group_m blocks."""
        pid = tl.program_id(0)
        blocks_n = tl.cdiv(n, BN)
        strip = group_m * blocks_n
        first = pid // strip * group_m
        height = tl.minimum(blocks_m - first, group_m)
        pm = first + pid % strip % height
        pn = pid % strip // height
        if pm * BM >= tl.load(post):
            return
        slot = tl.load(slots + pm * BM + tl.arange(0, BM))
        live = slot < rows
        expert = tl.load(owner + pm).to(tl.int64)
        cols = pn * BN + tl.arange(0, BN)
        wrapped = (cols % n).to(tl.int64)
        ks = tl.arange(0, BK)
        pa = a + (slot // divide).to(tl.int64)[:, None] * k + ks[None, :]
        pb = b + expert * n * k + wrapped[None, :] * k + ks[:, None]
        acc = tl.zeros((BM, BN), tl.float32)
        for s in range(0, tl.cdiv(k, BK)):
            if EVEN:
                va = tl.load(pa, mask=live[:, None], other=0.0)
                vb = tl.load(pb)
            else:
                left = ks < k - s * BK
                va = tl.load(pa, mask=live[:, None] & left[None, :], other=0.0)
                vb = tl.load(pb, mask=left[:, None], other=0.0)
            acc = tl.dot(va, vb, acc)
            pa += BK
            pb += BK
        if WEIGHTED:
            acc = acc * tl.load(weights + slot, mask=live, other=0.0)[:, None]
        tl.store(c + slot.to(tl.int64)[:, None] * n + cols[None, :], acc.to(c.dtype.element_ty),
                 mask=live[:, None] & (cols < n)[None, :])

    @triton.jit
    def k_silu(h, out, inter, B: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        col = tl.program_id(1) * B + tl.arange(0, B)
        m = col < inter
        g = tl.load(h + row * 2 * inter + col, mask=m, other=0.0).to(tl.float32)
        u = tl.load(h + row * 2 * inter + inter + col, mask=m, other=0.0).to(tl.float32)
        tl.store(out + row * inter + col, (g / (1.0 + tl.exp(-g)) * u).to(out.dtype.element_ty), mask=m)

    @triton.jit
    def k_sum(y, out, hidden, K: tl.constexpr, B: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        col = tl.program_id(1) * B + tl.arange(0, B)
        m = col < hidden
        acc = tl.zeros((B,), tl.float32)
        for k in tl.static_range(K):
            acc += tl.load(y + (row * K + k) * hidden + col, mask=m, other=0.0).to(tl.float32)
        tl.store(out + row * hidden + col, acc.to(out.dtype.element_ty), mask=m)


def cdiv(a, b):
    return -(-a // b)


def pow2(n):
    return 1 << max(0, (n - 1).bit_length())


def padded_most(slots, experts, bm):
    """The most slots that aligning can need, in whole blocks."""
    most = slots + experts * (bm - 1)
    if slots < experts:
        most = min(most, slots * bm)
    return cdiv(most, bm) * bm


class TritonMoe:
    SMALL = 1024        # up to here one program aligns everything

    def __init__(self, tokens, shape, x):
        self.tokens, self.shape, self.x = tokens, shape, x
        hidden, inter, experts, chosen = shape
        dev = x.device
        s = self.slots = tokens * chosen
        self.ep = max(32, pow2(experts))
        self.logits = torch.empty(tokens, experts, dtype=x.dtype, device=dev)
        self.h = torch.empty(s, 2 * inter, dtype=x.dtype, device=dev)
        self.a = torch.empty(s, inter, dtype=x.dtype, device=dev).normal_()     # so that tuning multiplies what is like numbers
        self.y = torch.empty(s, hidden, dtype=x.dtype, device=dev)
        self.out = torch.empty(tokens, hidden, dtype=x.dtype, device=dev)
        self.ids, self.weights = self.new_route()
        self.cursor = torch.empty(self.ep, dtype=torch.int32, device=dev)
        self.plans = {}
        self.config1 = self.config2 = None

    def new_route(self):
        dev = self.x.device
        return (torch.empty(self.slots, dtype=torch.int32, device=dev),
                torch.empty(self.slots, dtype=torch.float32, device=dev))

    def new_plan(self, bm, ids):
        """Buffers of one alignment.  So few rows that each may have a block of its own (vLLM does so while four times the
        slots are no more than the experts) need no aligning: slots are constant and ids are owners."""
        dev = self.x.device
        s, experts = self.slots, self.shape[2]
        if s * 4 <= experts:
            slots = torch.full((s, bm), s, dtype=torch.int32)
            slots[:, 0] = torch.arange(s, dtype=torch.int32)
            return {"bm": bm, "naive": True, "slots": slots.flatten().to(dev), "owner": ids, "blocks": s,
                    "post": torch.full((1,), s * bm, dtype=torch.int32, device=dev)}
        most = padded_most(s, experts, bm)
        return {"bm": bm, "naive": False, "slots": torch.empty(most, dtype=torch.int32, device=dev),
                "owner": torch.empty(most // bm, dtype=torch.int32, device=dev), "blocks": most // bm,
                "post": torch.empty(1, dtype=torch.int32, device=dev)}

    def plan(self, bm):
        if bm not in self.plans:
            self.plans[bm] = self.new_plan(bm, self.ids)
        return self.plans[bm]

    def route(self, copy, ids, weights):
        hidden, inter, experts, chosen = self.shape
        torch.mm(self.x, copy["gate"].t(), out=self.logits)
        r = 1 if self.tokens <= 256 else 4
        k_route[(cdiv(self.tokens, r),)](self.logits, ids, weights, self.tokens, E=experts, K=chosen, EP=pow2(experts),
                                         KP=max(2, pow2(chosen)), R=r, num_warps=1 if r == 1 else 4)

    def align(self, plan, ids):
        if plan["naive"]:
            return
        s, bm = self.slots, plan["bm"]
        alone = s <= self.SMALL
        ch = min(1024, max(128, pow2(s)))
        k_align[(1 if alone else 2,)](ids, plan["slots"], plan["owner"], self.cursor, plan["post"], s,
                                      plan["slots"].numel(), EP=self.ep, BM=bm, CH=ch, ALONE=alone,
                                      num_warps=max(4, ch // 64))
        if not alone:
            k_scatter[(cdiv(s, 256),)](ids, plan["slots"], self.cursor, s, CH=256, num_warps=4)

    def arguments(self, second, config, copy, plan, weights):
        """Arguments, grid and options of one of the two products."""
        hidden, inter, experts, chosen = self.shape
        bm, bn, bk, group, warps, stages = config
        n, k = (hidden, inter) if second else (2 * inter, hidden)
        a, b, c = (self.a, copy["down"], self.y) if second else (self.x, copy["up"], self.h)
        args = (a, b, c, weights, plan["slots"], plan["owner"], plan["post"], n, k, self.slots, 1 if second else chosen,
                plan["blocks"], group)
        options = dict(BM=bm, BN=bn, BK=bk, WEIGHTED=second, EVEN=k % bk == 0)
        if not INTERPRET:
            options.update(num_warps=warps, num_stages=stages)
        return args, (plan["blocks"] * cdiv(n, bn),), options

    def product(self, second, config, copy, plan, weights):
        args, grid, options = self.arguments(second, config, copy, plan, weights)
        k_grouped[grid](*args, **options)

    def silu(self):
        inter = self.shape[1]
        b = min(1024, pow2(inter))
        k_silu[(self.slots, cdiv(inter, b))](self.h, self.a, inter, B=b)

    def combine(self):
        hidden, _, _, chosen = self.shape
        b = min(1024, pow2(hidden))
        k_sum[(self.tokens, cdiv(hidden, b))](self.y, self.out, hidden, K=chosen, B=b)

    def __call__(self, copy):
        plan = self.plan(self.config1[0])
        self.route(copy, self.ids, self.weights)
        self.align(plan, self.ids)
        self.product(False, self.config1, copy, plan, self.weights)
        self.silu()
        self.product(True, self.config2, copy, plan, self.weights)
        self.combine()
        return self.out

    def compile(self, configs, copy):
        """Compiles both products of all configurations (a quarter of a second each)."""
        failed = 0
        for c in configs:
            if failed > 3:
                break
            plan = self.new_plan(c[0], self.ids)
            for second in (False, True):
                args, grid, options = self.arguments(second, c, copy, plan, self.weights)
                try:
                    k_grouped.warmup(*args, grid=grid, **options)
                except Exception as error:  # it is left out when it is tried
                    failed += 1
                    say({"kind": "note", "note": "does not compile", "config": c, "error": short(error)})

    def tune(self, tries, copies):
        """The best pair of configurations of one BLOCK_M, each product timed by itself over the copies: (pair, table)."""
        routes = []
        for copy in copies:
            ids, weights = self.new_route()
            self.route(copy, ids, weights)
            routes.append((ids, weights))
        table, best = [], {}
        plans = {}
        for origin, c in tries:
            bm = c[0]
            if bm not in plans:
                plans[bm] = []
                for ids, _ in routes:
                    plan = self.new_plan(bm, ids)
                    self.align(plan, ids)
                    plans[bm].append(plan)
            took = []
            for second in (False, True):
                def run():
                    for copy, plan, (_, weights) in zip(copies, plans[bm], routes):
                        self.product(second, c, copy, plan, weights)
                try:
                    took.append(timed(run, len(copies), samples=3, sample_ms=1.0)["us"])
                except Exception as error:
                    if sticky():
                        raise
                    took.append(float("inf"))
                    say({"kind": "note", "note": "configuration left out", "config": c, "error": short(error)})
                have = best.setdefault(bm, {})
                if second not in have or took[-1] < have[second][0]:
                    have[second] = (took[-1], c)
            table.append({"origin": origin, "config": c, "gate_up_us": round(took[0], 2), "down_us": round(took[1], 2)})
        bm = min(best, key=lambda m: best[m][False][0] + best[m][True][0])
        if math.isinf(best[bm][False][0] + best[bm][True][0]):
            raise RuntimeError("no configuration runs")
        return (best[bm][False][1], best[bm][True][1]), table
