"""The package coterie: its EPLB against the reference's maps, what it takes and returns, how it finds its library."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from skip import have, need

(numpy,) = need("numpy")
torch = have("torch")
SOURCE = pathlib.Path(os.environ["COT_SOURCE"])
GOLDEN = pathlib.Path(os.environ["COT_SHARED"]) / "golden" / "eplb" / "vectors.jsonl"
sys.path.insert(0, str(SOURCE / "python"))
import coterie  # noqa: E402
from coterie import eplb  # noqa: E402

EXAMPLE = [[90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27]]
MAP = [[5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1], [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1]]


def python(code, **environment):
    """Runs code in a fresh Python."""
    env = {k: v for k, v in os.environ.items() if k not in ("COTERIE_LIBRARY", "PYTHONPATH")}
    return subprocess.run([sys.executable, "-B", "-c", code], env={**env, **environment}, capture_output=True, text=True)


class Package(unittest.TestCase):
    def test_version(self):
        project = re.search(r"project\(coterie VERSION ([0-9.]+)", (SOURCE / "CMakeLists.txt").read_text())
        self.assertEqual(coterie.__version__, project[1])


class Eplb(unittest.TestCase):
    def check(self, maps, slots):
        """The three maps say the same."""
        p2l, l2p, count = maps
        for layer in range(p2l.shape[0]):
            for expert in range(count.shape[1]):
                where = [i for i in range(slots) if p2l[layer][i] == expert]
                mine = [int(i) for i in l2p[layer][expert]]
                self.assertEqual(sorted(mine[: len(where)]), where)
                self.assertEqual(mine[len(where) :], [-1] * (l2p.shape[2] - len(where)))
                self.assertEqual(int(count[layer][expert]), len(where))
        self.assertEqual(l2p.shape[2], int(count.max()))

    def test_golden(self):
        if not GOLDEN.exists():
            self.skipTest(f"SKIPPED: no '{GOLDEN}'")
        cases = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
        self.assertEqual(len(cases), 200)
        for case in cases:
            sizes = [case[k] for k in ("slots", "groups", "nodes", "gpus")]
            maps = eplb.rebalance_experts(numpy.array(case["load"]), *sizes)
            self.assertEqual(maps[0].tolist(), case["physical_to_logical"])
            self.assertEqual(maps[2].tolist(), case["replicas"])
            expected = numpy.array(case["logical_to_physical"])
            self.assertEqual(maps[1].shape, expected.shape)
            self.assertEqual(numpy.sort(maps[1]).tolist(), numpy.sort(expected).tolist())
            if torch:
                tensors = eplb.rebalance_experts(torch.tensor(case["load"]), *sizes)
                for tensor, array in zip(tensors, maps):
                    self.assertEqual((tensor.dtype, tensor.device.type), (torch.int64, "cpu"))
                    self.assertTrue(numpy.array_equal(tensor.numpy(), array))

    def test_numpy(self):
        for dtype in (int, "int32", "float32", "float64"):
            maps = eplb.rebalance_experts(numpy.array(EXAMPLE, dtype), 16, 4, 2, 8)
            self.assertEqual(maps[0].tolist(), MAP)
            for array in maps:
                self.assertIsInstance(array, numpy.ndarray)
                self.assertEqual(array.dtype, numpy.int64)
            self.check(maps, 16)
        strided = numpy.array(EXAMPLE, "float64").repeat(2, axis=1)[:, ::2]
        self.assertEqual(eplb.rebalance_experts(strided, 16, 4, 2, 8)[0].tolist(), MAP)
        self.assertEqual(eplb.rebalance_experts(EXAMPLE, num_replicas=16, num_groups=4, num_nodes=2, num_gpus=8)[0].tolist(), MAP)

    def test_torch(self):
        if not torch:
            self.skipTest("SKIPPED: no torch")
        for dtype in (torch.int64, torch.int32, torch.float32, torch.float64, torch.bfloat16):
            weight = torch.tensor(EXAMPLE, dtype=dtype)
            maps = eplb.rebalance_experts(weight, 16, 4, 2, 8)
            self.assertEqual(maps[0].tolist(), MAP)
            for tensor in maps:
                self.assertIsInstance(tensor, torch.Tensor)
                self.assertEqual(tensor.dtype, torch.int64)
                self.assertEqual(tensor.device.type, "cpu")
            self.check(maps, 16)
        view = torch.tensor(EXAMPLE, dtype=torch.float32, requires_grad=True).t().contiguous().t()
        self.assertEqual(eplb.rebalance_experts(view, 16, 4, 2, 8)[0].tolist(), MAP)

    def test_refusals(self):
        load = numpy.ones((2, 4))
        for sizes, words in (((3, 1, 1, 1), "3 slots are too few"), ((6, 1, 1, 4), "4 GPUs do not divide 6 slots"),
                             ((8, 3, 1, 4), "3 groups do not divide"), ((-1, 1, 1, 1), "num_replicas is -1, expected 0"),
                             ((2**40, 1, 1, 1), "num_replicas is 1099511627776"), ((4, 0, 1, 1), ""), ((4, 1, 0, 1), ""), ((4, 1, 1, 0), "")):  # fmt: skip
            with self.assertRaisesRegex(ValueError, words):
                eplb.rebalance_experts(load, *sizes)
        for bad in (-1, numpy.nan, numpy.inf):
            load[1, 2] = bad
            with self.assertRaisesRegex(ValueError, "layer 1, expert 2 has a load of"):
                eplb.rebalance_experts(load, 4, 1, 1, 1)
        with self.assertRaisesRegex(ValueError, "1 dimensions"):
            eplb.rebalance_experts(numpy.ones(4), 4, 1, 1, 1)
        for bad in ([["1", "x"]], [[1j, 2]], [[1, 2], [3]], [[None, 1]]):
            with self.assertRaises(ValueError):
                eplb.rebalance_experts(bad, 2, 1, 1, 1)
        for sizes in ((4.5, 1, 1, 1), (4, "1", 1, 1), (4, 1, None, 1)):
            with self.assertRaisesRegex(TypeError, "expected a whole number"):
                eplb.rebalance_experts(numpy.ones((1, 4)), *sizes)
        self.assertTrue(issubclass(coterie.Error, RuntimeError))


class Library(unittest.TestCase):
    def test_named(self):
        code = f"import sys; sys.path.insert(0, {str(SOURCE / 'python')!r}); from coterie import eplb; print(eplb.__name__)"
        run = python(code, COTERIE_LIBRARY=os.environ["COTERIE_LIBRARY"])
        self.assertEqual((run.returncode, run.stdout), (0, "coterie.eplb\n"), run.stderr)
        run = python(code, COTERIE_LIBRARY="/nowhere/libcoterie.so")
        self.assertEqual(run.returncode, 1)
        self.assertIn("ImportError: cannot load libcoterie.so", run.stderr)
        self.assertIn("/nowhere/libcoterie.so", run.stderr)

    def test_beside(self):
        """With the library beside the package, as a wheel has it; torch is not asked for."""
        with tempfile.TemporaryDirectory() as folder:
            package = pathlib.Path(folder) / "coterie"
            shutil.copytree(SOURCE / "python" / "coterie", package)
            shutil.copy(os.environ["COTERIE_LIBRARY"], package / "libcoterie.so")
            code = f"import sys; sys.path.insert(0, {folder!r}); from coterie import eplb; "
            run = python(code + "print(eplb.rebalance_experts([[3, 1]], 4, 1, 1, 2)[2].tolist(), 'torch' in sys.modules)")
            self.assertEqual((run.returncode, run.stdout), (0, "[[3, 1]] False\n"), run.stderr)


if __name__ == "__main__":
    unittest.main()
