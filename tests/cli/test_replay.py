"""Recorded routing on the command line: what a run saved replays to the same trace; a trace that tables learnt from is replayed
but for those sequences, at the local activation rate that predict finds for them; random models of a real shape run a trace
of any experts, layers and ids; what cannot be replayed is told in one line; and tables and placements of another model are told from the model's own."""

import json
import os
import random
import shutil
import struct
import subprocess
import tempfile

PROGRAM = os.environ["COT_PROGRAM"]
MODEL = os.path.join(os.environ["COT_SOURCE"], "models", "tiny")
TEXT = os.path.join(os.environ["COT_SOURCE"], "README.md")


def run(*arguments, status=0):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)
    assert done.returncode == status, (arguments, done.returncode, done.stderr)
    return done


def refuse(word, *arguments, status=1):
    told = run(*arguments, status=status).stderr.splitlines()
    assert len(told) == 1 and word in told[0], (arguments, told)


def contents(path):
    with open(path, "rb") as file:
        return file.read()


def write_trace(path, layers, experts, top_k, lengths, ids, first=None):
    """A trace of drawn routing; ids are drawn below `ids`, and -1 is among them. first: the first one, unless it is None."""
    drawn = random.Random(7)
    tokens = sum(lengths)
    offsets = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    chosen = b"".join(bytes(drawn.sample(range(experts), top_k)) for _ in range(layers * tokens))
    numbers = [drawn.randrange(-1, ids) for _ in range(tokens)]
    if first is not None:
        numbers[0] = first
    tensors = {
        "token_ids": ("I32", [tokens], struct.pack(f"<{tokens}i", *numbers)),
        "sequence_offsets": ("I64", [len(offsets)], struct.pack(f"<{len(offsets)}q", *offsets)),
        "experts": ("U8", [layers, tokens, top_k], chosen),
    }
    header = {"__metadata__": {"format": "coterie.trace", "version": "1", "kind": "tokens", "model": "drawn",
                               "experts": str(experts), "top_k": str(top_k),
                               "layers": ",".join(str(layer) for layer in range(layers))}}
    data = b""
    for name, (dtype, shape, packed) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def what_is_saved_replays():
    run("profile", MODEL, "--text", TEXT, "-o", "t.st")
    run("profile", MODEL, "--routing", "trace:t.st", "--ranks", "3", "-o", "again.st")
    assert contents("t.st") == contents("again.st")
    losses = [json.loads(run("eval", MODEL, *way, "--json").stdout)["all"]
              for way in (["--text", TEXT], ["--routing", "trace:t.st", "--ranks", "2", "--save-routing", "saved.st"])]
    assert losses[0]["predictions"] == losses[1]["predictions"]
    assert abs(losses[0]["nats"] - losses[1]["nats"]) < 0.01, losses
    assert contents("t.st") == contents("saved.st")


def tables_leave_their_own_sequences_out():
    run("group", "t.st", "--ranks", "4", "--iterations", "1", "--split", "0.4", "--tables", "g.st")
    ways = {"algorithm-2": ["--predict", "algorithm-2"], "none": ["--predict", "none"], "worst": ["--predict", "worst"],
            "oracle": ["--predict", "oracle"]}
    lar = {}
    for name, way in ways.items():
        done = run("profile", MODEL, "--routing", "trace:t.st", "--ranks", "4", "--tables", "g.st", *way, "-o", "test.st",
                   "--stats=stats.json")
        assert "sequences are replayed" in done.stderr
        with open("stats.json") as file:
            lar[name] = json.load(file)["lar"]
    assert len(contents("test.st")) < len(contents("t.st"))
    foretold = json.loads(run("predict", "--tables", "g.st", "--evaluate", "t.st", "--json").stdout)
    even = [row["lar_even_test"] for row in foretold if row["method"] == "algorithm-2"]
    assert even and abs(even[0] - lar["algorithm-2"]) < 1e-6, (even, lar)
    assert lar["worst"] < lar["none"] < lar["algorithm-2"] < lar["oracle"], lar
    run("group", "t.st", "--ranks", "4", "--iterations", "1", "--split", "1", "--tables", "all.st")
    refuse("nothing is left to replay", "profile", MODEL, "--routing", "trace:t.st", "--ranks", "4", "--tables", "all.st",
           "-o", "x.st")


