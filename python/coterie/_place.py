"""coterie.place: what `coterie place` does, on arrays and files."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Any

import numpy

from . import _structs as structs
from ._library import array_at as _at, call, copy_of as _copy, free, host, library, opened as _opened, say as _say, text as _text, whole
from ._shown import Shown
from ._trace import Trace

ATTENTION = {"paper": 0, "dp": 1}  # cot_attention_kind; weights are 2
DISPATCH = {"uniform": 0, "nearest": 1}  # cot_dispatch
METHODS = {}  # of cot_place_methods: whether slots may be replicas
for _method in (structs.PlaceMethod * 64).in_dll(library, "cot_place_methods"):  # ends with a NULL name
    if not _method.name:
        break
    METHODS[_method.name.decode()] = _method.replicas


def _array(value, dtype, shape, name):
    """A C-contiguous array of that shape; None stays None."""
    if value is None:
        return None
    array = host(value, name)
    if numpy.dtype(dtype).kind == "i" and array.size:
        if array.dtype.kind not in "iu":
            raise TypeError(f"{name} holds {array.dtype}, expected whole numbers")
        whole(array.min(), name), whole(array.max(), name)
    try:
        return numpy.ascontiguousarray(numpy.broadcast_to(array, shape), dtype=dtype)
    except ValueError:
        raise ValueError(f"{name} has shape {array.shape}, expected {tuple(shape)}") from None


def _limit(value, name, least):
    """A finite float; None is 0, which says that there is no limit."""
    if value is None:
        return 0.0
    if not (least <= value < float("inf")):
        raise ValueError(f"{name} is {value}, expected {least:g} or more")
    return float(value)


def _choice(value, choices, name):
    if value not in choices:
        raise ValueError(f"{name} is {value!r}, expected {' or '.join(map(repr, choices))}")
    return choices[value]


def _ranks(ranks):
    """How many ranks, and on how many nodes a hop apart where it says so, as "NODESxRANKS"; else 0."""
    if not isinstance(ranks, str):
        return whole(ranks or 0, "ranks"), 0
    nodes, several, each = ranks.partition("x")
    if not (nodes.isdecimal() and (each.isdecimal() if several else True)):
        raise ValueError(f"ranks is {ranks!r}, expected a number or NODESxRANKS, such as '4x8'")
    nodes, each = whole(int(nodes), "ranks", least=1), whole(int(each or 1), "ranks", least=1)
    return whole(nodes * each, "ranks", least=1), nodes if several else 0


@contextlib.contextmanager
def _load(load, first_layer):
    if isinstance(load, (str, os.PathLike)):
        load = [load]
    if isinstance(load, (list, tuple)) and load and isinstance(load[0], (str, os.PathLike)):
        paths = (ctypes.c_char_p * len(load))(*map(_text, load))
        options = structs.LoadOptions(ctypes.sizeof(structs.LoadOptions), first_layer, 0, _say, None)
        read = _opened(structs.LoadCounts, "cot_load_counts_read", "cot_load_counts_free", paths,
                       ctypes.c_size_t(len(load)), ctypes.byref(options))  # fmt: skip
        with read as counts:
            yield counts
        return
    top_k, hidden, layers, model_hash = 0, 0, None, 0
    if isinstance(load, Trace):
        top_k, hidden, layers, model_hash, load = load.top_k, load.hidden, load.layers, load._struct.model_hash, load.load()
    tokens = numpy.ascontiguousarray(host(load, "load"), dtype=numpy.float64)
    if tokens.ndim not in (2, 3) or not tokens.size:
        raise ValueError(f"load has shape {tokens.shape}, expected [layers, experts] or [layers, sources, experts]")
    if not (numpy.isfinite(tokens).all() and (tokens >= 0).all()):
        raise ValueError("loads are finite numbers of 0 or more")
    if layers is None:
        whole(first_layer, "first_layer", 2**31 - len(tokens))
        layers = numpy.arange(first_layer, first_layer + tokens.shape[0], dtype=numpy.int32)
    sources = tokens.shape[1] if tokens.ndim == 3 else 1
    yield structs.LoadCounts(tokens.shape[0], tokens.shape[-1], sources, tokens.ndim == 3, tokens.ndim == 3, top_k, hidden, None,
                             _at(layers, structs.Ints), _at(tokens, structs.Doubles), model_hash)  # fmt: skip


@contextlib.contextmanager
def _topology(topology, hosts, ranks):
    if topology is None:
        yield None
    elif os.path.exists(topology):
        options = structs.TopologyOptions(ctypes.sizeof(structs.TopologyOptions), _text(hosts), None, ranks, _say, None)
        read = ("cot_topology_read", "cot_topology_free", ctypes.c_char_p(_text(topology)), ctypes.byref(options))
        with _opened(structs.Topology, *read) as opened:
            yield opened
    else:
        build = ("cot_topology_build", "cot_topology_free", ctypes.c_char_p(_text(topology)), ctypes.c_int32(ranks))
        with _opened(structs.Topology, *build) as opened:
            yield opened


@contextlib.contextmanager
def read_map(path, ranks=0, first_layer=0):
    """A file in any format of placements; ranks: where it does not say them."""
    options = structs.ExpertMapOptions(ctypes.sizeof(structs.ExpertMapOptions), ranks=ranks, first_layer=first_layer, say=_say)
    read = ("cot_expert_map_read", "cot_expert_map_free", ctypes.c_char_p(_text(path)), ctypes.byref(options))
    with _opened(structs.ExpertMap, *read) as opened:
        yield opened


@contextlib.contextmanager
def placed(current, layers, experts, ranks, first_layer, name):
    """A placement as a struct: a Placement, a file, or an array [layers, slots] or [layers, ranks, slots a rank]."""
    if isinstance(current, (str, os.PathLike)):
        with read_map(current, ranks, first_layer) as opened:
            yield opened
        return
    if isinstance(current, Placement):
        layers, current = current.layers, current.physical_to_logical
    expert = host(current, name)
    if expert.dtype.kind not in "iu":
        raise TypeError(f"{name} holds {expert.dtype} numbers, expected integers, the experts in its slots")
    if expert.ndim not in (2, 3) or len(expert) != len(layers) or not expert.size or expert[0].size % ranks:
        raise ValueError(f"{name} has shape {expert.shape}, expected [{len(layers)}, slots] of {ranks} ranks")
    if expert.ndim == 3 and expert.shape[1] != ranks:
        raise ValueError(f"{name} is of {expert.shape[1]} ranks, expected {ranks}")
    if expert.min() < -1 or expert.max() >= experts:
        raise ValueError(f"{name} holds experts {expert.min()} to {expert.max()}, expected -1 to {experts - 1}")
    expert = numpy.ascontiguousarray(expert, numpy.int32)
    numbers, dense = numpy.ascontiguousarray(layers, numpy.int32), numpy.zeros(len(layers), numpy.uint8)
    made = structs.ExpertMap(len(layers), experts, ranks, expert[0].size // ranks, _at(numbers, structs.Ints),
                             _at(expert, structs.Ints), _at(dense, structs.Bytes))  # fmt: skip
    yield made


def _transfers(current, made):
    """What turns one map into the other, as an array of the fields of cot_transfer."""
    rows, n, rounds = ctypes.POINTER(structs.Transfer)(), ctypes.c_int64(), ctypes.c_int32()
    call("cot_place_transfers", *map(ctypes.byref, (rows, n, rounds, current, made)))
    try:
        fields = numpy.dtype([(name, numpy.int32) for name, _ in structs.Transfer._fields_])
        return numpy.frombuffer(ctypes.string_at(rows, n.value * fields.itemsize), fields).copy()
    finally:
        free(rows)


@contextlib.contextmanager
def _problem(load, topology, ranks, attention, cost, dispatch, distance, bytes, hosts, first_layer):
    """The structs of a load on a cluster: the counts, the topology or None, what the costs are made by, the costs."""
    with contextlib.ExitStack() as stack:
        counts = stack.enter_context(_load(load, whole(first_layer or 0, "first_layer")))
        ranks, of_nodes = _ranks(ranks)
        if of_nodes and topology is None and cost is None:
            topology = f"complete:ranks={ranks},gpus={ranks // of_nodes}"
        cluster = stack.enter_context(_topology(topology, hosts, ranks))
        if cluster and of_nodes and cluster.n_hosts != of_nodes:
            raise ValueError(f"ranks says {of_nodes} nodes, topology {topology!r} has {cluster.n_hosts}")
        rows = counts.n_layers
        n = cluster.n_ranks if cluster else ranks or (numpy.shape(cost)[-1] if cost is not None else 0)
        if not n:
            raise ValueError("no cluster given: topology, cost or ranks")
        if attention is None:
            attention = "dp"
        kind = _choice(attention, ATTENTION, "attention") if isinstance(attention, str) else 2
        weights = attention if kind == 2 else (None, None)
        if len(weights) != 2:
            raise ValueError(f"attention has {len(weights)} parts, expected two arrays, dispatch and collect")
        weights = [_array(w, numpy.float64, (rows, n), "attention") for w in weights]
        matrix = _array(cost, numpy.float64, (rows, n), "cost")
        split = _choice(dispatch, DISPATCH, "dispatch")
        if distance is not None:
            _choice(distance, {"hops": 0, "cost": 1}, "distance")
        by_cost = distance == "cost" or (distance is None and cluster is not None and cluster.measured)
        options = structs.CostsOptions(
            ctypes.sizeof(structs.CostsOptions),
            kind,
            structs.Metric(by_cost, (2 * counts.hidden or 14336) if bytes is None else _limit(bytes, "bytes", 0)),
            split,
            *(_at(w, structs.Doubles) for w in weights),
            _at(matrix, structs.Doubles),
            n,
        )
        costs = stack.enter_context(
            _opened(structs.Costs, "cot_costs_open", "cot_costs_free", ctypes.byref(counts),
                    ctypes.byref(cluster) if cluster else None, ctypes.byref(options))  # fmt: skip
        )
        yield counts, cluster, options, costs


class Placement(Shown):
    """Where experts are.

    physical_to_logical: int32 [layers, ranks, slots a rank], the expert in each slot, -1 where it is empty; layers [layers]
    the model's numbers; dense [layers] True where the load had no tokens: such layers hold expert = slot mod experts.
    objective: what all activations cost; dual: the best lower bound proven, 0 if none; gap: their difference; peak_load
    [layers with load]: the most loaded rank over the mean. Where a running placement was given, moves: how many experts ranks
    have to fetch, over all layers: those that a rank holds now and did not hold, each once however many slots of the rank
    have it; and transfers: an array of them with fields layer, expert, from (another rank, -1: none holds it), to and
    round, in none of which a rank takes part twice; else None. A placement of groups has none of these figures.
    """

    layers: numpy.ndarray
    experts: int
    dense: numpy.ndarray
    physical_to_logical: numpy.ndarray
    objective: float | None = None
    dual: float | None = None
    gap: float | None = None
    peak_load: numpy.ndarray | None = None
    moves: int | None = None
    transfers: numpy.ndarray | None = None
    _model_hash = 0  # whose gates the experts were placed for, 0 if not known
    _numbered = True  # layers are the model's numbers, not rows of an array that somebody may have cut

    def _summary(self):
        layers, ranks, slots = self.physical_to_logical.shape
        shown = {"layers": layers, "experts": self.experts, "ranks": ranks, "slots a rank": slots}
        if self.objective is not None:
            worst = float(self.peak_load.max()) if self.peak_load is not None and self.peak_load.size else None
            shown |= {"objective": self.objective, "bound": self.dual or None, "worst peak over mean": worst}
        return shown if self.moves is None else shown | {"moves": self.moves}

    def write(self, path: str | os.PathLike, format: str = "coterie", layers: int | None = None) -> None:
        """Writes it in a format of `coterie place convert --to`; `layers`: how many the model has, for "sglang". Where the load
        had fewer rows and no layer numbers, coterie.place has to be told its first_layer. With which options an engine loads the file is
        told by a warning, coterie.Notice."""
        rows = whole(layers or 0, "layers")
        if rows > len(self.layers) and not self._numbered:
            raise ValueError(f"the load had {len(self.layers)} rows, the model has {rows} layers: which are they? "
                             "place(..., first_layer=N) says the first (3 for DeepSeek-R1)")  # fmt: skip
        options = structs.ExpertMapOptions(ctypes.sizeof(structs.ExpertMapOptions), _text(format),
                                           n_layers=rows, say=_say)  # fmt: skip
        made, name, launch = ctypes.byref(self._struct()), ctypes.c_char_p(_text(path)), ctypes.c_void_p()
        call("cot_expert_map_write", made, name, ctypes.byref(options))
        call("cot_expert_map_launch", ctypes.byref(launch), made, name, ctypes.c_char_p(options.format))
        if launch:
            _say(None, ctypes.string_at(launch))
            free(launch)

    def _struct(self):
        expert = numpy.ascontiguousarray(self.physical_to_logical, numpy.int32)
        arrays = self.layers, expert, self.dense.astype(numpy.uint8)
        made = structs.ExpertMap(expert.shape[0], self.experts, expert.shape[1], expert.shape[2],
                                 *(_at(array, kind) for array, kind in zip(arrays, (structs.Ints, structs.Ints, structs.Bytes))))  # fmt: skip
        made.held, made.model_hash = arrays, self._model_hash  # held for as long as the struct
        return made


def placement_of(made):
    """The map itself, every row."""
    result = Placement()
    result.experts, result.layers = made.n_experts, _copy(made.layers, made.n_layers)
    result.dense = _copy(made.dense, made.n_layers).astype(bool)
    result.physical_to_logical = _copy(made.expert, made.n_layers, made.n_ranks, made.slots_per_rank)
    result._model_hash = made.model_hash
    return result


def _placement(load, made, value, numbered):
    """The map's rows among those of the load, and what they are worth."""
    shape = made.n_ranks, made.slots_per_rank
    placed = dict(zip(_copy(made.layers, made.n_layers).tolist(), _copy(made.expert, made.n_layers, *shape)))
    result = Placement()
    result.experts, result._model_hash, result._numbered = made.n_experts, made.model_hash, numbered
    result.layers = _copy(load.layers, load.n_layers)
    result.dense = numpy.array([layer not in placed for layer in result.layers.tolist()])
    plain = (numpy.arange(shape[0] * shape[1], dtype=numpy.int32) % made.n_experts).reshape(shape)
    result.physical_to_logical = numpy.stack([placed.get(layer, plain) for layer in result.layers.tolist()])
    result.objective, result.dual = value.objective, value.dual
    result.gap = abs(value.objective - value.dual)
    result.peak_load = _copy(value.peak_load, value.n_layers)
    return result


