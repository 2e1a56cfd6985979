"""Every format as its engine reads it: maps that the program writes go through what the engine does with them (written anew
from the sources that docs/PLACEMENT_FORMATS.md names), and each expert must be found, and loaded, where the map has it."""

import json
import os
import pathlib
import random
import subprocess
import tempfile
import time
import unittest

from skip import have, need

(numpy,) = need("numpy")
yaml = have("yaml")
PROGRAM = os.environ["COT_PROGRAM"]
SEED = time.time_ns()
rnd = random.Random(SEED)
ROUNDS = 40


def read_sglang(path, made):
    """ExpertLocationMetadata.init_by_mapping: a row for every layer of the model, a rank has an equal part of a row."""
    (rows,) = json.loads(path.read_text()).values()
    assert len(rows) == made.depth
    return [by_expert(rows[layer], made) for layer in made.layers]


def read_vllm(path, made):
    """EplbState._load_initial_mapping: the first record of the type, layers by their place among the MoE layers."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    record = next(r for r in records if r.get("record_type") == "eplb_initial_mapping")
    slots, redundant = record["num_slots"], record["num_redundant_experts"]
    assert slots == made.ranks * made.slots and redundant == slots - made.experts
    rows = record["initial_global_assignments"]
    assert len(rows) == len(made.layers)
    return [by_expert(rows[str(i)], made) for i in range(len(rows))]


def read_tensorrt(path, made):
    """MoeLoadBalancerConfig.get_layer_initial_global_assignments, asked for every MoE layer by the model's number."""
    config = yaml.safe_load(path.read_text())
    rows = [config["initial_global_assignments"][layer] for layer in made.layers]
    assert all(len(row) == config["num_slots"] and set(row) == set(range(made.experts)) for row in rows)
    return [by_expert(row, made) for row in rows]


def by_expert(row, made):
    """The seats (rank, slot) of each expert of a row in which all slots count."""
    seats = [set() for _ in range(made.experts)]
    for physical, expert in enumerate(row):
        seats[expert].add(divmod(physical, len(row) // made.ranks))
    return seats


def read_ascend(path, made):
    """VllmEplbAdaptor.local2global, in which of an expert's slots on a rank the last one counts, and generate_log2phy_map,
    which numbers slots by the highest that counts."""
    data = json.loads(path.read_text())
    assert data["moe_layer_count"] == len(data["layer_list"]) == len(made.layers)
    layers = []
    for layer in data["layer_list"]:
        local = [{expert: slot for slot, expert in enumerate(d["device_expert"])} for d in layer["device_list"]]
        width = max(slot for rank in local for slot in rank.values()) + 1
        numbers = [(expert, r * width + slot) for r, rank in enumerate(local) for expert, slot in rank.items()]
        seats = [set() for _ in range(made.experts)]
        for expert, number in numbers:
            seats[expert].add(divmod(number, len(layer["device_list"][0]["device_expert"])))
        layers.append(seats)
    return layers


def read_omni(path, made):
    """ExpertMapping.is_expert_on_current_rank: an expert's place is how many of the rank's come before it."""
    pattern = numpy.load(path).astype(numpy.int32)
    assert pattern.shape == (made.ranks, len(made.layers), made.experts)
    here = [[[r for r in range(made.ranks) if pattern[r, i, e] > 0.5] for e in range(made.experts)] for i in range(len(made.layers))]
    return [[{(r, int(pattern[r, i, :e].sum())) for r in ranks} for e, ranks in enumerate(row)] for i, row in enumerate(here)]


class Drawn:
    """A map for a model of `depth` layers, of which `layers` are MoE layers; every slot is full."""

    def __init__(self, doubles):
        self.ranks, self.slots, self.depth = rnd.randint(1, 4), rnd.randint(1, 5), rnd.randint(1, 9)
        self.experts = rnd.randint(self.slots, self.ranks * self.slots)
        self.layers = sorted(rnd.sample(range(self.depth), rnd.randint(1, self.depth)))
        self.rows = [self.row(doubles) for _ in self.layers]

    def row(self, doubles):
        shift, all_slots = rnd.randrange(self.experts), self.ranks * self.slots
        row = [(i + shift) % self.experts for i in range(all_slots)]  # runs of slots <= experts: distinct on a rank
        if doubles:
            row[self.experts :] = rnd.choices(range(self.experts), k=all_slots - self.experts)
            rnd.shuffle(row)
        return row

    def of_rank(self, row, r):
        return row[r * self.slots : (r + 1) * self.slots]

    def doubled(self):
        return any(len(set(self.of_rank(row, r))) < self.slots for row in self.rows for r in range(self.ranks))

    def seats(self, ascending):
        layers = []
        for row in self.rows:
            seats = [set() for _ in range(self.experts)]
            for r in range(self.ranks):
                held = self.of_rank(row, r)
                for slot, expert in enumerate(sorted(held) if ascending else held):
                    seats[expert].add((r, slot))
            layers.append(seats)
        return layers

    def write(self, path):
        own = {"format": "coterie.placement", "version": 1, "experts": self.experts, "ranks": self.ranks,
               "slots_per_rank": self.slots, "layers": self.layers, "physical_to_logical_map": self.rows}  # fmt: skip
        path.write_text(json.dumps(own))


class Readings(unittest.TestCase):
    def check(self, name, read, doubles=True):
        """doubles: whether the format can say that a rank has an expert twice; else such maps must be refused."""
        with tempfile.TemporaryDirectory() as folder:
            source, target = pathlib.Path(folder, "map.json"), pathlib.Path(folder, "out")
            for i in range(ROUNDS):
                made = Drawn(doubles or i % 2 == 0)
                made.write(source)
                target.unlink(missing_ok=True)
                command = [PROGRAM, "place", "convert", str(source), "--to", name, "--layers", str(made.depth), "-o", str(target)]
                run = subprocess.run(command, capture_output=True, text=True)
                if not doubles and made.doubled():
                    self.assertEqual(run.returncode, 1)
                    self.assertIn("which the format cannot say", run.stderr)
                    self.assertFalse(target.exists())
                else:
                    self.assertEqual(run.returncode, 0, run.stderr)
                    self.assertEqual(read(target, made), made.seats(ascending=name == "omni-infer"))

    def test_sglang(self):
        self.check("sglang", read_sglang)

    def test_vllm(self):
        self.check("vllm", read_vllm)

    def test_tensorrt(self):
        if not yaml:
            self.skipTest("SKIPPED: no yaml")
        self.check("tensorrt-llm", read_tensorrt)

    def test_ascend(self):
        self.check("vllm-ascend", read_ascend, doubles=False)

    def test_omni(self):
        self.check("omni-infer", read_omni, doubles=False)


if __name__ == "__main__":
    print("seed", SEED)
    unittest.main()