def shapes_run_traces():
    write_trace("few.st", 3, 2, 1, [5, 9, 1], 50)
    common = ["--shape", "gpt-oss-20b", "--routing", "trace:few.st", "--ranks", "2", "--threads", "2"]
    done = run("profile", *common, "--trace-layers", "1:3", "--prompt-tokens", "3", "-o", "cut.st", "--stats=stats.json")
    with open("stats.json") as file:
        stats = json.load(file)
    assert stats["prefill_tokens"] == 7 and stats["decode_tokens"] == 8, stats
    info = run("trace", "info", "cut.st").stdout
    assert "gpt-oss-20b" in info, info
    whole = run("profile", *common, "-o", "whole.st", "--op", "bulk", "--pipeline", "s-moe", "--predict", "oracle",
                "--stats=stats.json")
    assert "sequences are replayed" not in whole.stderr
    # where tokens go does not depend on widths
    run("profile", "--shape", "narrow", *common[2:], "-o", "narrow.st", "--op", "bulk", "--pipeline", "s-moe", "--predict", "oracle",
        "--stats=narrow.json")
    with open("stats.json") as file, open("narrow.json") as other:
        whole, narrow = json.load(file), json.load(other)
    assert whole["lar"] == narrow["lar"] and whole["remote_ranks"] == narrow["remote_ranks"], (whole["lar"], narrow["lar"])
    refuse("--trace-layers takes A:B", "profile", *common, "--trace-layers", "2:4", "-o", "x.st")
    refuse("unknown shape", "profile", "--shape", "gpt", "--routing", "trace:few.st", "-o", "x.st", status=2)


def what_is_refused():
    refuse("routing to 1 of 2 experts", "profile", MODEL, "--routing", "trace:few.st", "-o", "x.st")
    for rate in ("2", "-0.1", "nan", "0.5x", "inf"):
        refuse("takes X from 0 to 1", "profile", MODEL, "--text", TEXT, "--routing", f"lar:{rate}", "-o", "x.st", status=2)
    for routing in ("few.st", "lar:", "trace:"):
        refuse("takes trace:FILE or lar:X", "profile", MODEL, "--text", TEXT, "--routing", routing, "-o", "x.st", status=2)
    refuse("not both", "eval", MODEL, "--shape", "olmoe", "--routing", "trace:few.st", status=2)
    refuse("give a MODEL or --shape", "eval", "--routing", "trace:few.st", status=2)
    refuse("needs --routing trace", "profile", "--shape", "olmoe", "--text", TEXT, "-o", "x.st", status=2)
    refuse("give one of", "eval", MODEL, "--text", TEXT, "--routing", "trace:t.st", status=2)
    refuse("--trace-layers needs --shape", "profile", MODEL, "--routing", "trace:t.st", "--trace-layers", "0:2", "-o", "x.st",
           status=2)
    refuse("--trace-layers needs --routing", "eval", MODEL, "--text", TEXT, "--trace-layers", "0:2", status=2)
    for layers in ("2:1", "1", "0:", "a:b", "-1:2", "1:1", "0:2x"):
        refuse("--trace-layers takes A:B", "profile", "--shape", "olmoe", "--routing", "trace:t.st", "--trace-layers", layers, "-o",
               "x.st", status=2)
    for tokens in ("some", "0", "-1", "3x"):
        refuse("--prompt-tokens takes", "profile", MODEL, "--routing", "trace:t.st", f"--prompt-tokens={tokens}", "-o", "x.st",
               status=2)
    refuse("which replayed routing does not", "profile", MODEL, "--routing", "trace:t.st", "--ranks", "2", "--pipeline", "s-moe",
           "--predict", "gate", "-o", "x.st")


def ids_that_are_none():
    for first in (4096, 2147483647):
        write_trace("ids.st", 6, 32, 4, [5, 9], 50, first)
        refuse(f"'ids.st' has token id {first} at token 0, the model knows 4096 ids", "profile", MODEL, "--routing", "trace:ids.st",
               "-o", "x.st")
    refuse("'ids.st' has token id 2147483647", "profile", "--shape", "narrow", "--routing", "trace:ids.st", "-o", "x.st")
    write_trace("ids.st", 6, 32, 4, [5, 9], 50)  # fewer ids than the tables know
    told = run("profile", "--shape", "narrow", "--routing", "trace:ids.st", "--ranks", "4", "--tables", "g.st", "-o", "x.st").stderr
    assert "learnt from another trace" in told, told
    write_trace("none.st", 6, 32, 4, [0], 50)
    refuse("'none.st' holds no tokens", "profile", MODEL, "--routing", "trace:none.st", "-o", "x.st")


