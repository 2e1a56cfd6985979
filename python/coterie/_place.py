"""coterie.place: what `coterie place` does, on arrays and files."""

import contextlib
import ctypes
import logging
import os

import numpy

from . import _structs as structs
from ._library import call, library

ATTENTION = {"paper": 0, "dp": 1}  # cot_attention_kind; weights are 2
DISPATCH = {"uniform": 0, "nearest": 1}  # cot_dispatch


@structs.Say
def _say(_context, line):
    logging.getLogger("coterie").info("%s", line.decode("utf-8", "replace"))


def _text(value):
    return None if value is None else os.fsencode(value)


def _array(value, dtype, shape, name):
    """A C-contiguous array of that shape; None stays None."""
    if value is None:
        return None
    array = numpy.ascontiguousarray(numpy.broadcast_to(value, shape), dtype=dtype)
    if array.shape != tuple(shape):
        raise ValueError(f"{name} has shape {array.shape}, expected {tuple(shape)}")
    return array


def _at(array, kind):
    return None if array is None else array.ctypes.data_as(kind)


def _copy(pointer, *shape):
    return numpy.ctypeslib.as_array(pointer, shape).copy()


@contextlib.contextmanager
def _opened(struct, opener, closer, *arguments):
    """A struct that a function of the library fills and another frees."""
    value = struct()
    call(opener, ctypes.byref(value), *arguments)
    try:
        yield value
    finally:
        getattr(library, closer)(ctypes.byref(value))


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
    tokens = numpy.ascontiguousarray(load.detach().cpu() if hasattr(load, "detach") else load, dtype=numpy.float64)
    if tokens.ndim not in (2, 3) or not tokens.size:
        raise ValueError("load is an array [layers, experts] or [layers, sources, experts]")
    if not (numpy.isfinite(tokens).all() and (tokens >= 0).all()):
        raise ValueError("loads are finite numbers of 0 or more")
    layers = numpy.arange(first_layer, first_layer + tokens.shape[0], dtype=numpy.int32)
    sources = tokens.shape[1] if tokens.ndim == 3 else 1
    yield structs.LoadCounts(tokens.shape[0], tokens.shape[-1], sources, tokens.ndim == 3, tokens.ndim == 3, 0, None,
                             _at(layers, structs.Ints), _at(tokens, structs.Doubles))  # fmt: skip


@contextlib.contextmanager
def _topology(topology, hosts, ranks):
    if topology is None:
        yield None
    elif os.path.exists(topology):
        options = structs.TopologyOptions(ctypes.sizeof(structs.TopologyOptions), _text(hosts), ranks, _say, None)
        read = ("cot_topology_read", "cot_topology_free", ctypes.c_char_p(_text(topology)), ctypes.byref(options))
        with _opened(structs.Topology, *read) as opened:
            yield opened
    else:
        build = ("cot_topology_build", "cot_topology_free", ctypes.c_char_p(_text(topology)), ctypes.c_int32(ranks))
        with _opened(structs.Topology, *build) as opened:
            yield opened


class Placement:
    """Where experts are.

    physical_to_logical: int32 [layers, ranks, slots a rank], the expert in each slot, -1 where it is empty; layers [layers]
    the model's numbers; dense [layers] True where the load had no tokens: such layers hold expert = slot mod experts.
    objective: what all activations cost; dual: the best lower bound proven, 0 if none; gap: their difference; peak_load
    [layers with load]: the most loaded rank over the mean.
    """

    def write(self, path, format="coterie", layers=None):
        """Writes it in a format of `coterie place convert --to`; `layers`: how many the model has, for "sglang"."""
        expert = numpy.ascontiguousarray(self.physical_to_logical, numpy.int32)
        dense = self.dense.astype(numpy.uint8)
        made = structs.ExpertMap(expert.shape[0], self.experts, expert.shape[1], expert.shape[2], _at(self.layers, structs.Ints),
                                 _at(expert, structs.Ints), _at(dense, structs.Bytes))  # fmt: skip
        options = structs.ExpertMapOptions(ctypes.sizeof(structs.ExpertMapOptions), _text(format), 0, 0, layers or 0, _say, None)
        call("cot_expert_map_write", ctypes.byref(made), ctypes.c_char_p(_text(path)), ctypes.byref(options))


