"""coterie.Trace: which experts the tokens of a text called, as arrays."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy

from . import _structs as structs
from ._library import call, host, library, text, whole
from ._library import array_at as _at, copy_of as _copy, opened as _opened, say as _say

from ._shown import Shown

TOKENS, COUNTS = 0, 1  # cot_trace_kind


class Trace(Shown):
    """What a model's router did; read-only arrays over L layers, T tokens, S sequences, K experts a token.

    layers: int32 [L], the model's numbers; n_experts: E of each layer; top_k: K; model: its name; hidden: columns of a token's
    row between layers, 0 where nobody said.
    kind "tokens": experts uint8 or uint16 [L, T, K]; weights float16 [L, T, K] or None; token_ids int32 [T], -1 where not
    known; sequence_offsets int64 [S + 1], sequence s being the tokens from offset s to offset s + 1. counts is None.
    kind "counts": token_ids int32 [N] and counts uint32 [L, N, E], how often each id called each expert; the others are None.
    strings: the tokens' bytes by id, a list, where ids were made of them; else None.
    """

    def __init__(self, experts: Any, *, n_experts: int, token_ids: Any = None, sequence_offsets: Any = None, weights: Any = None,
                 layers: Any = None, model: str = "", hidden: int = 0):  # fmt: skip
        """A trace of kind "tokens" from arrays as above; one sequence of unknown ids in layers 0, 1, ... unless given."""
        chosen = host(experts, "experts")
        if chosen.dtype.kind not in "iu":
            raise TypeError(f"experts holds {chosen.dtype}, expected whole numbers")
        if chosen.ndim != 3 or not len(chosen) or not chosen.shape[2]:
            raise ValueError(f"experts has shape {chosen.shape}, expected [layers, tokens, experts a token]")
        L, T, K = chosen.shape
        E = whole(n_experts, "n_experts", 65536, K)
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < E:
            raise ValueError(f"experts are {chosen.min()} to {chosen.max()}, expected 0 to {E - 1}")

        def array(value, default, dtype, name, least, most):
            value = default if value is None else host(value, name)
            if value.dtype.kind not in "iu" or value.shape != default.shape:
                raise ValueError(f"{name} holds {value.dtype} in shape {value.shape}, expected whole numbers in {default.shape}")
            if value.size and not least <= value.min() <= value.max() <= most:
                raise ValueError(f"{name} is {value.min()} to {value.max()}, expected {least} to {most}")
            return numpy.array(value, dtype)

        offsets = numpy.array([0, T]) if sequence_offsets is None else host(sequence_offsets, "sequence_offsets").ravel()
        offsets = array(offsets, numpy.zeros(len(offsets), int), numpy.int64, "sequence_offsets", 0, T)
        if not len(offsets) or offsets[0] or offsets[-1] != T or (numpy.diff(offsets) < 0).any():
            raise ValueError(f"sequence_offsets do not rise from 0 to {T}")
        numbers = array(layers, numpy.arange(L), numpy.int32, "layers", 0, 2**31 - 1)
        if (numpy.diff(numbers) <= 0).any():
            raise ValueError("layers do not ascend")
        ids = array(token_ids, numpy.full(T, -1), numpy.int32, "token_ids", -1, 2**31 - 1)
        if weights is not None:
            weights = numpy.array(host(weights, "weights"), numpy.float16)
            if weights.shape != chosen.shape or not numpy.isfinite(weights).all():
                raise ValueError(f"weights have shape {weights.shape}, expected finite numbers in {chosen.shape}")
        chosen = numpy.array(chosen, numpy.uint8 if E <= 256 else numpy.uint16)
        self._set("tokens", model, E, K, numbers, ids, experts=chosen, weights=weights, sequence_offsets=offsets,
                  hidden=whole(hidden, "hidden"))  # fmt: skip

    def _set(self, kind, model, n_experts, top_k, layers, token_ids, experts=None, weights=None, sequence_offsets=None,
             counts=None, string_offsets=None, string_bytes=None, model_hash=0, hidden=0):  # fmt: skip
        self.kind, self.model, self.n_experts, self.top_k = kind, model, n_experts, top_k
        self.hidden = hidden
        self.layers, self.token_ids, self.sequence_offsets = layers, token_ids, sequence_offsets
        self.experts, self.weights, self.counts, self.strings = experts, weights, counts, None
        if string_offsets is not None:
            self.strings = [string_bytes[a:b].tobytes() for a, b in zip(string_offsets[:-1], string_offsets[1:])]
        made = structs.Trace(kind=TOKENS if kind == "tokens" else COUNTS, model=text(model), n_layers=len(layers),
                             model_hash=model_hash, n_experts=n_experts, top_k=top_k, hidden=hidden,
                             n_tokens=len(token_ids))  # fmt: skip
        fields = {"layers": (layers, structs.Ints), "token_ids": (token_ids, structs.Ints), "counts": (counts, structs.Counts),
                  "sequence_offsets": (sequence_offsets, structs.Longs), "weights": (weights, structs.Shorts),
                  "string_offsets": (string_offsets, structs.Longs), "strings": (string_bytes, structs.Chars)}  # fmt: skip
        if experts is not None:
            wide = experts.dtype == numpy.uint16
            fields["experts_u16" if wide else "experts_u8"] = (experts, structs.Shorts if wide else structs.Bytes)
            made.n_sequences = len(sequence_offsets) - 1
        if string_offsets is not None:
            made.n_strings = len(string_offsets) - 1
        for name, (array, pointer) in fields.items():
            if array is not None:
                array.setflags(write=False)
                setattr(made, name, _at(array, pointer))
        self._struct, self._held = made, fields  # the arrays that the struct points to

    def _summary(self):
        sequences = {} if self.sequence_offsets is None else {"sequences": len(self.sequence_offsets) - 1}
        return {"model": self.model or None, "kind": self.kind, "tokens" if self.kind == "tokens" else "token ids": len(self.token_ids),
                **sequences, "layers": len(self.layers), "experts": self.n_experts, "top_k": self.top_k}  # fmt: skip

    def load(self) -> numpy.ndarray:
        """Activations of each expert, uint64 [L, E]."""
        load = numpy.empty((len(self.layers), self.n_experts), numpy.uint64)
        for l in range(len(load)):
            library.cot_trace_load(ctypes.c_void_p(load[l].ctypes.data), ctypes.byref(self._struct), ctypes.c_int32(l))
        return load

    def lar(self, ranks: int) -> numpy.ndarray:
        """The local activation rate in each layer, float64 [L], with each sequence's tokens and the experts in `ranks`
        contiguous parts. Kind "tokens" alone."""
        rates, locality = numpy.empty(len(self.layers)), structs.Locality()
        for l in range(len(rates)):
            call("cot_trace_locality_measure", ctypes.byref(locality), ctypes.byref(self._struct), ctypes.c_int32(l),
                 ctypes.c_int(whole(ranks, "ranks")))  # fmt: skip
            rates[l] = locality.local / max(locality.activations, 1)
        return rates

    def split(self, share: float, seed: int = 1) -> numpy.ndarray:
        """Draws `share` of the sequences, bool [S]: those to learn from, as `coterie group --split` does."""
        if self.kind == "counts":
            raise ValueError("counts have no sequences to split")
        if not 0 <= share <= 1:
            raise ValueError(f"share is {share}, expected 0 to 1")
        chosen = numpy.zeros(len(self.sequence_offsets) - 1, numpy.uint8)
        library.cot_trace_split(ctypes.c_void_p(chosen.ctypes.data), ctypes.c_int64(len(chosen)), ctypes.c_double(share),
                                ctypes.c_uint64(whole(seed, "seed", 2**64 - 1)))  # fmt: skip
        return chosen.astype(bool)

    def write(self, path: str | os.PathLike) -> None:
        """Writes it as the safetensors file that `coterie` reads."""
        call("cot_trace_write", ctypes.byref(self._struct), ctypes.c_char_p(text(path)))

    def _chosen(self, sequences, name):
        """Which sequences count, as the library takes them: uint8 [S], or None for all."""
        if sequences is None:
            return None
        if self.kind == "counts":
            raise ValueError(f"{name} is of sequences, which counts do not have")
        chosen = host(sequences, name)
        if chosen.dtype != bool or chosen.shape != (len(self.sequence_offsets) - 1,):
            raise ValueError(f"{name} holds {chosen.dtype} in shape {chosen.shape}, expected a bool for each of "
                             f"{len(self.sequence_offsets) - 1} sequences")  # fmt: skip
        return chosen.astype(numpy.uint8)


def read_trace(path: str | os.PathLike, *, format: str | None = None, model: str | None = None, n_experts: int = 0,
               top_k: int = 0, hidden: int = 0) -> Trace:  # fmt: skip
    """Reads a file or folder of any format of `coterie trace convert`: format, or recognised by content. model, n_experts,
    top_k and hidden: where the data does not say. What was derived is logged to "coterie". coterie.Error for what is wrong."""
    options = structs.TraceImportOptions(ctypes.sizeof(structs.TraceImportOptions), text(format), text(model),
                                         whole(n_experts, "n_experts"), whole(top_k, "top_k"),
                                         whole(hidden, "hidden"), _say)  # fmt: skip
    trace = Trace.__new__(Trace)
    read = ("cot_trace_import", "cot_trace_close", ctypes.c_char_p(text(path)), ctypes.byref(options))
    with _opened(structs.Trace, *read) as t:
        L, T, K, E, S, V = t.n_layers, t.n_tokens, t.top_k, t.n_experts, t.n_sequences, t.n_strings
        tokens = t.kind == TOKENS
        held = {"model_hash": t.model_hash, "hidden": t.hidden}
        if tokens:
            held["experts"] = _copy(t.experts_u8 or t.experts_u16, L, T, K)
            held["sequence_offsets"] = _copy(t.sequence_offsets, S + 1)
            held["weights"] = _copy(t.weights, L, T, K).view(numpy.float16) if t.weights else None
        else:
            held["counts"] = _copy(t.counts, L, T, E)
        if V:
            held["string_offsets"] = _copy(t.string_offsets, V + 1)
            held["string_bytes"] = numpy.frombuffer(ctypes.string_at(t.strings, int(held["string_offsets"][-1])), numpy.uint8).copy()
        trace._set("tokens" if tokens else "counts", t.model.decode("utf-8", "replace"), E, K, _copy(t.layers, L),
                   _copy(t.token_ids, T), **held)  # fmt: skip
    return trace
