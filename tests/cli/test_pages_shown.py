"""A report in a headless Chromium: on a phone, where tables and figures scroll, and in the dark. Pictures lie in report-*.png of the
build folder, for people to look at.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "server"))
import browser  # noqa: E402

PROGRAM = pathlib.Path(os.environ["COT_PROGRAM"])
PICTURES = pathlib.Path(os.environ["COT_BUILD"])


def luminance(colour):
    parts = [int(part) / 255 for part in re.findall("[0-9]+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


class Shown(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.window = cls.enterClassContext(browser.Browser())
        rows = [f"{l},{e},{1000 * (1 + (5 * e + l) % 7)}" for l in range(3) for e in range(16)]
        (cls.folder / "load.csv").write_text("\n".join(["layer,expert,tokens", *rows]) + "\n")
        for args in (("place", "--load", "load.csv", "--topology", "fattree:ranks=8", "-o", "map.json", "--report", "page.html"),
                     ("topology", "distances", "fattree:ranks=8", "--plot", "figure.svg")):
            run = subprocess.run([PROGRAM, *args], cwd=cls.folder, capture_output=True, text=True)
            assert run.returncode == 0, run.stderr

    def show(self, name, width, colours):
        self.window.command("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500)
        self.window.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])
        self.window.open((self.folder / name).as_uri())

    def test_a_phone(self):
        self.show("page.html", 390, "light")
        self.assertLessEqual(self.window.run("return document.documentElement.scrollWidth - innerWidth"), 0)
        self.window.picture(PICTURES / "report-phone.png")
        placements = self.window.run("const t = document.querySelector('table'), cells = [...t.querySelectorAll('tr:nth-child(2) td')], edge = () => t.getBoundingClientRect();"
                                     "const seen = () => cells.filter(c => c.getBoundingClientRect().right <= edge().right).length, before = seen();"
                                     "t.scrollLeft = 1e4; return [cells.length, before, t.scrollLeft, cells[0].getBoundingClientRect().left - edge().left,"
                                     " cells.at(-1).getBoundingClientRect().right - edge().right, cells[0].offsetWidth / t.clientWidth]")
        columns, before, scrolled, stays, last, share = placements
        self.assertEqual(columns, 8)
        self.assertGreaterEqual(before, 2)  # a figure beside the name before anybody scrolls
        self.assertGreater(scrolled, 50)
        self.assertAlmostEqual(stays, 0, delta=1)  # the name stays beside the last column
        self.assertLess(abs(last), 2)
        self.assertLess(share, 0.5)
        for kind in ("table", ".figure"):  # what is wider than its frame can be scrolled, and has a shadow that says so
            frames = self.window.run("return [...document.querySelectorAll(arguments[0])].map(e => [getComputedStyle(e).overflowX,"
                                     " getComputedStyle(e).backgroundAttachment, e.getBoundingClientRect().right - innerWidth])", kind)
            self.assertGreater(len(frames), 1)
            for overflow, attachment, over in frames:
                self.assertEqual((overflow, attachment), ("auto", "local, local, scroll, scroll"))
                self.assertLessEqual(over, 0)

    def test_light_and_dark(self):
        colours = ("const of = (e, what) => getComputedStyle(e)[what];"
                   "return [...document.querySelectorAll('svg')].map(s => [of(s.querySelector('text'), 'fill'), of(s.querySelector('.back'), 'fill'),"
                   " of(document.body ?? s, 'backgroundColor'), s.querySelector('.shades') ? of(s.querySelector('.shades'), 'filter') : ''])")
        for scheme in ("light", "dark"):
            for name in ("page.html", "figure.svg"):
                self.show(name, 1200, scheme)
                figures = self.window.run(colours)
                self.assertEqual(len(figures), 1 if name == "figure.svg" else len(re.findall("<svg", (self.folder / name).read_text())))
                for text, back, page, turned in figures:
                    ground = page if back == "none" else back
                    self.assertEqual(back == "none", name == "page.html")  # no card of its own within a page
                    self.assertGreaterEqual(contrast(text, ground), 4.5)
                    self.assertEqual(luminance(ground) < 0.05, scheme == "dark", ground)
                    self.assertIn(turned, ("", "none") if scheme == "light" else ("", "invert(0.9) hue-rotate(180deg)"))
                self.window.picture(PICTURES / f"report-{scheme}{'-figure' if name == 'figure.svg' else ''}.png")


if __name__ == "__main__":
    if why := browser.absent():
        print(f"SKIPPED: {why}", file=sys.stderr)
        sys.exit(77)
    unittest.main()
