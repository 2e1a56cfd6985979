"""The pages of `coterie place --report` and `coterie predict --plot`: what they say, and that they can be read.

A page is split into its figures, which are XML, and its tables; loads and fabrics are drawn here, and what the page must
say of them is counted here, too.
"""

import csv
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as xml

PROGRAM = pathlib.Path(os.environ["COT_PROGRAM"])
SOURCE = pathlib.Path(os.environ["COT_SOURCE"])
SVG = "{http://www.w3.org/2000/svg}"
LAYERS = (3, 7, 60)
# Two leaves, two hosts of a rank each, and three parallel cables between the leaves.
FABRIC = """\
vendid=0x2c9
switchguid=0x1(1)
Switch\t8 "S-0001"\t# "leaf-a" enhanced port 0 lid 1
[1]\t"H-000a"[1](a) \t# "dgx-01 mlx5_0" lid 5 4xNDR
[2]\t"S-0002"[2]\t# "leaf-b" lid 2 4xNDR
[3]\t"S-0002"[3]\t# "leaf-b" lid 2 4xNDR
[4]\t"S-0002"[4]\t# "leaf-b" lid 2 4xNDR

switchguid=0x2(2)
Switch\t8 "S-0002"\t# "leaf-b" enhanced port 0 lid 2
[1]\t"H-000b"[1](b) \t# "<dgx&02> mlx5_0" lid 6 4xNDR
[2]\t"S-0001"[2]\t# "leaf-a" lid 1 4xNDR
[3]\t"S-0001"[3]\t# "leaf-a" lid 1 4xNDR
[4]\t"S-0001"[4]\t# "leaf-a" lid 1 4xNDR

caguid=0xa
Ca\t1 "H-000a"\t# "dgx-01 mlx5_0"
[1](a) \t"S-0001"[1]\t# lid 5 4xNDR
caguid=0xb
Ca\t1 "H-000b"\t# "<dgx&02> mlx5_0"
[1](b) \t"S-0002"[1]\t# lid 6 4xNDR
"""


