"""coterie.evaluate: what `coterie place --evaluate` says of a placement."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
from typing import Any

import numpy

from . import _structs as structs
from ._library import Error, copy_of, opened
from ._place import Placement, _problem, placed
from ._shown import Shown
from ._trace import Trace, read_trace


@dataclasses.dataclass(repr=False)
class Figures(Shown):
    """What a placement is worth on a load of L layers with tokens, on S ranks."""

    objective: float  # what all activations cost
    activations: float  # how many there are
    token_mean: float | None  # what a token costs over all layers; None where K is not known ...
    token_std: float | None  # ... and its standard deviation over tokens; None where single tokens are not known
    lar: float  # local activation rate: share of activations on the rank that holds the token
    peak: float  # the most loaded rank over the mean, in the worst layer
    peak_load: numpy.ndarray  # float64 [L] the same in each layer
    rank_load: numpy.ndarray  # float64 [L, S] activations that each rank serves
    balancedness: dict[str, float]  # as engines define it: sglang, vllm, vllm_layers, tensorrt_llm (an imbalance)
    links: int  # of the network, that count a hop; 0 without a topology
    link_max: float  # activations on the fullest of them ...
    link_p99: float  # ... below which 99 % of them are ...
    link_mean: float  # ... and on the mean one

    def _summary(self):
        shown = {"objective": self.objective, "activations": self.activations, "a token": self.token_mean, "lar": self.lar,
                 "worst peak over mean": self.peak, "balancedness (sglang)": self.balancedness["sglang"]}  # fmt: skip
        return shown | {"fullest link": self.link_max, "mean link": self.link_mean} if self.links else shown


def evaluate(placement: Placement | str | os.PathLike | Any, load: Trace | str | os.PathLike | Any, topology: str | None = None,
             *, ranks: int | str | None = None, attention: Any = None, cost: Any = None, dispatch: str = "uniform",
             distance: str | None = None, bytes: float | None = None, hosts: str | None = None,
             first_layer: int | None = None) -> Figures:  # fmt: skip
    """Measures a placement on a load.

    placement: a Placement, a file in any format of `coterie place convert`, or an array [layers, slots] or [layers, ranks,
    slots a rank] of the experts in the slots, -1 in empty ones. load: a Trace, whose tokens are walked one by one if it has
    them; or what coterie.place takes. The rest is as in coterie.place.
    """
    with contextlib.ExitStack() as stack:
        problem = _problem(load, topology, ranks, attention, cost, dispatch, distance, bytes, hosts, first_layer)
        counts, cluster, made_by, costs = stack.enter_context(problem)
        layers = copy_of(counts.layers, counts.n_layers)
        made = stack.enter_context(placed(placement, layers, costs.n_experts, costs.n_ranks, first_layer or 0, "placement"))
        if isinstance(load, (str, os.PathLike)):
            with contextlib.suppress(Error):  # a load that is no trace has no single tokens
                load = read_trace(load)
        trace = ctypes.pointer(load._struct) if isinstance(load, Trace) else None
        options = structs.PlaceMeasureOptions(ctypes.sizeof(structs.PlaceMeasureOptions), ctypes.pointer(counts),
                                              ctypes.pointer(made_by), ctypes.pointer(cluster) if cluster else None, trace)  # fmt: skip
        f = stack.enter_context(
            opened(structs.PlaceFigures, "cot_place_measure", "cot_place_figures_free", ctypes.byref(made),
                   ctypes.byref(costs), ctypes.byref(options))  # fmt: skip
        )
        v, balance = f.value, {field[0]: getattr(f.balancedness, field[0]) for field in structs.Balancedness._fields_}
        token_mean, token_std = (x if x >= 0 else None for x in (f.token_mean, f.token_std))
        return Figures(v.objective, v.activations, token_mean, token_std, f.lar, f.peak,
                       copy_of(v.peak_load, v.n_layers), copy_of(v.rank_load, v.n_layers, v.n_ranks), balance, f.n_links,
                       f.link_max, f.link_p99, f.link_mean)  # fmt: skip
