"""coterie.predict: what `coterie predict` measures."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Any

import numpy

from . import _structs as structs
from ._group import Groups
from ._library import array_at, call, copy_of, library, opened, whole
from ._place import Placement, read_map
from ._shown import Shown
from ._trace import Trace


def _names(symbol, n):
    return [name.decode() for name in (ctypes.c_char_p * n).in_dll(library, symbol)]


FIGURES = _names("cot_figure_names", structs.FIGURES)
METHODS = _names("cot_predict_method_names", structs.METHODS)
CONTEXTS = {"context-prefill", "context-decode"}  # trained by steps


class Evaluation(Shown):
    """What a method's predictions are worth on tokens that it did not learn from.

    figures: name -> float over all layers; NaN where the trace or the method cannot give it: recall_at_k, precision, f1, lar
    (share of activations on the rank that the token is sent to), lar_gain (beyond sending as many tokens blindly), oracle_lar
    (the best rank for each token), lar_even, token_imbalance, expert_peak, remote_ranks, ...; the order of the columns of
    layer: float64 [L, figures]. low, high: name -> float, 95 % of the resampled figures lie between. n_tokens: that were looked
    at. table_bytes: what the method reads.
    """

    figures: dict[str, float]
    low: dict[str, float]
    high: dict[str, float]
    layer: numpy.ndarray
    n_tokens: int
    table_bytes: int

    def _summary(self):
        main = ("lar", "lar_gain", "oracle_lar", "recall_at_k", "token_imbalance")
        return {"tokens": self.n_tokens, **{name: self.figures[name] for name in main}}


@contextlib.contextmanager
def _trained(trace, options):
    predictor = ctypes.c_void_p()
    call("cot_predictor_train", ctypes.byref(predictor), ctypes.byref(trace._struct), ctypes.byref(options))
    try:
        yield predictor
    finally:
        library.cot_predictor_close(predictor)


def _ranks_of(placement, trace):
    """Where a placement has the trace's experts, [L, E], and on how many ranks."""
    if isinstance(placement, Groups):
        return placement.expert_rank, placement.ranks
    opened_map = contextlib.nullcontext(placement._struct()) if isinstance(placement, Placement) else read_map(placement)
    with opened_map as made:
        ranks = numpy.empty((len(trace.layers), trace.n_experts), numpy.int32)
        call("cot_expert_map_ranks", array_at(ranks, structs.Ints), None, ctypes.byref(made), ctypes.byref(trace._struct),
             ctypes.c_char_p(b"placement"))  # fmt: skip
        return ranks, made.n_ranks


def predict(trace: Trace, ranks: int | None = None, *, sequences: Any = None, placement: Groups | Placement | str | os.PathLike | None = None,
            test: Trace | None = None, methods: list[str] | None = None, order: int = 2, resamples: int = 200,
            step_tokens: int = 512, seed: int = 1, threads: int = 2) -> dict[str, Evaluation]:  # fmt: skip
    """Learns tables from a trace and measures how well they foretell where other tokens will go; method -> Evaluation.

    sequences: bool [S], those of `trace` to learn from (see Trace.split); the others are the test, unless `test` is a trace
    of its own. placement: where experts sit: Groups, whose tokens' ranks are the tables' too; a Placement or a file, of an
    expert's replicas in which the first slot counts; None: contiguous groups on `ranks` ranks (4). methods: some of "global",
    "token-table", "device-sequence", "algorithm-2", "context-prefill" and "context-decode" (which reads what earlier tokens have
    called in the layer, as is known where tokens come one after the other); None: all that the traces allow.
    order: layers that device sequences look back at; resamples: bootstrap samples of the sequences, for low and high;
    step_tokens: tokens of a step.
    """
    chosen = trace._chosen(sequences, "sequences")
    if test is None and (chosen is None or chosen.all()):
        raise ValueError("no sequence is left to test on: give `sequences` to learn from (see Trace.split), or `test`")
    tested = trace if test is None else test
    methods = list(methods or ())
    unknown = set(methods) - set(METHODS)
    if unknown:
        raise ValueError(f"methods has {sorted(unknown)}, expected some of {METHODS}")
    ids = token_rank = expert_rank = None
    if placement is not None:
        expert_rank, placed_on = _ranks_of(placement, trace)
        if ranks not in (None, placed_on):
            raise ValueError(f"the placement has {placed_on} ranks, not {ranks}")
        ranks = placed_on
    if isinstance(placement, Groups) and placement.token_ids is not None:
        ids, token_rank = placement.token_ids, placement.token_rank
    learn = structs.PredictorOptions(ctypes.sizeof(structs.PredictorOptions), whole(4 if ranks is None else ranks, "ranks"),
                                     array_at(expert_rank, structs.Ints), array_at(ids, structs.Ints),
                                     array_at(token_rank, structs.Ints), 0 if ids is None else len(ids), whole(order, "order"),
                                     array_at(chosen, structs.Bytes), None, bool(methods) and not set(methods) & CONTEXTS,
                                     whole(seed, "seed", 2**64 - 1), whole(threads, "threads", 256, 1))  # fmt: skip
    rest = (1 - chosen).astype(numpy.uint8) if test is None else None
    options = structs.PredictEvaluateOptions(ctypes.sizeof(structs.PredictEvaluateOptions), array_at(rest, structs.Bytes),
                                             whole(step_tokens, "step_tokens"), whole(resamples, "resamples"),
                                             whole(threads, "threads"), whole(seed, "seed", 2**64 - 1))  # fmt: skip
    found, info = {}, structs.PredictorInfo()
    with _trained(trace, learn) as predictor:
        library.cot_predictor_describe(ctypes.byref(info), predictor)
        for m, name in enumerate(METHODS):
            looks_back = name not in ("global", "token-table")
            if (name in methods) if methods else info.has[m] and not (tested.kind == "counts" and looks_back):
                found[name] = _evaluate(predictor, m, tested, options)
                found[name].table_bytes = info.table_bytes[m]
    return found


def _evaluate(predictor, method, trace, options):
    evaluate = ("cot_predict_evaluate", "cot_predict_evaluation_free", predictor, ctypes.c_int(method))
    with opened(structs.PredictEvaluation, *evaluate, ctypes.byref(trace._struct), ctypes.byref(options)) as e:
        result = Evaluation()
        result.n_tokens = e.n_tokens
        result.figures, result.low, result.high = (dict(zip(FIGURES, values)) for values in (e.all, e.low, e.high))
        result.layer = copy_of(e.layer, e.n_layers, structs.FIGURES)
        return result
