"""A layer for bench/peers_gpu.py: its numbers and what it should give, how a peer is timed, and the peers of torch and transformers."""
import importlib.util
import json
import statistics

import torch
import torch.nn.functional as F

DEVICE = "cuda"
DTYPE = torch.bfloat16


def short(error):
    return ("%s: %s" % (type(error).__name__, error)).strip().replace("\n", " ")[:300]


def say(line):
    print(json.dumps(line), flush=True)


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
    try:
        return timed(run, calls)
    except Exception as error:
        if sticky():
            raise
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


def grouped(a, b, offs):
    f = getattr(F, "grouped_mm", None) or torch._grouped_mm
    return f(a, b, offs=offs)


def torch_route(x, copy, chosen):
    p = torch.softmax(F.linear(x, copy["gate"]), dim=-1, dtype=torch.float32)
    w, ids = torch.topk(p, chosen, dim=-1)
    return w / w.sum(-1, keepdim=True), ids


def lacks_grouped():
    return None if hasattr(F, "grouped_mm") or hasattr(torch, "_grouped_mm") else "this torch has no grouped product"


def lacks_transformers():
    return None if importlib.util.find_spec("transformers") else "this Python has no transformers"


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