def hash_of(path):
    data = contents(path)
    return json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])["__metadata__"].get("model_hash")


def copy_model(to, layer):
    """The model with another gate in one layer."""
    shutil.copytree(MODEL, to)
    path = os.path.join(to, "model.safetensors")
    os.chmod(path, 0o644)
    with open(path, "r+b") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        begin, end = json.loads(file.read(size))[f"model.layers.{layer}.mlp.gate.weight"]["data_offsets"]
        file.seek(8 + size + begin)
        gate = file.read(end - begin)
        file.seek(8 + size + begin)
        file.write(gate[len(gate) // 2:] + gate[:len(gate) // 2])


def models_are_told_apart():
    """By the hash of their gates, which traces, tables and placements carry, and which neither conversion nor rounding changes."""
    known = hash_of("t.st")
    assert known and hash_of("g.st") == known == hash_of("saved.st")
    run("group", "t.st", "--ranks", "4", "--iterations", "1", "--tables", "g.st", "--placement", "p.json")
    run("place", "--load", "t.st", "--ranks", "4", "--slots", "36", "-o", "even.json")
    run("place", "--load", "t.st", "--ranks", "4", "--slots", "40", "--current", "even.json", "-o", "again.json")
    run("convert", MODEL, "-o", "few", "--weights", "int4")
    copy_model("first", 0)
    copy_model("last", 5)
    ask = "-p", "The town was", "-n", "2", "--ranks", "4"
    by = [["--tables", "g.st"], *(["--placement", map] for map in ("p.json", "even.json", "again.json"))]
    text = run("run", MODEL, *ask).stdout
    for way in by:
        assert run("run", MODEL, *ask, *way, "--fabric", "processes").stdout == text
        for other in ("first", "last"):
            refuse(f"(gates {known}), not of '{other}'", "run", other, *ask, *way)
    refuse("of model 'tiny'", "run", "first", *ask, *by[0], "--attention", "dp", "--fabric", "processes")
    for way in by:
        refuse(f"(gates {known}), not of 'first'", "eval", MODEL, "--text", "even.json", "--compare", "first", "--ranks", "4", *way)
    run("run", MODEL, "--weights", "int8", *ask, *by[0])
    run("run", "few", *ask, *by[0], *by[1], "--save-routing", "few.st")
    assert hash_of("few.st") == known
    # a trace's tables are the trace's, whatever runs it
    run("profile", "first", "--routing", "trace:few.st", "--ranks", "4", "--tables", "g.st", "-o", "again.st")
    assert hash_of("again.st") == known
    run("profile", "--shape", "narrow", "--routing", "trace:few.st", "--ranks", "4", "--tables", "g.st", "-o", "again.st")
    run("run", "first", *ask, "--save-routing", "other.st")
    assert hash_of("other.st") not in (None, known)
    refuse("not of 'other.st'", "profile", MODEL, "--routing", "trace:other.st", "--ranks", "4", "--tables", "g.st", "-o", "x.st")
    run("profile", "few", "--text", "p.json", "--ranks", "4", "--routing", "lar:0.5", "--tables", "g.st", "-o", "drawn.st")
    assert hash_of("drawn.st") is None
    # who does not say which model it is of is believed
    write_trace("drawn.st", 6, 32, 4, [200, 200], 900)
    run("group", "drawn.st", "--ranks", "4", "--iterations", "1", "--split", "0.5", "--tables", "d.st", "--placement", "d.json")
    assert hash_of("d.st") is None
    with open("d.json") as file:
        assert "model_hash" not in file.read()
    run("run", "first", *ask, "--tables", "d.st", "--placement", "d.json")
    run("place", "--load", "drawn.st", "--ranks", "4", "-o", "even.json")
    run("run", "first", *ask, "--placement", "even.json")


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    what_is_saved_replays()
    tables_leave_their_own_sequences_out()
    shapes_run_traces()
    what_is_refused()
    ids_that_are_none()
    models_are_told_apart()
