"""Traces, what placements are worth on them, groups and predictions: against NumPy and against the command line."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

from skip import need

(numpy,) = need("numpy")
SOURCE = pathlib.Path(os.environ["COT_SOURCE"])
sys.path.insert(0, str(SOURCE / "python"))
import coterie  # noqa: E402

SEED = time.time_ns() % 2**32
rng = numpy.random.default_rng(SEED)
L, E, K, RANKS, CLUSTER = 3, 12, 2, 4, "complete:ranks=4,gpus=1"


def homes(offsets, ranks):
    """The rank of each token: contiguous shares of its sequence."""
    sizes = numpy.diff(offsets)
    return numpy.concatenate([[sum(t >= r * n // ranks for r in range(1, ranks)) for t in range(n)] for n in sizes]).astype(int)


def draw(sequences=30):
    """Token ids favour experts of their own, so that there is something to learn."""
    offsets = numpy.concatenate([[0], rng.integers(1, 40, sequences).cumsum()])
    ids = rng.integers(0, 20, offsets[-1])
    experts = numpy.empty((L, len(ids), K), numpy.int64)
    for l in range(L):
        liking = rng.random((20, E)) ** 6
        for t, i in enumerate(ids):
            experts[l, t] = rng.choice(E, K, replace=False, p=liking[i] / liking[i].sum())
    return coterie.Trace(experts, n_experts=E, token_ids=ids, sequence_offsets=offsets, layers=[1, 2, 5], model="drawn")


def command(*arguments):
    run = subprocess.run([os.environ["COT_PROGRAM"], *map(str, arguments), "--json"], capture_output=True, text=True)
    if run.returncode:
        raise AssertionError(run.stderr)
    return json.loads(run.stdout)


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.trace = draw()
        self.path = pathlib.Path(self.folder.name) / "t.safetensors"
        self.trace.write(self.path)

    def tearDown(self):
        self.folder.cleanup()

    def test_round(self):
        read = coterie.read_trace(self.path)
        for name in ("experts", "token_ids", "sequence_offsets", "layers"):
            self.assertEqual(getattr(read, name).tolist(), getattr(self.trace, name).tolist(), name)
        self.assertEqual((read.kind, read.model, read.n_experts, read.top_k), ("tokens", "drawn", E, K))
        self.assertIsNone(read.weights)
        counts = [[(self.trace.experts[l] == e).sum() for e in range(E)] for l in range(L)]
        self.assertEqual(read.load().tolist(), counts)
        self.assertEqual((read.hidden, coterie.read_trace(self.path, hidden=96).hidden), (0, 96))
        wide = coterie.Trace(self.trace.experts, n_experts=300, weights=numpy.full(self.trace.experts.shape, 0.25), hidden=4096)
        wide.write(self.path)
        read = coterie.read_trace(self.path)
        self.assertEqual(read.hidden, 4096)
        self.assertEqual((read.experts.dtype, read.weights.dtype, read.weights.min()), (numpy.uint16, numpy.float16, 0.25))
        self.assertEqual(read.experts.tolist(), self.trace.experts.tolist())

    def test_counts(self):
        to = self.path.with_name("counts.safetensors")
        subprocess.run([os.environ["COT_PROGRAM"], "trace", "convert", self.path, "--counts", "-o", to], check=True, capture_output=True)
        counts = coterie.read_trace(to)
        self.assertEqual((counts.kind, counts.experts), ("counts", None))
        self.assertEqual(counts.load().tolist(), self.trace.load().tolist())
        for l in range(L):
            for row, i in enumerate(counts.token_ids):
                called = self.trace.experts[l][self.trace.token_ids == i].ravel()
                self.assertEqual(counts.counts[l, row].tolist(), numpy.bincount(called, minlength=E).tolist())
        for refused in (lambda: counts.split(0.5), lambda: counts.lar(2), lambda: coterie.group(counts, 2, sequences=[True])):
            with self.assertRaisesRegex(ValueError, "counts"):
                refused()
        self.assertGreater(coterie.group(counts, 2, iterations=2).lar, 0.5)
        self.assertEqual(set(coterie.predict(self.trace, 2, test=counts, resamples=0)), {"global", "token-table"})

    def test_locality_and_split(self):
        home = homes(self.trace.sequence_offsets, RANKS)
        place = numpy.arange(E) * RANKS // E
        self.assertTrue(numpy.allclose(self.trace.lar(RANKS), (place[self.trace.experts] == home[:, None]).mean((1, 2))))
        for share in (0, 0.2, 0.5, 1):
            self.assertEqual(self.trace.split(share, 7).sum(), round(share * 30))

    def test_evaluate(self):
        """Token by token, on a placement with replicas; the command line says the same."""
        slots = numpy.stack([rng.permutation(numpy.concatenate([numpy.arange(E), rng.integers(0, E, 4)])) for _ in range(L)])
        slots = slots.reshape(L, RANKS, 4)
        home, T = homes(self.trace.sequence_offsets, RANKS), len(self.trace.token_ids)
        held = numpy.array([[[(slots[l, r] == e).sum() for r in range(RANKS)] for e in range(E)] for l in range(L)])
        share = held / held.sum(-1, keepdims=True)
        # data-parallel attention: there and back is 0 hops or d, from each rank alike
        far = (1 - share) @ numpy.full(RANKS, 1 / RANKS)
        called = self.trace.experts
        cost = sum(far[l][called[l]].sum(-1) for l in range(L))
        local = numpy.mean([share[l][called[l], home[:, None]] for l in range(L)])
        load = numpy.stack([self.trace.load()[l].astype(float) @ share[l] for l in range(L)])
        path = self.path.with_name("p.json")
        p = coterie.place(self.trace, CLUSTER, attention="dp", slots=16)
        p.physical_to_logical = slots
        p.write(path)
        for placement, loaded in ((slots, self.trace), (path, self.path), (p, self.path)):
            f = coterie.evaluate(placement, loaded, CLUSTER, attention="dp")
            self.assertAlmostEqual(f.token_mean, 2 * cost.mean())  # a hop there, a hop back
            self.assertAlmostEqual(f.token_std, 2 * cost.std())
            self.assertAlmostEqual(f.objective, 2 * cost.sum(), places=6)
            self.assertAlmostEqual(f.lar, local)
            self.assertEqual(f.activations, T * K * L)
            self.assertTrue(numpy.allclose(f.rank_load, load))
            self.assertTrue(numpy.allclose(f.peak_load, load.max(1) / load.mean(1)))
            self.assertAlmostEqual(f.peak, (load.max(1) / load.mean(1)).max())
            self.assertAlmostEqual(f.balancedness["tensorrt_llm"], (load.max(1) / load.mean(1) - 1).mean())
            self.assertEqual(f.links, RANKS * (RANKS - 1))  # one from each rank to each other
            self.assertAlmostEqual(f.link_mean, 2 * (self.trace.load() * far).sum() / f.links, places=6)
        printed = command("place", "--evaluate", self.path, "--placement", path, "--topology", CLUSTER, "--attention", "dp")
        self.assertAlmostEqual(printed["lar"], f.lar)
        self.assertAlmostEqual(printed["hops_per_token"]["std"], f.token_std)
        self.assertAlmostEqual(printed["link_load"]["p99"], f.link_p99)
        counted = coterie.evaluate(slots, self.trace.load(), ranks=RANKS, first_layer=1)
        self.assertIsNone(counted.token_std)
        self.assertEqual((counted.links, counted.link_max), (0, 0))
        nearest = coterie.evaluate(slots, self.trace, CLUSTER, attention="dp", dispatch="nearest")
        self.assertAlmostEqual(nearest.lar, numpy.mean([held[l][called[l], home[:, None]] > 0 for l in range(L)]))
        with self.assertRaisesRegex(ValueError, "placement has shape"):
            coterie.evaluate(slots[:2], self.trace, CLUSTER)
        with self.assertRaisesRegex(coterie.Error, "lacks layer 5"):
            p.layers = numpy.array([1, 2, 6], numpy.int32)
            coterie.evaluate(p, self.trace, CLUSTER)

    def test_model_hash(self):
        """Which model it is of goes from a trace to what is written and grouped of it."""
        for known in (None, "fedcba9876543210"):
            data = self.path.read_bytes()
            begin = 8 + int.from_bytes(data[:8], "little")
            header = json.loads(data[8:begin])
            if known:
                header["__metadata__"]["model_hash"] = known
            text = json.dumps(header).encode()
            text += b" " * (-len(text) % 8)
            self.path.write_bytes(len(text).to_bytes(8, "little") + text + data[begin:])
            trace, to = coterie.read_trace(self.path), self.path.with_name("again")
            trace.write(to)
            data = to.read_bytes()
            header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
            self.assertEqual(header["__metadata__"].get("model_hash"), known)
            for made in (coterie.group(trace, RANKS, iterations=1).placement(), coterie.place(trace, ranks=RANKS),
                         coterie.place(self.path, ranks=RANKS, slots=4 * RANKS, current=coterie.place(trace, ranks=RANKS))):  # fmt: skip
                made.write(to)
                self.assertEqual(json.loads(to.read_text()).get("model_hash"), known)

    def test_group(self):
        """Figures by NumPy, and the groups that the command line finds."""
        learnt = self.trace.split(0.6, 3)
        g = coterie.group(self.trace, RANKS, iterations=3, sequences=learnt, seed=3)
        mine = numpy.repeat(learnt, numpy.diff(self.trace.sequence_offsets))
        ids, experts = self.trace.token_ids[mine], self.trace.experts[:, mine]
        self.assertEqual(g.token_ids.tolist(), numpy.unique(ids).tolist())
        row = numpy.searchsorted(g.token_ids, ids)
        stays = 0
        for l in range(L):
            self.assertEqual(numpy.bincount(g.expert_rank[l], minlength=RANKS).tolist(), [E // RANKS] * RANKS)
            sent, served = g.token_rank[l][row], g.expert_rank[l][experts[l]]
            self.assertAlmostEqual(g.layer["lar"][l], (served == sent[:, None]).mean())
            self.assertAlmostEqual(g.layer["token_peak"][l], numpy.bincount(sent).max() * RANKS / len(ids))
            self.assertAlmostEqual(g.layer["expert_peak"][l], numpy.bincount(served.ravel()).max() * RANKS / served.size)
            if l:
                stays += (g.token_rank[l - 1][row] == sent).mean() / (L - 1)
        self.assertAlmostEqual(g.stay, stays)
        self.assertAlmostEqual(g.lar, g.layer["lar"].mean())
        self.assertTrue((g.layer["lar"] <= g.layer["lar_bound"] + 1e-9).all())
        self.assertGreaterEqual(g.stay, g.stay_before)
        self.assertIsNone(g.distance)
        p = g.placement()
        self.assertEqual((p.layers.tolist(), p.physical_to_logical.shape), ([1, 2, 5], (L, RANKS, E // RANKS)))
        for l in range(L):
            for r in range(RANKS):
                self.assertEqual(p.physical_to_logical[l, r].tolist(), numpy.flatnonzero(g.expert_rank[l] == r).tolist())
        to = self.path.with_name("groups.json")
        arguments = ("group", self.path, "--ranks", RANKS, "--iterations", 3, "--split", 0.6, "--seed", 3)
        (printed,) = command(*arguments, "--placement", to)
        self.assertAlmostEqual(printed["lar_train"], g.lar, places=8)
        self.assertAlmostEqual(printed["stay"], g.stay, places=8)
        for l in range(L):
            self.assertAlmostEqual(printed["layers"][l]["token_limit"], g.layer["token_limit"][l], places=8)
        (printed,) = command(*arguments, "--shrink", 1000)
        shrunk = coterie.group(self.trace, RANKS, iterations=3, sequences=learnt, seed=3, shrink=1000)
        self.assertNotEqual(shrunk.expert_rank.tolist(), g.expert_rank.tolist())
        self.assertAlmostEqual(printed["lar_train"], shrunk.lar, places=8)
        with self.assertRaisesRegex(ValueError, "leave out seconds"):
            coterie.group(self.trace, RANKS, iterations=3, seconds=10)
        rows = json.loads(to.read_text())["physical_to_logical_map"]
        self.assertEqual(rows, p.physical_to_logical.reshape(L, E).tolist())
        seated = coterie.group(self.trace, RANKS, iterations=2, topology=CLUSTER, joint=True)
        self.assertLessEqual(seated.distance, seated.distance_before)
        nodes = coterie.group(self.trace, RANKS, iterations=2, nodes=2, link_cost=(1, 3))
        self.assertTrue(0 < nodes.cost < 3)
        self.assertTrue(numpy.isnan(nodes.layer["token_limit"]).all())
        told = []
        coterie.group(self.trace, RANKS, iterations=2, method="ce", progress=lambda *done: told.append(done))
        self.assertEqual(told, [(0, 2), (1, 2)])
        began = time.monotonic()
        self.assertEqual(coterie.group(self.trace, RANKS, seconds=0, method="ce").rounds, 1)
        self.assertGreater(coterie.group(self.trace, RANKS, seconds=1, method="ce").rounds, 1)
        self.assertLess(time.monotonic() - began, 60)

    def test_predict(self):
        """Figures that need no tables, by NumPy; the rest are those of the command line."""
        learnt = self.trace.split(0.5, 2)
        g = coterie.group(self.trace, RANKS, iterations=2, sequences=learnt)
        tested = ~numpy.repeat(learnt, numpy.diff(self.trace.sequence_offsets))
        served = numpy.stack([g.expert_rank[l][self.trace.experts[l][tested]] for l in range(L)])
        on = (served[..., None] == numpy.arange(RANKS)).sum(2)
        for placement in (g, g.placement()):
            found = coterie.predict(self.trace, sequences=learnt, placement=placement, resamples=0, seed=2)
            self.assertEqual(list(found), ["global", "token-table", "device-sequence", "algorithm-2", "context-prefill", "context-decode"])
            for e in found.values():
                self.assertEqual((e.n_tokens, e.layer.shape[0]), (tested.sum(), L))
                self.assertAlmostEqual(e.figures["oracle_lar"], on.max(-1).sum() / on.sum())
                peaks = on.sum(1).max(-1) * RANKS / on.sum((1, 2))
                self.assertAlmostEqual(e.figures["expert_peak"], peaks.mean())
                self.assertAlmostEqual(e.layer[:, list(e.figures).index("expert_peak")].tolist(), peaks.tolist())
        # tokens of ids that were learnt go where the groups sent them
        known = numpy.isin(self.trace.token_ids[tested], g.token_ids)
        sent = numpy.stack([g.token_rank[l][numpy.searchsorted(g.token_ids, self.trace.token_ids[tested][known])] for l in range(L)])
        lar = (served[:, known] == sent[..., None]).mean()
        with_groups = coterie.predict(self.trace, sequences=learnt, placement=g, methods=["token-table"], resamples=50)
        self.assertEqual(list(with_groups), ["token-table"])
        e = with_groups["token-table"]
        self.assertAlmostEqual(e.figures["lar_known"], lar)
        self.assertTrue(e.low["lar"] <= e.figures["lar"] <= e.high["lar"])
        self.assertGreater(e.table_bytes, 0)
        to = self.path.with_name("p.json")
        g.placement().write(to)
        printed = command("predict", "--evaluate", self.path, "--placement", to, "--split", 0.5, "--seed", 2, "--resamples", 0)
        for row in printed:
            for name, value in found[row["method"]].figures.items():
                printed_as = row[name + "_test"]
                self.assertTrue(numpy.isnan(value) if printed_as is None else abs(printed_as - value) < 1e-8, (row["method"], name))

    def test_refusals(self):
        experts = self.trace.experts
        for words, error, call in (
            ("experts are 0 to 11", ValueError, lambda: coterie.Trace(experts, n_experts=11)),
            ("experts has shape", ValueError, lambda: coterie.Trace(experts[0], n_experts=E)),
            ("experts holds float64", TypeError, lambda: coterie.Trace(experts * 1.0, n_experts=E)),
            ("do not rise", ValueError, lambda: coterie.Trace(experts, n_experts=E, sequence_offsets=[0, 3])),
            ("layers do not ascend", ValueError, lambda: coterie.Trace(experts, n_experts=E, layers=[2, 1, 3])),
            ("token_ids", ValueError, lambda: coterie.Trace(experts, n_experts=E, token_ids=[1])),
            ("token_ids is -2", ValueError, lambda: coterie.Trace(experts, n_experts=E, token_ids=[-2] * experts.shape[1])),
            ("weights have shape", ValueError, lambda: coterie.Trace(experts, n_experts=E, weights=[1])),
            ("has a NUL in it", ValueError, lambda: coterie.Trace(experts, n_experts=E, model="a\0b")),
            ("nowhere", coterie.Error, lambda: coterie.read_trace("/nowhere.safetensors")),
            ("unknown format", ValueError, lambda: coterie.read_trace(self.path, format="nope")),
            ("ranks", ValueError, lambda: self.trace.lar(65)),
            ("13 ranks for 12 experts", ValueError, lambda: coterie.group(self.trace, 13, iterations=1)),
            ("nope", ValueError, lambda: coterie.group(self.trace, 2, iterations=1, method="nope")),
            ("a bool for each of 30", ValueError, lambda: coterie.group(self.trace, 2, sequences=[1] * 30)),
            ("on 3 nodes", ValueError, lambda: coterie.group(self.trace, 4, nodes=3)),
            ("has 4 ranks, expected 2", ValueError, lambda: coterie.group(self.trace, 2, topology=CLUSTER)),
            ("left to test", ValueError, lambda: coterie.predict(self.trace, 2)),
            ("methods has", ValueError, lambda: coterie.predict(self.trace, 2, sequences=self.trace.split(0.5), methods=["nope"])),
        ):
            with self.assertRaisesRegex(error, words):
                call()
        g = coterie.group(self.trace, 2, iterations=1)
        with self.assertRaisesRegex(ValueError, "the placement has 2 ranks, not 3"):
            coterie.predict(self.trace, 3, sequences=self.trace.split(0.5), placement=g)
        few = coterie.Trace(experts[:, :, :1] // 2, n_experts=6)
        with self.assertRaisesRegex(coterie.Error, "places 12 experts, the trace has 6"):
            coterie.predict(few, test=few, placement=g.placement())


if __name__ == "__main__":
    print("seed", SEED)
    unittest.main()
