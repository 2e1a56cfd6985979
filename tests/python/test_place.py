"""coterie.place: small placements against all there are, arrays and files alike, and the layout of the structs."""

import ctypes
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
import warnings

from skip import have, need

(numpy,) = need("numpy")
torch = have("torch")
SOURCE = pathlib.Path(os.environ["COT_SOURCE"])
SAMPLES = SOURCE / "tests" / "placement" / "samples"
sys.path.insert(0, str(SOURCE / "python"))
import coterie  # noqa: E402
from coterie import _structs, eplb  # noqa: E402

SEED = time.time_ns() % 2**32
rng = numpy.random.default_rng(SEED)


def maps(layers, experts, ranks, slots):
    """A random placement [layers, ranks, slots a rank]: every expert somewhere, the other slots of any experts or empty."""
    made = rng.integers(-1, experts, (layers, ranks * slots))
    for layer in made:
        layer[rng.permutation(ranks * slots)[:experts]] = numpy.arange(experts)
    return made.reshape(layers, ranks, slots)


class Place(unittest.TestCase):
    def check_moves(self, old, p):
        """Moves are the set differences, and transfers those, each from another rank that has it, no rank twice a round."""
        held = [[set(rank) - {-1} for rank in layer] for layer in old.tolist()]
        wanted = [[set(rank) - {-1} for rank in layer] for layer in p.physical_to_logical.tolist()]
        rows = [(l, r) for l in range(len(wanted)) if not p.dense[l] for r in range(len(wanted[l]))]
        expected = {(p.layers[l], e, r) for l, r in rows for e in wanted[l][r] - held[l][r]}
        self.assertEqual(p.moves, len(expected))
        self.assertEqual(len(p.transfers), len(expected))
        self.assertEqual({(layer, e, to) for layer, e, _, to, _ in p.transfers.tolist()}, expected)
        seen, first = set(), p.layers[0]
        for layer, expert, source, target, turn in p.transfers.tolist():
            self.assertNotEqual(source, target)
            self.assertIn(expert, held[layer - first][source])
            self.assertTrue(seen.isdisjoint({(turn, source), (turn, target)}))
            seen |= {(turn, source), (turn, target)}

    def test_exact(self):
        """A layer's best among all seatings, by a matrix of costs."""
        for _ in range(10):
            load, cost = rng.integers(1, 100, (2, 4)), rng.integers(0, 9, (2, 3))
            p = coterie.place(load, cost=cost, c_layer=2, c_exp=8)
            best = 0
            for l in range(2):
                seatings = [s for s in itertools.product(range(3), repeat=4) if max(map(s.count, s)) <= 2]
                best += min(sum(load[l][e] * cost[l][s[e]] for e in range(4)) for s in seatings)
            self.assertAlmostEqual(p.objective, best)
            self.assertLessEqual(p.gap, 1e-9 * max(best, 1))
            mine = sum(load[l][e] * cost[l][r] for l in range(2) for r in range(3) for e in p.physical_to_logical[l][r] if e >= 0)
            self.assertAlmostEqual(mine, best)
            self.assertEqual(p.peak_load.shape, (2,))

    def test_dense_layers(self):
        load = rng.integers(1, 100, (4, 6)).astype(float)
        load[:2] = 0
        p = coterie.place(load, "fattree:ranks=4", slots=8, first_layer=1)
        self.assertEqual(p.layers.tolist(), [1, 2, 3, 4])
        self.assertEqual(p.dense.tolist(), [True, True, False, False])
        self.assertEqual(p.physical_to_logical.shape, (4, 4, 2))
        self.assertEqual(p.physical_to_logical[0].ravel().tolist(), [0, 1, 2, 3, 4, 5, 0, 1])
        for layer in p.physical_to_logical:
            self.assertEqual(set(layer.ravel().tolist()), set(range(6)))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "map")
            p.write(path)
            own = json.loads(pathlib.Path(path).read_text())
            self.assertEqual((own["layers"], own["dense_layers"]), ([1, 2, 3, 4], [1, 2]))
            self.assertEqual(own["physical_to_logical_map"], p.physical_to_logical.reshape(4, 8).tolist())
            p.write(path, "sglang", layers=6)
            rows = json.loads(pathlib.Path(path).read_text())["physical_to_logical_map"]
            self.assertEqual(rows[1:5], p.physical_to_logical.reshape(4, 8).tolist())
            with self.assertRaisesRegex(ValueError, "unknown format 'pytorch'"):
                p.write(path, "pytorch")

    def test_first_layer(self):
        """Rows of an array are no model's layers before somebody says which; then dense ones come before them."""
        load = rng.integers(1, 100, (3, 8))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "map.json")
            plain = coterie.place(load, ranks=2)
            with self.assertRaisesRegex(ValueError, r"the load had 3 rows, the model has 5 layers.*first_layer=N"):
                plain.write(path, "sglang", layers=5)
            self.assertFalse(os.path.exists(path))
            plain.write(path, "sglang", layers=3)
            self.assertEqual(json.loads(pathlib.Path(path).read_text())["physical_to_logical_map"], plain.physical_to_logical.reshape(3, 8).tolist())
            for first in (0, 1, 2):
                p = coterie.place(load, ranks=2, first_layer=first)
                p.write(path, "sglang", layers=5)
                rows = json.loads(pathlib.Path(path).read_text())["physical_to_logical_map"]
                self.assertEqual((len(rows), rows[first : first + 3]), (5, p.physical_to_logical.reshape(3, 8).tolist()))
                self.assertTrue(all(row == list(range(8)) for i, row in enumerate(rows) if not first <= i < first + 3))
            # what counts MoE layers from 0 is no better than an array, what carries numbers is
            with self.assertRaisesRegex(ValueError, "which are they"):
                coterie.place(SAMPLES / "vllm-stats.jsonl", ranks=2).write(path, "sglang", layers=5)
            coterie.place(SAMPLES / "vllm-stats.jsonl", ranks=2, first_layer=2).write(path, "sglang", layers=5)
            coterie.place(SAMPLES / "counts.csv", ranks=2).write(path, "sglang", layers=9)
            coterie.place(coterie.read_trace(SAMPLES / "sglang-per-token"), ranks=2).write(path, "sglang", layers=9)

    def test_command(self):
        """Defaults and nodes are the command's: its map is the same to the last slot."""
        program = os.environ.get("COT_PROGRAM")
        if not program:
            self.skipTest("no program")
        with tempfile.TemporaryDirectory() as folder:
            loads, path = os.path.join(folder, "l.csv"), os.path.join(folder, "map.json")
            for ranks, more, options in (("2x3", [], {}), ("6", [], {}), ("3x2", ["--slots", "18"], {"slots": 18}),
                                         ("2x3", ["--c-layer", "3"], {"c_layer": 3}), ("2x3", ["--slots", "24", "--c-exp", "99"], {"slots": 24, "c_exp": 99})):  # fmt: skip
                load = rng.integers(1, 1000, (3, 16))
                lines = [f"{l},{e},{load[l][e]}" for l in range(3) for e in range(16)]
                pathlib.Path(loads).write_text("\n".join(["layer,expert,tokens", *lines]) + "\n")
                subprocess.run([program, "place", "--load", loads, "--ranks", ranks, "-o", path, *more], check=True, capture_output=True)
                told = json.loads(pathlib.Path(path).read_text())
                made = coterie.place(load, ranks=ranks, **options)
                self.assertEqual(told["physical_to_logical_map"], made.physical_to_logical.reshape(3, -1).tolist(), (ranks, options))
            for name in ("coterie", "sglang", "vllm", "tensorrt-llm", "vllm-ascend", "omni-infer"):  # what loads it, as the command says
                to = os.path.join(folder, "written")
                with warnings.catch_warnings(record=True) as told:
                    warnings.simplefilter("always")
                    made.write(to, name)
                convert = [program, "place", "convert", path, "--to", name, "-o", to]
                said = subprocess.run(convert, check=True, capture_output=True, text=True).stderr
                self.assertEqual([f"coterie: note: {w.message}" for w in told], said.splitlines())
                self.assertEqual(sum(str(w.message).startswith("start ") for w in told), name not in ("coterie", "omni-infer"))
                self.assertTrue(all(w.filename == __file__ for w in told))
        self.assertEqual(coterie.place(load, ranks="6").physical_to_logical.shape[1], 6)
        self.assertGreater(coterie.place(load, ranks="2x3").objective, 0)
        self.assertGreater(coterie.evaluate(made, load, ranks="2x3").links, 0)
        self.assertEqual(coterie.place(load, "complete:ranks=6,gpus=3", ranks="2x3").objective, coterie.place(load, ranks="2x3").objective)
        for bad in ("4y8", "x8", "4x", "", "-1", "4x8x2", "2.5", "4x8 "):
            with self.assertRaisesRegex(ValueError, "expected a number or NODESxRANKS"):
                coterie.place(load, ranks=bad)
        with self.assertRaisesRegex(ValueError, "ranks says 3 nodes, topology .* has 2"):
            coterie.place(load, "complete:ranks=6,gpus=3", ranks="3x2")
        with self.assertRaisesRegex(ValueError, "ranks is 0"):
            coterie.place(load, ranks="0x4")

    def test_sources(self):
        """Each rank prefers the experts that it sends to."""
        load = numpy.zeros((1, 2, 4))
        load[0, 0, [1, 3]] = load[0, 1, [0, 2]] = 5
        p = coterie.place(load, "complete:ranks=2,gpus=1")
        self.assertEqual([set(row.tolist()) for row in p.physical_to_logical[0]], [{1, 3}, {0, 2}])
        self.assertEqual(p.objective, 0)
        if torch:
            again = coterie.place(torch.tensor(load), "complete:ranks=2,gpus=1")
            self.assertEqual(again.physical_to_logical.tolist(), p.physical_to_logical.tolist())

    def test_files(self):
        with self.assertWarnsRegex(coterie.Notice, "2 of 5 layers") as told:
            p = coterie.place(SAMPLES / "sglang-stat.pt", "complete:ranks=2,gpus=1", slots=8)
        self.assertEqual(told.filename, __file__)  # the line that called
        self.assertEqual((p.experts, p.physical_to_logical.shape), (6, (5, 2, 4)))
        folder = coterie.place([SAMPLES / "sglang-per-token"], "complete:ranks=2,gpus=1")
        self.assertEqual(folder.dense.tolist(), [True, True, False, False, False])
        with self.assertRaises(coterie.Error):
            coterie.place("/nowhere.pt", "complete:ranks=2")

    def test_replan(self):
        """From a running placement: its moves and rounds are those of the maps, and about the fresh plan's peaks are reached."""
        old = rng.lognormal(0, 0.8, (3, 24))
        new = old * rng.lognormal(0, 0.3, old.shape)
        new[0] = 0  # a dense layer
        running = coterie.place(old, ranks=4, slots=32, first_layer=1)
        fresh = coterie.place(new, ranks=4, slots=32, method="eplb", first_layer=1)
        self.assertIsNone(fresh.moves)
        slots = running.physical_to_logical.reshape(3, 32)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "map")
            running.write(path)
            for current in (running, path, slots, slots.reshape(3, 4, 8), slots.tolist()):
                p = coterie.place(new, ranks=4, slots=32, method="eplb", first_layer=1, current=current)
                self.check_moves(running.physical_to_logical, p)
                # exchanges end up to 1 % above on layers as small as these
                self.assertTrue((p.peak_load <= fresh.peak_load * 1.03).all(), (p.peak_load, fresh.peak_load))
        few = coterie.place(new, ranks=4, slots=32, first_layer=1, current=running, max_moves=2)
        self.assertLessEqual(few.moves, 2)
        none = coterie.place(new, ranks=4, slots=32, first_layer=1, current=running, max_moves=0)
        self.assertEqual((none.moves, len(none.transfers)), (0, 0))
        self.assertEqual(none.physical_to_logical[1:].tolist(), running.physical_to_logical[1:].tolist())
        exact = coterie.place(new[1:], "fattree:ranks=4", method="ilpload", current=slots[1:, :24] * 0 + numpy.arange(24))
        self.assertEqual(exact.objective, exact.dual)
        for words, current in (("current has shape", slots[0]), ("current has shape", slots[:2]), ("is of 2 ranks", slots.reshape(3, 2, 16)),
                               ("current holds experts", slots + 1), ("current holds float64", slots * 1.0)):  # fmt: skip
            with self.assertRaisesRegex((ValueError, TypeError), words):
                coterie.place(new, ranks=4, slots=32, first_layer=1, current=current)
        with self.assertRaisesRegex(ValueError, "methods with replicas"):
            coterie.place(new[1:], "fattree:ranks=4", method="ilpload", current=slots[1:], max_moves=3)

    def test_replicas_on_a_rank(self):
        """Copies on the same rank are no moves, nor do ranks send to themselves."""
        old = numpy.array([[[1, 1], [3, 2], [0, 2], [3, 2]]])
        self.check_moves(old, coterie.place([[1, 3, 8, 8]], ranks=4, slots=20, method="eplb", current=old))
        for _ in range(200):
            layers, experts, ranks = rng.integers(1, 4), rng.integers(1, 12), rng.integers(1, 7)
            least = -(-experts // ranks)
            old = maps(layers, experts, ranks, least + rng.integers(5))
            load = rng.integers(1, 100, (layers, experts))
            options = {"ranks": int(ranks), "current": old}
            slots = int(ranks * (least + rng.integers(5)))
            for method in ("eplb", "eplb-swap", "replicate"):
                p = coterie.place(load, slots=slots, method=method, **options)
                self.check_moves(old, p)
                try:
                    few = coterie.place(load, slots=slots, method=method, max_moves=p.moves // 2, **options)
                except ValueError as refusal:
                    self.assertRegex(str(refusal), "moves are too few: filling")
                else:
                    self.check_moves(old, few)
                    self.assertLessEqual(few.moves, p.moves // 2)
            self.check_moves(old, coterie.place(load, method="rr", **options))

    def test_refusals(self):
        load = rng.integers(1, 100, (1, 4))
        for words, options in (("no cluster given", {}), ("attention has shape", {"cost": [[1, 2]], "attention": ([1, 2, 3],) * 2}),
                               ("", {"topology": "nonsense:ranks=2"}), ("", {"topology": "complete:ranks=2", "c_layer": 1}),
                               ("", {"topology": "complete:ranks=2", "method": "best"})):  # fmt: skip
            with self.assertRaisesRegex(ValueError, words):
                coterie.place(load, **options)
        for bad in ([1, 2], [[-1, 2]], [[numpy.nan, 2]], [[numpy.inf, 2]], [["a", "b"]], [[1j, 2]], [[]], [[1], [2, 3]]):
            with self.assertRaises(ValueError):
                coterie.place(bad, "complete:ranks=2")
        for words, options in (("slots is 1099511627776", {"slots": 2**40}), ("slots is -1", {"slots": -1}), ("c_layer is 4294967298", {"c_layer": 2**32 + 2}),
                               ("c_layer has shape", {"c_layer": [1, 2, 3]}), ("cost -1", {"cost": [[-1, 2]]}), ("", {"cost": [[numpy.nan, 2]]}),
                               ("dispatch is 'far'", {"dispatch": "far"}), ("attention is 'none'", {"attention": "none"}),
                               ("distance is 'miles'", {"distance": "miles"}), ("max_load is -1", {"max_load": -1}), ("max_load is nan", {"max_load": numpy.nan}),
                               ("3 parts", {"attention": ([[1, 1]],) * 3}), ("first_layer is -1", {"first_layer": -1}),
                               ("bytes is -1", {"bytes": -1}), ("bytes is nan", {"bytes": numpy.nan}), ("has a NUL", {"method": "il\0p"})):  # fmt: skip
            with self.assertRaisesRegex(ValueError, words, msg=options):
                coterie.place(load, **{"topology": "complete:ranks=2,gpus=1", **options})
        with self.assertRaisesRegex(ValueError, "first_layer is 2147483647, expected 0 to 2147483646"):
            coterie.place(numpy.ones((2, 4)), ranks=2, first_layer=2**31 - 1)
        self.assertEqual(coterie.place(load, ranks=2, first_layer=2**31 - 1).layers.tolist(), [2**31 - 1])
        for call in (lambda: coterie.place("a\0b", ranks=2), lambda: coterie.place(load, "complete:ranks=2\0,gpus=1"),
                     lambda: coterie.place(load, ranks=2).write(os.devnull + "\0.json"), lambda: coterie.read_trace("a\0b"),
                     lambda: coterie.evaluate("a\0b", load, ranks=2)):  # fmt: skip
            with self.assertRaisesRegex(ValueError, "has a NUL in it"):
                call()
        for layers in (2**40, -1):
            with self.assertRaisesRegex(ValueError, f"layers is {layers}, expected"):
                coterie.place(load, ranks=2).write(os.devnull, "sglang", layers)
        masked = numpy.ma.masked_equal([[1, 2, 3, 4]], 3)
        for call in (lambda: coterie.place(masked, ranks=2), lambda: coterie.place([masked[0]], ranks=2),
                     lambda: coterie.place(load, cost=masked[:, :2] + masked[:, 2:]), lambda: eplb.rebalance_experts(masked, 4, 1, 1, 2),
                     lambda: coterie.Trace(masked[None] % 3, n_experts=8)):  # fmt: skip
            with self.assertRaisesRegex(ValueError, "has masked elements"):
                call()
        unmasked = numpy.ma.array(load)
        self.assertEqual(coterie.place(unmasked, ranks=2).objective, coterie.place(load, ranks=2).objective)
        for p in (coterie.place(load, ranks=2, max_load=most) for most in (1e300, 1.7e308, 2)):  # none limits two ranks
            self.assertTrue(numpy.isfinite([p.objective, p.dual, p.gap]).all())
        for options in ({"slots": 4.5}, {"c_layer": 2.5}, {"ranks": 2.5}, {"groups": None}):
            with self.assertRaisesRegex(TypeError, "whole number", msg=options):
                coterie.place(load, **{"topology": "complete:ranks=2,gpus=1", **options})


class Layout(unittest.TestCase):
    def members(self, struct):
        """(name, type, offset) of a struct's members, and of those of structs in it that have no name in C."""
        for name, kind in struct._fields_:
            offset = getattr(struct, name).offset
            yield name, kind, offset
            if issubclass(kind, ctypes.Structure) and not hasattr(kind, "c_name"):
                yield from ((f"{name}.{of}", inner, offset + at) for of, inner, at in self.members(kind))

    def test_structs(self):
        """Sizes and offsets are those that a C compiler sees in the headers."""
        lines = ["#include <coterie/coterie.h>", "#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
        expected = []
        for struct in _structs.ALL:
            lines.append(f'printf("{struct.c_name} %zu\\n", sizeof({struct.c_name}));')
            expected.append(f"{struct.c_name} {ctypes.sizeof(struct)}")
            for name, kind, offset in self.members(struct):
                lines.append(f'printf("{struct.c_name}.{name} %zu %zu\\n", offsetof({struct.c_name}, {name}), sizeof((({struct.c_name} *)0)->{name}));')
                expected.append(f"{struct.c_name}.{name} {offset} {ctypes.sizeof(kind)}")
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "layout")
            source = "\n".join(lines + ["return 0; }"])
            build = ["cc", "-std=c17", "-x", "c", "-", "-I", str(SOURCE / "include"), "-o", program]
            subprocess.run(build, input=source, text=True, check=True)
            self.assertEqual(subprocess.run([program], capture_output=True, text=True).stdout.splitlines(), expected)


if __name__ == "__main__":
    print("seed", SEED)
    unittest.main()