class Page:
    def __init__(self, text):
        self.text = text
        self.figures = [xml.fromstring(f) for f in re.findall(r"<svg.*?</svg>", text, re.S)]
        self.rows = [[re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[dh]>(.*?)</t[dh]>", row)]
                     for row in re.findall(r"<tr[^>]*>(.*?)</tr>", text)]
        body = re.sub(r"<style>.*?</style>", "", text, flags=re.S)
        self.words = " ".join(re.sub("<[^>]*>", " ", re.sub(r"<svg.*?</svg>", "", body, flags=re.S)).split())

    def labels(self, figure):
        return [t.text for t in self.figures[figure].iter(SVG + "text")]

    def ticks(self, figure):
        """Numbers of a map's scale, behind its unit."""
        texts = self.labels(figure)
        return texts[texts.index("activations") + 1 :]

    def row(self, begin):
        return next(row for row in self.rows if row and row[0].startswith(begin))


class Pages(unittest.TestCase):
    def setUp(self):
        self.holder = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.holder.name)

    def tearDown(self):
        self.holder.cleanup()

    def coterie(self, *args):
        run = subprocess.run([PROGRAM, *args], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    def write_load(self, scale):
        with open(self.folder / "load.csv", "w", newline="") as f:
            out = csv.writer(f)
            out.writerow(["layer", "expert", "tokens"])
            for l in LAYERS:
                out.writerows([l, e, scale * (1 + (5 * e + l) % 7)] for e in range(16))

    def page(self, name):
        page = Page((self.folder / name).read_text())
        shown = page.words + " ".join(t or "" for i in range(len(page.figures)) for t in page.labels(i))
        self.assertNotRegex(shown, r"\d[eE][+-]?\d|\bnan\b|\binf\b")
        for figure in page.figures:  # nothing is drawn beside the paper
            wide, high = (float(x) for x in figure.attrib["viewBox"].split()[2:])
            for rect in figure.iter(SVG + "rect"):
                if "x" in rect.attrib:
                    x, y, w, h = (float(rect.attrib[k]) for k in ("x", "y", "width", "height"))
                    self.assertTrue(x >= 0 and y >= 0 and x + w <= wide and y + h <= high, rect.attrib)
            for text in figure.iter(SVG + "text"):
                if text.attrib["text-anchor"] == "start":  # letters of 13 pixels are 7 wide, more or less
                    self.assertLessEqual(float(text.attrib["x"]) + 7 * len(text.text), wide, text.text)
                if text.attrib["text-anchor"] == "end" and "x" in text.attrib:  # nor upon the title of the left side
                    self.assertGreaterEqual(float(text.attrib["x"]) - 8 * len(text.text), 20, text.text)
        return page

    def test_placements(self):
        self.write_load(1000)
        (self.folder / "fabric.txt").write_text(FABRIC)
        (self.folder / "hosts.csv").write_text("host,gpu,adapter\ndgx-01,0,mlx5_0\ndgx-01,1,mlx5_0\n"
                                               "<dgx&02>,0,mlx5_0\n<dgx&02>,1,mlx5_0\n")
        cluster = ["--topology", "fabric.txt", "--hosts", "hosts.csv", "--load", "load.csv"]
        self.coterie("place", *cluster, "--method", "eplb", "--slots", "20", "-o", "now.json")
        said = self.coterie("place", *cluster, "--slots", "20", "--method", "replicate", "--attention", "paper", "--current", "now.json",
                            "--report", "page.html")
        page = self.page("page.html")
        # What runs, and what was chosen, with the figures of the terminal.
        peaks = re.search(r"worst layer +([\d.]+) +([\d.]+)", said)
        for row, peak in ((page.row("in use: now.json"), peaks[1]), (page.row("replicate"), peaks[2])):
            self.assertAlmostEqual(float(row[5]), float(peak), delta=6e-4)
        chosen = re.findall(r'<tr class="chosen">.*?</tr>', page.text)
        self.assertEqual(len(chosen), 1)
        self.assertIn("replicate", chosen[0])
        self.assertTrue(page.row("balance") and page.row("eplb"))
        # Layers by the model's numbers; hosts by their names.
        self.assertTrue({"3", "7", "60"} <= set(page.labels(1)))
        for figure in (0, 2, 3, 4):
            self.assertTrue({"dgx-01", "<dgx&02>"} <= set(page.labels(figure)), page.labels(figure))
        # One scale for both maps, from 0.
        self.assertEqual(page.ticks(3), page.ticks(4))
        ticks = [float(tick.replace(",", "")) for tick in page.ticks(3)]
        self.assertRegex(page.ticks(3)[1], "^[125][0,]*$")  # round steps
        self.assertEqual(ticks, [i * ticks[1] for i in range(len(ticks))])
        self.assertTrue(3 <= len(ticks) <= 6, ticks)
        # Of bars, too, and the tallest of them is less than a step below the last.
        ticks = [label for label in page.labels(0) if re.fullmatch("[0-9,]+", label)]
        step = int(ticks[1].replace(",", ""))
        self.assertEqual([int(tick.replace(",", "")) for tick in ticks], [i * step for i in range(len(ticks))])
        self.assertRegex(ticks[1], "^[125][0,]*$")
        heights = [float(rect.attrib["height"]) for rect in page.figures[0].iter(SVG + "rect") if rect.attrib.get("class") in ("front", "pale")]
        self.assertTrue(200 * (1 - 1 / (len(ticks) - 1)) < max(heights) <= 200, heights)
        # Three cables are one link; in each direction one of an adapter each, and one between leaves.
        self.assertIn("leaf-a to leaf-b (3 links)", [row[0] for row in page.rows if row])
        self.assertIn("activations on each of 6 links, the fullest first", page.labels(5))

    def test_numbers_for_people(self):
        """Loads of billions, and a fabric of more links than there are bars."""
        self.write_load(10**8)
        self.coterie("place", "--load", "load.csv", "--topology", "fattree:ranks=1024", "--slots", "1024", "--method",
                     "eplb", "--report", "page.html")
        page = self.page("page.html")
        self.assertRegex(page.words, r"In all, [\d.]+ (billion|trillion) hops without")
        self.assertTrue([label for label in page.labels(0) if re.fullmatch("[125]0* million", label)], page.labels(0))
        self.assertLess(len(page.text), 8e6)
        links = next(i for i in range(len(page.figures)) if any("links, the fullest" in t for t in page.labels(i)))
        self.assertLess(len(list(page.figures[links].iter(SVG + "rect"))), 600)
        self.assertTrue(page.row("links that carry nothing"))

    def test_ticks_of_small_numbers(self):
        (self.folder / "matrix.json").write_text("[[0, 2.4e-10], [2.4e-10, 0]]")
        self.coterie("topology", "distances", "matrix.json", "--plot", "figure.svg")
        texts = [t.text for t in xml.parse(self.folder / "figure.svg").getroot().iter(SVG + "text")]
        self.assertEqual(texts[-6:], ["0", "5e-11", "1e-10", "1.5e-10", "2e-10", "2.5e-10"])

    def test_long_names_of_hosts(self):
        """The end of a long name is shown, as many letters as there is room for, and no part of one."""
        for letter in "zéж日😀":
            name = 36 * letter + "7"
            (self.folder / "fabric.txt").write_text(FABRIC.replace("dgx-01", name))
            (self.folder / "hosts.csv").write_text(f"host,gpu,adapter\n{name},0,mlx5_0\n<dgx&02>,0,mlx5_0\n")
            self.coterie("topology", "distances", "fabric.txt", "--hosts", "hosts.csv", "--plot", "figure.svg")
            texts = [t.text for t in xml.parse(self.folder / "figure.svg").getroot().iter(SVG + "text")]
            for most in (16, 32):  # below, and at the side
                end = name[-most:]
                while len(end.encode()) > 60:
                    end = end[1:]
                self.assertIn("…" + end, texts)

    def test_without_cluster(self):
        self.write_load(1)
        self.coterie("place", "--load", "load.csv", "--ranks", "4", "--report", "page.html")
        page = self.page("page.html")
        self.assertTrue(page.row("without a map: contiguous"))
        self.assertEqual(len(page.figures), 2)

    def test_affinity(self):
        model = SOURCE / "models" / "tiny"
        text = self.folder / "text"
        text.write_text((SOURCE / "docs" / "RATIONALE.md").read_text()[:6000])
        for name in ("a", "b", "c"):
            (self.folder / name).write_text(text.read_text()[ord(name) - 97 :: 3])
        self.coterie("profile", model, "--text", "text", "--text", "a", "--text", "b", "--text", "c", "-o",
                     "trace.safetensors")
        said = json.loads(self.coterie("predict", "trace.safetensors", "--ranks", "2,4", "--plot", "page.html", "--json"))
        page = self.page("page.html")
        self.assertEqual(len(page.figures), 6)
        methods = [f"{row['method']} on {row['ranks']}" for row in said]
        self.assertGreater(max(map(len, methods)), 18)  # none of them is cut
        self.assertGreater(len(methods), 3)
        for figure in (0, 1):  # every method has a row, in the order of the table
            self.assertEqual([label for label in page.labels(figure) if label in methods], methods)
            self.assertTrue({"local activation rate (LAR)" if figure == 0 else "recall of the top k", "layer", "method"}
                            <= set(page.labels(figure)))
        for figure, titles in enumerate((("kurtosis, from", "pairs"), ("expert, by group", "token id, by group", "share of calls", "group 3"),
                                         ("expert of the next layer", "expert", "share of tokens"), ("layers looked back at", "recall", "5"))):
            self.assertTrue(set(titles) <= set(page.labels(2 + figure)), page.labels(2 + figure))


if __name__ == "__main__":
    unittest.main()
