"""coterie.Engine: a model that runs, as `coterie run` does."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import json
import operator
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy

from . import _structs as structs
from ._library import Error, array_at, call, copy_of, free, library, opened, say, text, whole
from ._place import Placement, placed
from ._progress import Bar

library.cot_engine_describe.restype = ctypes.POINTER(structs.EngineInfo)
for _name in ("cot_engine_close", "cot_text_stream_close", "cot_tokenizer_close", "cot_constraint_close",
              "cot_constraint_compiler_close"):  # fmt: skip
    getattr(library, _name).argtypes, getattr(library, _name).restype = [ctypes.c_void_p], None
# What a step tells of a request lands in a dict of its own, a token under the request's number and its end under bytes, put
# there by functions that are C: Python runs what a signal raises before the first line of a function of its own, where nobody
# could catch it, and C would take it for the end of the text.
ON_TOKEN, ON_FINISH = structs.OnToken(dict.setdefault), structs.OnFinish(operator.setitem)
FINISHES = ("length", "eos", "stop", "context", "cancelled", "overflow", "constraint")  # cot_finish
CONSTRAINTS = ("json_schema", "regex", "grammar", "choice")  # cot_constraint_kind


class Token(NamedTuple):
    """What a step made of a text: the token's id, and the text that is sure now, often none. Text that was held back until the
    end (it might have begun a stop string) comes last, with an id of None."""

    id: int | None
    text: str


class Generation(Iterator[Token]):
    """A text while it is made: iterating steps the engine, and with it all texts that are under way.

    ids: the tokens made so far; text: the text so far; finish: None while it goes on, then "length", "eos", "stop", "context",
    "cancelled", "overflow": the model's numbers are no longer finite, or "constraint": nothing could come that keeps to it.
    close() ends it early; so does forgetting it.
    """

    def __init__(self, engine: Engine, stream: ctypes.c_void_p):
        self.finish: str | None = None
        self._engine, self._stream, self._request = engine, stream, 0
        self._log: dict[int, Token] = {}  # by number; what is added twice, since an exception came in between, is there once
        self._given = 0  # of them, to the caller
        self._pushed: Any = None  # what the stream was given last, and what it gave back

    @property
    def ids(self) -> list[int]:
        return [token.id for token in list(self._log.values()) if token.id is not None]

    @property
    def text(self) -> str:
        return "".join(token.text for token in list(self._log.values()))

    def __next__(self) -> Token:
        while self._given not in self._log and self.finish is None:
            self._engine._step()
        if self._given not in self._log:
            raise StopIteration
        self._given += 1
        return self._log[self._given - 1]

    def close(self) -> None:
        if self.finish is None:
            self._engine._forgotten.append(self._request)
            self._release("cancelled")
            self._engine._cancel_forgotten()

    def __del__(self):
        # Wherever that happens, perhaps on another thread: the engine cancels it when it is at work again.
        if getattr(self, "_stream", None) is not None:
            self._engine._forgotten.append(self._request)
            self._release("cancelled")

    def __repr__(self) -> str:
        return f"Generation({self.text!r}, {len(self.ids)} tokens, {self.finish or 'under way'})"

    def _push(self, event, name, *arguments):
        """Gives the stream what `event` told, once however often this is called with it; whether a stop string has come."""
        if self._pushed is None or self._pushed[0] is not event:
            self._pushed = event, len(self._log), ctypes.c_char_p(), ctypes.c_size_t(2**64 - 1), ctypes.c_bool()
        _, number, piece, length, stopped = self._pushed
        if length.value == 2**64 - 1:
            out = map(ctypes.byref, (piece, length, stopped)[: 3 if arguments else 2])
            call(name, self._stream, *arguments, *out)
        said, id = ctypes.string_at(piece, length.value).decode("utf-8", "replace"), getattr(event, "id", None)
        if said or id is not None:
            self._log.setdefault(number, Token(id, said))
        return stopped.value

    def _take(self, token):
        if self._push(token, "cot_text_stream_push", ctypes.c_int32(token.id)):
            self._engine._forgotten.append(self._request)
            self._release("stop")
            self._engine._cancel_forgotten()

    def _end(self, finish):
        self._push(finish, "cot_text_stream_finish")
        self._release(finish)

    def _release(self, finish):
        self.finish = finish
        stream, self._stream = self._stream, None
        library.cot_text_stream_close(stream)


class Engine:
    """A model on a group of ranks, which belongs to one thread at a time.

        with coterie.Engine("OLMoE-1B-7B-0924", ranks=4) as engine:
            for token in engine.generate("The town was", max_tokens=50):
                print(token.text, end="", flush=True)

    folder: a model's folder with config.json, tokenizer.json and safetensors. placement: where experts sit, a Placement, a file
    in any format of `coterie place convert`, or an array [MoE layers, slots]. tables: a file of `coterie group --tables`.
    sequence_tokens: most tokens of a prompt and its text together (`--max-model-len` of `coterie serve`), which context_tokens then
    says, and buffers are made for; 0: the model's context. The other options are those of `coterie run --help`, 0 and None its defaults. A process that is forked off has no engine: it is
    closed there.
    architecture, isa, vocab, hidden, layers, experts, top_k, context_tokens, weight_bytes, ranks, threads: what was opened;
    moe_layers: int32 [L], the model's numbers of its MoE layers.
    """

    architecture: str
    isa: str
    vocab: int
    hidden: int
    layers: int
    experts: int
    top_k: int
    context_tokens: int
    weight_bytes: int
    ranks: int
    threads: int
    moe_layers: numpy.ndarray

    def __init__(self, folder: str | os.PathLike, ranks: int = 1, *, threads: int = 0, precision: str = "bf16",
                 weights: str | None = None, weights_attention: str | None = None, weights_head: str | None = None,
                 attention: str = "tp", op: str | None = None, combine: str = "exact", a2a: str | None = None,
                 dedup: str | None = None, sms_reserve: int = 0, payload: str | None = None, isa: str | None = None, fabric: str | None = None, timeout: float = 300,
                 placement: Placement | str | os.PathLike | Any = None, tables: str | os.PathLike | None = None,
                 pipeline: str | None = None, predict: str | None = None, collective: str | None = None,
                 expert_slots: int = 0, step_tokens: int = 512, sequence_tokens: int = 0,
                 kv_tokens: int = 0, sequences: int = 16, progress: bool = True):  # fmt: skip
        self._handle = self._tokenizer = self._compiler = None
        self._constraints: dict[int, Any] = {}  # by request, the engine's until it has told the end
        self._process = os.getpid()
        self._at_work = threading.Lock()
        self._under_way: weakref.WeakValueDictionary[int, Generation] = weakref.WeakValueDictionary()
        self._told: dict[int, dict[Any, Any]] = {}  # by request, until it is over
        self._forgotten: collections.deque[int] = collections.deque()
        self._submitted = 0
        options = structs.EngineOptions()
        library.cot_engine_options_init(ctypes.byref(options))
        group, experts = options.group, options.experts
        group.ranks, group.threads = whole(ranks, "ranks"), whole(threads, "threads")
        group.fabric, group.isa = text(fabric), text(isa)
        group.timeout_ns = whole(round(timeout * 1e9), "timeout", 2**62)
        options.weights = (text(precision), text(weights), text(weights_attention), text(weights_head))
        options.attention = (text(attention), text(pipeline), text(predict), text(collective))
        experts.op, experts.combine, experts.payload = text(op), text(combine), text(payload)
        experts.a2a, experts.dedup, experts.tables = text(a2a), text(dedup), text(tables)
        experts.sms_reserve, experts.slots = whole(sms_reserve, "sms_reserve"), whole(expert_slots, "expert_slots")
        options.batch.sequences = whole(sequences, "sequences")
        options.batch.step_tokens = whole(step_tokens, "step_tokens")
        options.memory.sequence_tokens = whole(sequence_tokens, "sequence_tokens")
        options.memory.kv_tokens = whole(kv_tokens, "kv_tokens", 2**62)
        with contextlib.ExitStack() as stack:
            if placement is not None:
                made = stack.enter_context(_placed(folder, placement, group.ranks))
                experts.placement = ctypes.pointer(made)
            bar = stack.enter_context(Bar("loading", "B", progress))
            options.watch.progress = structs.Loading(lambda _context, done, total: bar.show(done, total))
            tokenizer, handle, notes = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
            call("cot_tokenizer_open", ctypes.byref(tokenizer), ctypes.c_char_p(text(folder)))
            self._tokenizer = tokenizer
            call("cot_engine_open", ctypes.byref(handle), ctypes.c_char_p(text(folder)), ctypes.byref(options),
                 ctypes.byref(notes))  # fmt: skip
            self._handle = handle
        if notes:
            say(None, ctypes.string_at(notes))
            free(notes)
        info = library.cot_engine_describe(handle).contents
        self.architecture, self.isa = info.architecture.decode(), info.isa.decode()
        for name in ("vocab", "hidden", "layers", "experts", "top_k", "context_tokens", "weight_bytes", "ranks", "threads"):
            setattr(self, name, getattr(info, name))
        self.moe_layers = copy_of(info.moe_layer, info.moe_layers)

    def generate(self, prompt: str | Iterable[int], *, max_tokens: int = 256, temperature: float = 0.0, top_k: int = 0,
                 top_p: float = 1.0, min_p: float = 0.0, repetition_penalty: float = 1.0, seed: int = 0,
                 stop: str | Iterable[str] = (), ignore_eos: bool = False, json_schema: dict | bool | str | None = None,
                 regex: str | None = None, grammar: str | None = None, choice: Iterable[str] | None = None) -> Generation:  # fmt: skip
        """Begins a text; iterating over the result makes it, a Token at a time. Several may be under way at once.

        prompt: text, or token ids. temperature 0 takes the likeliest token always; top_k 0 and top_p 1 allow all; stop: strings
        that end the text, which ends before them. json_schema (or its text), regex, grammar (in Lark's form, `start: ...`), choice:
        what the text has to be, at most one of them; needs llguidance (`pip install llguidance==1.9.1`). ValueError for what is out of range, coterie.Error for what is longer than
        the model's context.
        """
        self._check_open()
        if isinstance(prompt, (bytes, bytearray)):
            raise TypeError("prompt holds bytes, expected text or token ids")
        ids = numpy.asarray(self.encode(prompt) if isinstance(prompt, str) else list(prompt))
        if ids.ndim != 1:
            raise ValueError(f"prompt has shape {ids.shape}, expected one row of token ids")
        if ids.size and ids.dtype.kind not in "iu":
            raise TypeError(f"prompt holds {ids.dtype}, expected token ids")
        if ids.size:
            whole(int(ids.min()), "prompt"), whole(int(ids.max()), "prompt")
        ids = numpy.ascontiguousarray(ids, numpy.int32)
        request = structs.Request()
        library.cot_request_init(ctypes.byref(request))
        request.prompt, request.prompt_tokens = array_at(ids, structs.Ints), len(ids)
        sampling = request.sampling
        sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p = temperature, whole(top_k, "top_k"), top_p, min_p
        sampling.repetition_penalty, sampling.seed = repetition_penalty, whole(seed, "seed", 2**64 - 1)
        sampling.max_tokens, sampling.ignore_eos = whole(max_tokens, "max_tokens"), ignore_eos
        strings = [text_of(s, "stop") for s in ([stop] if isinstance(stop, str) else stop)]
        if any(b"\0" in s for s in strings):
            raise ValueError("a stop string has a NUL in it")
        constraint = self._constraint(json_schema, regex, grammar, choice)
        request.constraint = constraint
        stream, number = ctypes.c_void_p(), ctypes.c_uint64()
        options = structs.TextOptions()
        library.cot_text_options_init(ctypes.byref(options))
        stops = (ctypes.c_char_p * len(strings))(*strings)
        options.stops, options.stop_count = stops, len(strings)
        told: dict[Any, Any] = {}
        events = structs.Events(id(told), None, None, ON_TOKEN, None, None, ON_FINISH)
        try:
            call("cot_text_stream_open", ctypes.byref(stream), self._tokenizer, ctypes.byref(options))
        except BaseException:
            library.cot_constraint_close(constraint)
            raise
        generation = Generation(self, stream)
        try:
            with self._working():
                call("cot_engine_submit", self._handle, ctypes.byref(number), ctypes.byref(request),
                     ctypes.c_int(self._submitted % self.ranks), ctypes.byref(events))  # fmt: skip
                self._told[number.value] = told
                self._constraints[number.value] = constraint
        except BaseException:
            generation._release("cancelled")
            if not number.value:
                library.cot_constraint_close(constraint)
            raise
        self._submitted += 1
        generation._request = number.value
        self._under_way[number.value] = generation
        return generation

    def _constraint(self, json_schema, regex, grammar, choice):
        """What one of them says, as the library has it; None for none."""
        said = [(kind, value) for kind, value in enumerate((json_schema, regex, grammar, choice)) if value is not None]
        if len(said) > 1:
            raise ValueError(f"{CONSTRAINTS[said[0][0]]} and {CONSTRAINTS[said[1][0]]} exclude one another")
        if not said:
            return None
        [(kind, value)] = said
        name, made = CONSTRAINTS[kind], ctypes.c_void_p()
        if name == "choice":
            value = json.dumps([value] if isinstance(value, str) else list(value))
        elif name == "json_schema" and not isinstance(value, str):
            value = json.dumps(value)
        encoded = text_of(value, name)
        if self._compiler is None:
            info, compiler = library.cot_engine_describe(self._handle).contents, ctypes.c_void_p()
            call("cot_constraint_compiler_open", ctypes.byref(compiler), self._tokenizer, ctypes.c_int64(info.vocab), info.eos,
                 ctypes.c_size_t(info.eos_count))  # fmt: skip
            self._compiler = compiler
        call("cot_constraint_compile", ctypes.byref(made), self._compiler, ctypes.c_int(kind), ctypes.c_char_p(encoded),
             ctypes.c_size_t(len(encoded)))  # fmt: skip
        return made

    def encode(self, string: str) -> list[int]:
        """The token ids of a text, with those that a prompt begins or ends with."""
        self._check_open()
        ids, count, encoded = structs.Ints(), ctypes.c_size_t(), text_of(string, "the text")
        call("cot_tokenizer_encode", self._tokenizer, ctypes.byref(ids), ctypes.byref(count), ctypes.c_char_p(encoded),
             ctypes.c_size_t(len(encoded)), ctypes.c_bool(True))  # fmt: skip
        try:
            return ids[: count.value]
        finally:
            free(ids)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; special tokens leave none."""
        self._check_open()
        out, size = ctypes.c_void_p(), ctypes.c_size_t()
        array = (ctypes.c_int32 * len(listed := [whole(i, "ids") for i in ids]))(*listed)
        call("cot_tokenizer_decode", self._tokenizer, ctypes.byref(out), ctypes.byref(size), array,
             ctypes.c_size_t(len(listed)), ctypes.c_bool(True))  # fmt: skip
        try:
            return ctypes.string_at(out, size.value).decode()
        finally:
            free(out)

    def close(self) -> None:
        """Frees the model; texts that are under way end as "cancelled"."""
        for generation in list(self._under_way.values()):
            generation.close()
        if self._handle and self._process == os.getpid():
            library.cot_engine_close(self._handle)
            for constraint in self._constraints.values():
                library.cot_constraint_close(constraint)
            self._constraints.clear()
            library.cot_constraint_compiler_close(self._compiler)
        if self._tokenizer:
            library.cot_tokenizer_close(self._tokenizer)
        self._handle = self._tokenizer = self._compiler = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_exception) -> None:
        self.close()

    def __del__(self):
        with contextlib.suppress(Exception):
            self.close()

    def __repr__(self) -> str:
        if not self._handle:
            return "Engine(closed)"
        return (f"Engine({self.architecture}, {self.layers} layers, {self.experts} experts, top {self.top_k}, "
                f"{self.ranks} ranks, {self.weight_bytes / 1e9:.2f} GB)")  # fmt: skip

    def _check_open(self):
        if not self._handle:
            raise ValueError("the engine is closed")
        if self._process != os.getpid():
            raise ValueError("the engine belongs to the process that this one was forked from")

    @contextlib.contextmanager
    def _working(self):
        """While the library is called."""
        if not self._at_work.acquire(blocking=False):
            raise RuntimeError("the engine is at work in another thread")
        try:
            self._check_open()
            while self._forgotten:
                self._drop(self._forgotten.popleft())
            yield
        finally:
            self._at_work.release()

    def _drop(self, request):
        with contextlib.suppress(Error):  # it is over, or a rank has died
            call("cot_engine_cancel", self._handle, ctypes.c_uint64(request))

    def _cancel_forgotten(self):
        if self._handle and self._process == os.getpid():
            with self._working():
                pass

    def _pass_on(self, request):
        """In an order in which an exception between any two lines loses nothing."""
        told, generation = self._told[request], self._under_way.get(request)
        token, finish = told.get(request), next((told[key] for key in list(told) if key != request), None)
        if token is not None:
            if generation and generation.finish is None:
                generation._take(token)
            told.pop(request, None)
        if finish is not None:
            if generation and generation.finish is None:
                generation._end(FINISHES[finish])
            library.cot_constraint_close(self._constraints.pop(request, None))
            self._told.pop(request, None)

    def _step(self):
        left = ctypes.c_size_t()
        if self._deliver():  # an exception came between the last step and this
            return
        with self._working():
            call("cot_engine_step", self._handle, ctypes.byref(left))
        self._deliver()

    def _deliver(self):
        """Passes on what was told; whether anything was."""
        requests = [request for request, told in self._told.items() if told]
        for request in requests:
            self._pass_on(request)
        return bool(requests)


def text_of(string, name):
    """UTF-8 of a text."""
    if not isinstance(string, str):
        raise TypeError(f"{name} is {string!r}, expected text")
    return string.encode()


@contextlib.contextmanager
def _placed(folder, placement, ranks):
    """The struct of a placement of the model in `folder`."""
    describe = ("cot_model_describe", "cot_model_info_clear", ctypes.c_char_p(text(folder)))
    with opened(structs.ModelInfo, *describe) as model:
        layers = copy_of(model.moe_layer, model.moe_layers)
        if isinstance(placement, (str, os.PathLike)):
            options = structs.ExpertMapOptions(ctypes.sizeof(structs.ExpertMapOptions), ranks=ranks, n_layers=model.layers,
                                               moe_layer=model.moe_layer, moe_layers=model.moe_layers, say=say)  # fmt: skip
            read = ("cot_expert_map_read", "cot_expert_map_free", ctypes.c_char_p(text(placement)), ctypes.byref(options))
            with opened(structs.ExpertMap, *read) as made:
                yield made
        elif isinstance(placement, Placement):
            yield placement._struct()
        else:
            with placed(placement, layers, model.experts, ranks, 0, "placement") as made:
                yield made