def place(load: Trace | str | os.PathLike | Any, topology: str | None = None, *, ranks: int | str | None = None,
          method: str | None = None, slots: int | None = None, c_layer: Any = None, c_exp: Any = None,
          max_load: float | None = None, attention: Any = None, cost: Any = None, dispatch: str = "uniform",
          distance: str | None = None, bytes: float | None = None, groups: int = 1, nodes: int = 1, hosts: str | None = None,
          first_layer: int | None = None, current: Placement | str | os.PathLike | Any = None, max_moves: int | None = None,
          move_cost: float = 0.0) -> Placement:  # fmt: skip
    """Places the experts of `load` on the ranks of `topology`, and checks the result; returns a Placement.

    load: an array [layers, experts] of tokens, or [layers, sources, experts] by the rank that sent them; a Trace; or a file,
    a folder or a list of files, as `coterie place --load` takes. topology: a spec like "fattree:ranks=256" or a file; without one,
    `ranks` equally near ranks ("4x8": 4 nodes of 8, a hop apart), or `cost` [layers, ranks], what an activation costs there. attention: "paper", "dp" or a
    pair of arrays [layers, ranks], dispatch and collect; "dp" unless given: every rank, as the sources say, else evenly.
    c_layer, c_exp: a number or one a rank. method: the command's unless given: "balance", with c_layer or c_exp "ilpload".
    first_layer: the model's number of the load's first row, where that does not say it. bytes: of an activation, for
    distances that are costs; unless given 2 a column of a token's row where the load says how many, else 14336. current: the running placement (a Placement, a file, or an array [layers, slots]):
    methods with replicas reach the fresh plan's balance from it in few moves, at most `max_moves`. The rest is as
    `coterie place --help` says. What was assumed is told by a warning,
    coterie.Notice. ValueError for what cannot be met, coterie.Error for files that are wrong.
    """
    with contextlib.ExitStack() as stack:
        problem = _problem(load, topology, ranks, attention, cost, dispatch, distance, bytes, hosts, first_layer)
        counts, cluster, made_by, costs = stack.enter_context(problem)
        n, split = costs.n_ranks, made_by.dispatch
        slots = whole(slots or 0, "slots")
        if method is None:  # capacities are the exact methods'
            exact = slots <= counts.n_experts and (c_layer is not None or c_exp is not None)
            method = "ilpload" if exact else "balance"
        numbered = first_layer is not None or isinstance(load, Trace) or counts.format not in (None, b"vllm", b"logical_count")
        limits = [_array(c, numpy.int32, (n,), name) for c, name in ((c_layer, "c_layer"), (c_exp, "c_exp"))]
        wanted = structs.PlaceOptions(ctypes.sizeof(structs.PlaceOptions), _text(method),
                                      *(_at(c, structs.Ints) for c in limits), slots,
                                      _limit(max_load, "max_load", 1e-9), whole(groups, "groups"), whole(nodes, "nodes"),
                                      split)  # fmt: skip
        proof = ctypes.c_void_p()
        stack.callback(lambda: library.cot_place_proof_free(proof))
        made = stack.enter_context(
            _opened(structs.ExpertMap, "cot_place", "cot_expert_map_free", ctypes.byref(proof), ctypes.byref(costs),
                    ctypes.byref(wanted))  # fmt: skip
        )
        value = stack.enter_context(
            _opened(structs.PlaceValue, "cot_place_value_of", "cot_place_value_free", ctypes.byref(made),
                    ctypes.byref(costs), split)  # fmt: skip
        )
        call("cot_place_prove", ctypes.byref(value), proof)
        call("cot_place_verify", ctypes.byref(made), ctypes.byref(costs), ctypes.byref(wanted))
        if current is None:
            return _placement(counts, made, value, numbered)
        layers = _copy(counts.layers, counts.n_layers)
        running = stack.enter_context(placed(current, layers, counts.n_experts, n, first_layer or 0, "current"))
        if METHODS[method]:
            most = -1 if max_moves is None else whole(max_moves, "max_moves", 2**63 - 1)
            few = structs.ReplanOptions(ctypes.sizeof(structs.ReplanOptions), value.peak_load, most,
                                        _limit(move_cost, "move_cost", 0), made.slots_per_rank,
                                        ctypes.pointer(made))  # fmt: skip
            made = stack.enter_context(
                _opened(structs.ExpertMap, "cot_place_replan", "cot_expert_map_free", ctypes.byref(ctypes.c_int64()),
                        ctypes.byref(running), ctypes.byref(costs), ctypes.byref(few))  # fmt: skip
            )
            value = stack.enter_context(
                _opened(structs.PlaceValue, "cot_place_value_of", "cot_place_value_free", ctypes.byref(made),
                        ctypes.byref(costs), split)  # fmt: skip
            )
        elif max_moves is not None or move_cost:
            raise ValueError("max_moves and move_cost are for methods with replicas: the optimum of another is what it is")
        result, moves = _placement(counts, made, value, numbered), ctypes.c_int64()
        call("cot_place_moves", ctypes.byref(moves), ctypes.byref(running), ctypes.byref(made))
        result.moves, result.transfers = moves.value, _transfers(running, made)
        return result