def _placement(load, made, value):
    """The map's rows among those of the load, and what they are worth."""
    shape = made.n_ranks, made.slots_per_rank
    placed = dict(zip(_copy(made.layers, made.n_layers).tolist(), _copy(made.expert, made.n_layers, *shape)))
    result = Placement()
    result.experts = made.n_experts
    result.layers = _copy(load.layers, load.n_layers)
    result.dense = numpy.array([layer not in placed for layer in result.layers.tolist()])
    plain = (numpy.arange(shape[0] * shape[1], dtype=numpy.int32) % made.n_experts).reshape(shape)
    result.physical_to_logical = numpy.stack([placed.get(layer, plain) for layer in result.layers.tolist()])
    result.objective, result.dual = value.objective, value.dual
    result.gap = abs(value.objective - value.dual)
    result.peak_load = _copy(value.peak_load, value.n_layers)
    return result


def place(load, topology=None, *, ranks=None, method=None, slots=None, c_layer=None, c_exp=None, max_load=None, attention=None,
          cost=None, dispatch="uniform", distance=None, bytes=14336, groups=1, nodes=1, hosts=None, first_layer=0):  # fmt: skip
    """Places the experts of `load` on the ranks of `topology`, and checks the result; returns a Placement.

    load: an array [layers, experts] of tokens, or [layers, sources, experts] by the rank that sent them; or a file, a folder
    or a list of files, as `coterie place --load` takes. topology: a spec like "fattree:ranks=256" or a file; without one,
    `ranks` equally near ranks, or `cost` [layers, ranks], what an activation costs there. attention: "paper", "dp" or a
    pair of arrays [layers, ranks], dispatch and collect; "dp" where an engine recorded the load or sources are given.
    c_layer, c_exp: a number or one a rank. The rest is as `coterie place --help` says. What was assumed is logged to
    "coterie". ValueError for what cannot be met, coterie.Error for files that are wrong.
    """
    with contextlib.ExitStack() as stack:
        counts = stack.enter_context(_load(load, first_layer))
        cluster = stack.enter_context(_topology(topology, hosts, ranks or 0))
        rows = counts.n_layers
        n = cluster.n_ranks if cluster else ranks or (numpy.shape(cost)[-1] if cost is not None else 0)
        if not n:
            raise ValueError("no cluster given: topology, cost or ranks")
        if attention is None:
            attention = "dp" if counts.from_engine else "paper"
        weights = attention if not isinstance(attention, str) else (None, None)
        weights = [_array(w, numpy.float64, (rows, n), "attention") for w in weights]
        matrix = _array(cost, numpy.float64, (rows, n), "cost")
        by_cost = distance == "cost" or (distance is None and cluster is not None and cluster.measured)
        options = structs.CostsOptions(
            ctypes.sizeof(structs.CostsOptions),
            ATTENTION[attention] if isinstance(attention, str) else 2,
            structs.Metric(by_cost, bytes),
            DISPATCH[dispatch],
            *(_at(w, structs.Doubles) for w in weights),
            _at(matrix, structs.Doubles),
            n,
        )
        costs = stack.enter_context(
            _opened(structs.Costs, "cot_costs_open", "cot_costs_free", ctypes.byref(counts),
                    ctypes.byref(cluster) if cluster else None, ctypes.byref(options))  # fmt: skip
        )
        limits = [_array(c, numpy.int32, (n,), name) for c, name in ((c_layer, "c_layer"), (c_exp, "c_exp"))]
        wanted = structs.PlaceOptions(ctypes.sizeof(structs.PlaceOptions), _text(method),
                                      *(_at(c, structs.Ints) for c in limits), slots or 0, max_load or 0, groups, nodes,
                                      DISPATCH[dispatch])  # fmt: skip
        proof = ctypes.c_void_p()
        stack.callback(lambda: library.cot_place_proof_free(proof))
        made = stack.enter_context(
            _opened(structs.ExpertMap, "cot_place", "cot_expert_map_free", ctypes.byref(proof), ctypes.byref(costs),
                    ctypes.byref(wanted))  # fmt: skip
        )
        value = stack.enter_context(
            _opened(structs.PlaceValue, "cot_place_value_of", "cot_place_value_free", ctypes.byref(made),
                    ctypes.byref(costs), DISPATCH[dispatch])  # fmt: skip
        )
        call("cot_place_prove", ctypes.byref(value), proof)
        call("cot_place_verify", ctypes.byref(made), ctypes.byref(costs), ctypes.byref(wanted))
        return _placement(counts, made, value)
