"""The formats of engines, checked by the libraries that the engines use: random recordings that torch.save and safetensors
write become placements' loads, and maps that the program writes are what json, yaml and numpy read."""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import unittest

from skip import have, need

(numpy,) = need("numpy")
torch, yaml = have("torch"), have("yaml")
PROGRAM = os.environ["COT_PROGRAM"]
SOURCE = pathlib.Path(os.environ["COT_SOURCE"])
SEED = time.time_ns()
rnd = random.Random(SEED)


def convert(source, to, *options):
    """The converted file's path and what was said."""
    target = source.with_name("out")
    command = [PROGRAM, "place", "convert", str(source), "--to", to, "-o", str(target), *options]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise AssertionError(f"{command}: {run.stderr}")
    return target, run.stderr


class Maps(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name) / "map.json"
        self.ranks, self.first = rnd.randint(1, 5), rnd.randint(0, 4)
        per_rank, layers = rnd.randint(1, 6), rnd.randint(1, 6)
        self.slots = self.ranks * per_rank
        self.experts = rnd.randint(per_rank, self.slots)
        self.rows = []
        for _ in range(layers):
            shift = rnd.randrange(self.experts)
            self.rows.append([(i + shift) % self.experts for i in range(self.slots)])
        own = {"format": "coterie.placement", "version": 1, "experts": self.experts, "ranks": self.ranks,
               "slots_per_rank": per_rank, "layers": [self.first + i for i in range(layers)],
               "physical_to_logical_map": self.rows}  # fmt: skip
        self.path.write_text(json.dumps(own))

    def tearDown(self):
        self.folder.cleanup()

    def per_rank(self, row):
        n = self.slots // self.ranks
        return [row[r * n : (r + 1) * n] for r in range(self.ranks)]

    def test_sglang(self):
        total = self.first + len(self.rows) + 2
        out, said = convert(self.path, "sglang", "--layers", str(total))
        data = json.loads(out.read_text())
        self.assertEqual(list(data), ["physical_to_logical_map"])  # passed on as keyword arguments
        plain = [i % self.experts for i in range(self.slots)]
        self.assertEqual(data["physical_to_logical_map"], [plain] * self.first + self.rows + [plain] * 2)
        self.assertIn(f"{self.first + 2} of {total} rows", said)
        if torch:
            self.assertEqual(tuple(torch.tensor(data["physical_to_logical_map"]).shape), (total, self.slots))

    def test_vllm(self):
        lines = convert(self.path, "vllm")[0].read_text().splitlines()
        self.assertEqual(len(lines), 1)
        record = json.loads(lines[0])
        self.assertEqual(record["record_type"], "eplb_initial_mapping")
        self.assertEqual((record["version"], record["num_slots"]), (1, self.slots))
        self.assertEqual(record["num_redundant_experts"], self.slots - self.experts)
        self.assertEqual(record["initial_global_assignments"], {str(i): row for i, row in enumerate(self.rows)})

    def test_tensorrt(self):
        if not yaml:
            self.skipTest("SKIPPED: no yaml")
        data = yaml.safe_load(convert(self.path, "tensorrt-llm")[0].read_text())
        assignments = {self.first + i: row for i, row in enumerate(self.rows)}
        self.assertEqual(data, {"num_slots": self.slots, "layer_updates_per_iter": 0, "initial_global_assignments": assignments})
        # and back, from every style that the library writes
        for flow in (True, False, None):
            source = self.path.with_name("styled.yaml")
            source.write_text(yaml.safe_dump({**data, "more": {"a": [1, {"b": None}]}}, default_flow_style=flow))
            own = json.loads(convert(source, "coterie", "--ranks", str(self.ranks))[0].read_text())
            self.assertEqual(own, json.loads(self.path.read_text()))

    def test_ascend(self):
        data = json.loads(convert(self.path, "vllm-ascend")[0].read_text())
        self.assertEqual(data["moe_layer_count"], len(self.rows))
        for i, (layer, row) in enumerate(zip(data["layer_list"], self.rows, strict=True)):
            self.assertEqual((layer["layer_id"], layer["device_count"]), (i, self.ranks))
            self.assertEqual([d["device_id"] for d in layer["device_list"]], list(range(self.ranks)))
            self.assertEqual([d["device_expert"] for d in layer["device_list"]], self.per_rank(row))

    def test_omni(self):
        out, _ = convert(self.path, "omni-infer")
        array = numpy.load(out, allow_pickle=False)
        self.assertEqual((array.dtype, array.shape), (numpy.int32, (self.ranks, len(self.rows), self.experts)))
        for layer, row in enumerate(self.rows):
            for rank, experts in enumerate(self.per_rank(row)):
                self.assertEqual(numpy.flatnonzero(array[rank, layer]).tolist(), sorted(experts))
        for other in (array.astype(bool), array.astype(numpy.float64), numpy.asfortranarray(array.astype(numpy.int8))):
            source = self.path.with_name("other.npy")
            numpy.save(source, other)
            options = ("--first-layer", str(self.first))
            self.assertEqual(convert(source, "omni-infer", *options)[0].read_bytes(), convert(out, "omni-infer")[0].read_bytes())


class Recordings(unittest.TestCase):
    """Files that this machine's torch writes, through the map that they hold: dtypes, shapes, sizes."""

    def test_saved_maps(self):
        if not torch:
            self.skipTest("SKIPPED: no torch")
        with tempfile.TemporaryDirectory() as folder:
            for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8):
                layers, experts = rnd.randint(1, 5), rnd.randint(1, 100)
                rows = torch.stack([torch.randperm(experts) for _ in range(layers)]).to(dtype)
                wide = torch.zeros(layers, 2 * experts, dtype=dtype)
                wide[:, ::2] = rows
                for saved in (rows, wide[:, ::2], rows.t().contiguous().t()):
                    path = pathlib.Path(folder) / "saved.pt"
                    noise = {"text": "x" * rnd.randint(0, 300), "numbers": list(range(rnd.randint(0, 70000)))}
                    torch.save({**noise, "last_physical_to_logical_map": saved, "nested": [noise, (1, 2.5, None)]}, path)
                    own = json.loads(convert(path, "coterie")[0].read_text())
                    self.assertEqual(own["physical_to_logical_map"], rows.tolist())

    def test_samples(self):
        """The committed samples are what make_samples.py writes today, up to what torch.save makes anew each time."""
        if not (torch and yaml and have("safetensors")):
            self.skipTest("SKIPPED: no torch, yaml or safetensors")
        samples = SOURCE / "tests" / "placement" / "samples"
        with tempfile.TemporaryDirectory() as folder:
            script = SOURCE / "tests" / "placement" / "make_samples.py"
            subprocess.run([sys.executable, "-B", str(script), folder], check=True)
            made = {p.relative_to(folder) for p in pathlib.Path(folder).rglob("*") if p.is_file()}
            self.assertEqual(made, {p.relative_to(samples) for p in samples.rglob("*") if p.is_file()})
            for name in made:
                if name.suffix != ".pt":
                    self.assertEqual((samples / name).read_bytes(), (pathlib.Path(folder) / name).read_bytes(), name)
                else:
                    old, new = (torch.load(p / name, weights_only=True) for p in (samples, pathlib.Path(folder)))
                    self.assertEqual(repr(old), repr(new), name)


if __name__ == "__main__":
    print("seed", SEED)
    unittest.main()
