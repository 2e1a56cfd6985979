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
import statistics
import subprocess
import sys
import time
import traceback

import torch
import torch.nn.functional as F

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

START = time.time()
INTERPRET = os.environ.get("TRITON_INTERPRET", "0") == "1"

PEERS = ("torch", "triton-vllm", "hf")
TOLERANCE = 1e-2
DEVICE = "cuda"
DTYPE = torch.bfloat16

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


# ---------------------------------------------------------------------------------------------------------------- Triton kernels

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


# ------------------------------------------------------------------------------------------------------------------- other peers

def grouped(a, b, offs):
    f = getattr(F, "grouped_mm", None) or torch._grouped_mm
    return f(a, b, offs=offs)


def torch_route(x, copy, chosen):
    p = torch.softmax(F.linear(x, copy["gate"]), dim=-1, dtype=torch.float32)
    w, ids = torch.topk(p, chosen, dim=-1)
    return w / w.sum(-1, keepdim=True), ids


def make_torch(tokens, shape, x, copies):
    hidden, inter, experts, chosen = shape
    every = torch.arange(experts, device=x.device, dtype=torch.int32)

    def run(copy):
        w, ids = torch_route(x, copy, chosen)
        by, order = torch.sort(ids.flatten().to(torch.int32))
        offs = torch.searchsorted(by, every, right=True, out_int32=True)
        token = order // chosen
        h = grouped(x[token], copy["up"].transpose(1, 2), offs)
        a = F.silu(h[:, :inter]) * h[:, inter:]
        y = grouped(a, copy["down"].transpose(1, 2), offs)
        y = y * w.flatten()[order].to(y.dtype).unsqueeze(1)
        return torch.zeros_like(x).index_add_(0, token, y)
    return run, {}


def make_hf(tokens, shape, x, copies):
    import transformers
    from transformers.models.olmoe.configuration_olmoe import OlmoeConfig
    from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock
    hidden, inter, experts, chosen = shape
    config = OlmoeConfig(hidden_size=hidden, intermediate_size=inter, num_experts=experts, num_experts_per_tok=chosen,
                         norm_topk_prob=True, hidden_act="silu")
    config._experts_implementation = "grouped_mm"
    blocks = {}
    for copy in copies:
        with torch.device("meta"):
            block = OlmoeSparseMoeBlock(config).eval()
        for module, name, value in ((block.gate, "weight", copy["gate"]), (block.experts, "gate_up_proj", copy["up"]),
                                    (block.experts, "down_proj", copy["down"])):
            if getattr(module, name).shape != value.shape:
                raise RuntimeError("transformers keeps %s as %s" % (name, tuple(getattr(module, name).shape)))
            setattr(module, name, torch.nn.Parameter(value, requires_grad=False))
        blocks[id(copy)] = block

    def run(copy):
        out = blocks[id(copy)](x.unsqueeze(0))
        return (out[0] if isinstance(out, tuple) else out).view_as(x)
    return run, {"transformers": transformers.__version__}


# ----------------------------------------------------------------------------------------------------------- data and reference

def make_copy(shape, device, seed, dtype=None):
    """Weights; the gate's column e < E is 4 for expert e and 0 for others."""
    hidden, inter, experts, _ = shape
    g = torch.Generator(device=device)
    g.manual_seed(seed)

    def normal(*size, scale):
        return torch.empty(size, dtype=dtype or DTYPE, device=device).normal_(0.0, scale, generator=g)
    copy = {"gate": normal(experts, hidden, scale=hidden ** -0.5), "up": normal(experts, 2 * inter, hidden, scale=hidden ** -0.5),
            "down": normal(experts, hidden, inter, scale=inter ** -0.5)}
    copy["gate"][:, :experts] = 4 * torch.eye(experts, dtype=copy["gate"].dtype, device=device)
    return copy


def make_x(tokens, shape, choices, copy, device):
    """Rows that call `choices`: 4 and some 32nds there, below 1 where other experts are."""
    hidden, _, experts, chosen = shape
    g = torch.Generator(device=device)
    g.manual_seed(1000)
    x = torch.empty(tokens, hidden, dtype=copy["gate"].dtype, device=device).normal_(0.0, 1.0, generator=g)
    x[:, :experts].clamp_(-1, 1)
    called = torch.tensor(choices[:tokens], dtype=torch.int64, device=device)
    steps = (4 + torch.arange(chosen, device=device) / 32).to(x.dtype)
    return x.scatter_(1, called, steps.expand(tokens, chosen).contiguous())


def untied(x, copy, chosen):
    logits = F.linear(x, copy["gate"]).float()
    top = torch.topk(logits, min(chosen + 1, logits.shape[1]), dim=-1).values
    if top.shape[1] == chosen:
        return torch.ones(len(x), dtype=torch.bool, device=x.device), logits
    # a step of bf16 at that size, so that a sum rounded otherwise does not choose otherwise
    return top[:, chosen - 1] - top[:, chosen] > top[:, chosen - 1].abs() * 2.0 ** -7, logits


