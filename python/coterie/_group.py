"""coterie.group: what `coterie group` finds."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy

from . import _structs as structs
from ._library import array_at, call, copy_of, opened, text, whole
from ._progress import Bar
from ._place import Placement, _limit, _topology, placement_of
from ._shown import Shown
from ._trace import Trace


class Groups(Shown):
    """Experts and tokens in groups, one a rank (D), over L layers of E experts.

    expert_rank: int32 [L, E]; token_rank: int32 [L, N], of the N tokens in token_ids (int32 [N] ascending; None where rows
    are positions, since no id is known); layers: int32 [L], the model's numbers; ranks: D.
    layer: a structured array [L] with fields lar (share of activations on their token's rank), lar_bound (none have more),
    token_peak and expert_peak (load of the busiest rank's tokens and experts over the mean), token_limit (what token_peak was
    held to; NaN over nodes), feasible, proven.
    lar, lar_bound, token_peak, expert_peak: the same of all layers together; stay: share of load that stays on its rank from
    layer to layer, stay_before: before ranks were named; distance and distance_before, where groups were seated: what all
    traffic goes, else None; cost: of a mean activation on nodes; rounds: how many were made.
    """

    ranks: int
    layers: numpy.ndarray
    expert_rank: numpy.ndarray
    token_rank: numpy.ndarray
    token_ids: numpy.ndarray | None
    layer: numpy.ndarray
    lar: float
    lar_bound: float
    token_peak: float
    expert_peak: float
    stay: float
    stay_before: float
    distance: float | None
    distance_before: float | None
    cost: float
    rounds: int
    _model_hash = 0  # whose gates chose, 0 if not known

    def _summary(self):
        return {"ranks": self.ranks, "layers": len(self.layers), "experts": self.expert_rank.shape[1], "lar": self.lar,
                "lar bound": self.lar_bound, "token peak": self.token_peak, "expert peak": self.expert_peak}  # fmt: skip

    def placement(self) -> Placement:
        """Where these groups put the experts."""
        made = structs.LayerGroups(*self.expert_rank.shape, self.ranks, 0, array_at(self.expert_rank, structs.Ints), None)
        with opened(structs.ExpertMap, "cot_layer_groups_map", "cot_expert_map_free", ctypes.byref(made),
                    array_at(self.layers, structs.Ints)) as placed:  # fmt: skip
            placed.model_hash = self._model_hash
            return placement_of(placed)


def _pace(seconds, progress, bar):
    """Told of every round: tells `progress` or the bar, and stops where the next one would probably end late."""
    began = last = time.monotonic()

    def proceed(_context, done, of):
        nonlocal last
        before, last = last, time.monotonic()
        if progress:
            progress(done, of)
        elif of:
            bar.show(done, of)
        else:
            bar.show(min(last - began, seconds), seconds)
        return of > 0 or 2 * last - before < began + seconds

    return structs.Proceed(proceed)


def group(trace: Trace, ranks: int, *, method: str = "coterie", iterations: int | None = None, seconds: float | None = None,
          sequences: Any = None, token_balance: float = 0.1, expert_load: float | None = None, shrink: float = 0.0,
          topology: str | None = None, hosts: str | None = None, nodes: int = 1, link_cost: tuple[float, float] = (1.0, 10.0),
          joint: bool = False, stay_weight: float = 0.25, seed: int = 1, threads: int = 2,
          progress: Callable[[int, int], None] | None = None) -> Groups:  # fmt: skip
    """Groups experts that are used together, and tokens with them, as `coterie group --help` says.

    sequences: bool [S], those to learn from (see Trace.split); None: all. iterations: so many rounds, which repeat a result
    exactly; None: as many as `seconds` allow, 10 unless given. shrink: group experts for tokens that are mixed with the mean of
    all, half and half where one is seen so often. topology: a spec or a file; groups are then seated so that traffic goes few
    hops. nodes, link_cost: groups over nodes first, with what an activation costs within a node and between two. progress:
    called with (rounds made, of how many, 0 if not known); None: a bar, where tqdm is installed. ValueError for options that cannot be met.
    """
    ranks = whole(ranks, "ranks", least=1)
    if not callable(progress or _pace):
        raise TypeError("progress is no function")
    if iterations is not None and seconds is not None:
        raise ValueError("iterations take as long as they take: leave out seconds")
    chosen = trace._chosen(sequences, "sequences")
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(_topology(topology, hosts, ranks))
        distance = None
        if cluster:
            if cluster.n_ranks != ranks:
                raise ValueError(f"the topology has {cluster.n_ranks} ranks, not {ranks}")
            distance = numpy.empty((ranks, ranks))
            call("cot_topology_distances", array_at(distance, structs.Doubles), ctypes.byref(cluster),
                 structs.Metric(cluster.measured, 2 * trace.hidden or 14336))  # fmt: skip
        counted = stack.enter_context(
            opened(structs.Affinities, "cot_affinities_count", "cot_affinities_free", ctypes.byref(trace._struct),
                   array_at(chosen, structs.Bytes))  # fmt: skip
        )
        of_layer = structs.GroupOptions(ctypes.sizeof(structs.GroupOptions), text(method), ranks,
                                        _limit(token_balance, "token_balance", 0), _limit(expert_load, "expert_load", 1),
                                        whole(seed, "seed", 2**64 - 1))  # fmt: skip
        bar = stack.enter_context(Bar("grouping", "round" if iterations else "s"))
        proceed = _pace(10.0 if seconds is None else _limit(seconds, "seconds", 0), progress, bar)
        options = structs.GroupSolveOptions(
            ctypes.sizeof(structs.GroupSolveOptions),
            of_layer,
            0 if iterations is None else whole(iterations, "iterations", 2**63 - 1, 1),
            whole(threads, "threads", 256, 1),
            whole(nodes, "nodes", least=1),
            *(_limit(cost, "link_cost", 0) for cost in link_cost),
            _limit(shrink, "shrink", 0) * trace.top_k,
            joint,
            _limit(stay_weight, "stay_weight", 0),
            array_at(distance, structs.Doubles),
            1 / trace.top_k,
            proceed,
        )
        found = stack.enter_context(
            opened(structs.GroupSolution, "cot_group_solve", "cot_group_solution_free", ctypes.byref(counted),
                   ctypes.byref(options))  # fmt: skip
        )
        return _groups(trace, counted, found)


def _groups(trace, counted, found):
    made, result = found.groups, Groups()
    result.ranks, result.layers, result._model_hash = made.n_ranks, trace.layers, trace._struct.model_hash
    result.token_ids = copy_of(counted.token_ids, counted.n_tokens) if counted.token_ids else None
    result.expert_rank = copy_of(made.expert_rank, made.n_layers, made.n_experts)
    result.token_rank = copy_of(made.token_rank, made.n_layers, made.n_tokens)
    rows = [(g.local / g.total, g.bound / g.total, g.token_peak, g.expert_peak, g.token_limit or numpy.nan, g.feasible, g.proven)
            for g in found.layer[: made.n_layers]]  # fmt: skip
    figures = ("lar", "lar_bound", "token_peak", "expert_peak")
    result.layer = numpy.array(rows, [(name, float) for name in (*figures, "token_limit")] + [("feasible", bool), ("proven", bool)])
    for name in (*figures, "stay", "stay_before", "cost"):
        setattr(result, name, getattr(found, name))
    result.distance, result.distance_before = (found.distance, found.distance_before) if found.seated else (None, None)
    result.rounds = found.iterations
    return result