def reference(x, copy, shape, most=256):
    """Rows to compare and what they should be: float32, an expert at a time (float64 on a CPU)."""
    hidden, inter, experts, chosen = shape
    exact = torch.float64 if x.device.type == "cpu" else torch.float32
    good, logits = untied(x, copy, chosen)
    rows = good.nonzero().flatten()
    if len(rows) > most:
        rows = rows[torch.linspace(0, len(rows) - 1, most, device=x.device).round().long()]
    if len(rows) == 0:
        rows = torch.arange(min(len(x), most), device=x.device)
    w, ids = torch.topk(torch.softmax(logits[rows].to(exact), -1), chosen, dim=-1)
    w = w / w.sum(-1, keepdim=True)
    xs = x[rows].to(exact)
    out = torch.zeros(len(rows), hidden, dtype=exact, device=x.device)
    for e in torch.unique(ids).tolist():
        at, k = (ids == e).nonzero(as_tuple=True)
        h = xs[at] @ copy["up"][e].to(exact).t()
        a = F.silu(h[:, :inter]) * h[:, inter:]
        out.index_add_(0, at, (a @ copy["down"][e].to(exact).t()) * w[at, k].unsqueeze(1))
    return rows, out


def wrong(got, rows, want):
    got = got[rows].to(want.dtype)
    if not bool(torch.isfinite(got).all()):
        return float("inf")
    return float((got - want).norm() / want.norm().clamp_min(1e-30))


def calls_as_told(x, copies, shape, choices):
    """Whether each copy's gate chooses what was told."""
    told = torch.tensor(choices[:len(x)], device=x.device).sort(-1).values
    return all(bool((torch.topk(F.linear(x, c["gate"]).float(), shape[3], dim=-1).indices.sort(-1).values == told).all())
               for c in copies)


def drawn(shape, tokens):
    """Choices for a test."""
    g = torch.Generator()
    g.manual_seed(tokens)
    return torch.rand(tokens, shape[2], generator=g).argsort(-1)[:, :shape[3]].tolist()


# ------------------------------------------------------------------------------------------------------------------------ timing

NO_GRAPH = set()


def timed(run, calls, samples=7, sample_ms=4.0, graph=True):
    """Microseconds a call: run() makes `calls` of them; captured in a graph unless that is not wanted."""
    again = run
    g = None
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    if graph:
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            run()
        again = g.replay
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def took(n):
        begin.record()
        for _ in range(n):
            again()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)
    again()
    torch.cuda.synchronize()
    once = took(1)
    n = max(1, min(200, int(sample_ms / max(once, 1e-3))))
    took(n)
    all_ = sorted(took(n) / n / calls * 1e3 for _ in range(samples))
    if g is not None:
        g.reset()
    return {"us": statistics.median(all_), "us_least": all_[0], "us_most": all_[-1], "graph": graph, "replays": n * samples}


def timed_peer(name, run, calls):
    if name not in NO_GRAPH:
        try:
            return timed(run, calls)
        except Exception as error:
            if sticky():
                raise
            NO_GRAPH.add(name)
            say({"kind": "note", "note": "no graph", "peer": name, "error": short(error)})
    return timed(run, calls, graph=False)


def sticky():
    """Whether the device's context is lost."""
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device=DEVICE).item()
        return False
    except Exception:
        return True


# ----------------------------------------------------------------------------------------------------------------------- reports

def short(error):
    return ("%s: %s" % (type(error).__name__, error)).strip().replace("\n", " ")[:300]


def say(line):
    print(json.dumps(line), flush=True)


# --------------------------------------------------------------------------------------------------------------------- a whole run

def one_point(peer, name, shape, tokens, x, copies, experts_hit, ref, device_name, most):
    hidden, inter, experts, chosen = shape
    rows, want = ref
    extra = {}
    if peer == "triton-vllm":
        if triton is None:
            raise RuntimeError("no triton")
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
        if any(len(shape) != 4 for shape in a.shapes.values()):
            raise ValueError
    except ValueError:
        p.error("shapes are NAME=H:I:E:K, tokens are numbers, with commas between")
    a.peers = a.peers.split(",")
    for q in a.peers:
        if q not in PEERS:
            p.error("no peer " + q)
    if not a.self_test and not a.routing:
        p.error("--routing FILE is needed")
    return a


def read_routing(path):
    with open(path, encoding="utf-8") as file:
        return {(line["experts"], line["top_k"]): line["choices"] for line in map(json.loads, file)}


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
    if "triton-vllm" in a.peers and triton is not None:
        begun = time.time()
        sets = {c: None for m in a.tokens for _, c in candidates(m, shape, device_name, a.configs)}
        x = torch.empty(max(1, min(a.tokens)), hidden, dtype=DTYPE, device=DEVICE)
        TritonMoe(len(x), shape, x).compile(list(sets), copies[0])
        say({"kind": "note", "note": "compiled", "shape": name, "configs": len(sets), "seconds": round(time.time() - begun, 1)})
    for m in a.tokens:
        x = make_x(m, shape, choices, copies[0], DEVICE)
        hit = len({e for row in choices[:m] for e in row})
        some = copies[:max(2, math.ceil(4 * cache / (hit * each / chosen)))]
        ref = reference(x, copies[0], shape)
        if not calls_as_told(x, some, shape, choices):
            raise RuntimeError("the gate does not choose what was told")
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
    if a.self_test:
        return self_test()
    torch.backends.cuda.matmul.allow_tf32 = False
    if not torch.cuda.is_available():
        print("peers_gpu: no CUDA device", file=sys.stderr)
        return 1
    routing = read_routing(a.routing)
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


# --------------------------------------------------------------------------------------------------------------------- self test

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
