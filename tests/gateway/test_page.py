"""The router's page and its last decisions, the page in a headless Chromium. Its pictures lie in router-*.png of the build folder, for
people to look at."""

import json
import os
import pathlib
import re
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "server"))
import browser  # noqa: E402
from routing import QUICK, Router, engine, kill, mocks, serves, stream, url  # noqa: E402
import serving  # noqa: E402

PICTURES = pathlib.Path(os.environ["COT_BUILD"])
PAGE = serving.SOURCE / "src" / "gateway" / "page" / "index.html"
SLOW = {"ttft_ms": 5, "ttft_ms_per_token": 0.1, "tpot_ms": 5, "cached_blocks": 512}
ROWS = "return [...document.querySelectorAll('#workers tr')].map(r => [...r.children].map(c => c.textContent.trim()))"
DECISIONS = "return [...document.querySelectorAll('#decisions summary')].map(e => e.textContent)"


def decisions(router):
    return json.loads(router.send("GET", "/decisions")[2])["decisions"]


def ask(router, prompt, tokens=4):
    return stream(router, "/v1/completions", {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True})


class Decisions(unittest.TestCase):
    def test_each_tells_its_terms(self):
        """The worker that answered stands first, with what it was expected to hold; others cost no less."""
        with mocks(3, SLOW) as servers, Router(servers) as router:
            self.assertEqual(decisions(router), [])
            first = [i % 200 for i in range(320)]
            before = time.time()
            headers, _ = ask(router, first)
            between = time.time()
            router.wait(lambda _: router.figure("coterie:router_index_blocks") >= 20)
            again, _ = ask(router, first + [7] * 8)
            self.assertEqual(again["X-Worker"], headers["X-Worker"])
            last, one = decisions(router)
            times = [before, one["time"], between, last["time"], time.time()]  # to the millisecond
            self.assertTrue(all(a < b + 0.002 for a, b in zip(times, times[1:])), times)
            self.assertEqual([d["number"] for d in (last, one)], [2, 1])
            self.assertEqual((one["prompt_tokens"], last["prompt_tokens"], last["reason"], last["delivered_tokens"]), (320, 328, "first", 0))
            for d in (last, one):
                self.assertEqual(d["targets"][0]["worker"], headers["X-Worker"])
                self.assertEqual({t["worker"] for t in d["targets"]}, {f"127.0.0.1:{s.port}" for s in servers})
                self.assertEqual(d["targets_usable"], 3)
                costs = [sum(t[f"{term}_ns"] for term in ("queue", "prefill", "decode", "pages", "experts")) for t in d["targets"]]
                self.assertEqual(costs, sorted(costs))
            self.assertEqual(last["targets"][0]["cached_tokens"], 320)
            self.assertTrue(all(t["cached_tokens"] == 0 for t in last["targets"][1:]))
            # one is drained: nobody weighs it
            router.post(f"/workers/127.0.0.1:{servers[0].port}/drain", {})
            ask(router, [9] * 64)
            self.assertEqual(decisions(router)[0]["targets_usable"], 2)
            self.assertNotIn(f"127.0.0.1:{servers[0].port}", {t["worker"] for t in decisions(router)[0]["targets"]})

    def test_last_ones_are_kept(self):
        with mocks(10) as servers, Router(servers, "--policy", "round-robin") as router:
            for i in range(40):
                ask(router, [i] * 16, 1)
            kept = decisions(router)
            self.assertEqual([d["number"] for d in kept], list(range(40, 8, -1)))
            self.assertTrue(all(len(d["targets"]) == 8 and d["targets_usable"] == 10 for d in kept))

    def test_a_resumed_stream_is_told(self):
        with mocks(2, QUICK | {"tpot_ms": 20}) as servers, Router(servers) as router:
            def on_event(headers, count):
                if count == 5:
                    kill(serves(servers, headers["X-Worker"]))

            ask_twice = stream(router, "/v1/completions", {"prompt": [5] * 32, "max_tokens": 20, "ignore_eos": True}, on_event)
            self.assertEqual(len(ask_twice[1]), 21)
            last, one = decisions(router)
            self.assertEqual((one["reason"], last["reason"], last["prompt_tokens"]), ("first", "resumed", 32))
            self.assertGreaterEqual(last["delivered_tokens"], 4)
            self.assertEqual(len(last["targets"]), 1)


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.window = cls.enterClassContext(browser.Browser())

    def test_what_it_shows(self):
        with mocks(4, SLOW) as servers, Router(servers) as router:
            window = self.window
            window.open(url(router) + "/")
            window.complaints()  # of the page before
            window.until("return document.querySelectorAll('#workers .dot.up').length === 4")
            self.assertTrue(window.run("return !document.getElementById('none').hidden"))
            prompt = [i % 200 for i in range(320)]
            ask(router, prompt)
            router.wait(lambda _: router.figure("coterie:router_index_blocks") >= 20)
            for _ in range(3):
                taken = ask(router, prompt + [7] * 8)[0]["X-Worker"]
            window.until(DECISIONS + ".length === 4")
            self.assertIn(f"to {taken} for ", window.run(DECISIONS)[0])
            self.assertIn("328 prompt tokens, 320 cached", window.run(DECISIONS)[0])
            self.assertIn("320 prompt tokens, 0 cached", window.run(DECISIONS)[3])
            window.until("return document.getElementById('hit').textContent === '74 %'")  # 960 of 1304
            rows = {row[0]: row for row in window.run(ROWS)}
            self.assertEqual((rows[taken][1], rows[taken][3], rows[taken][4]), ("up", "4", "74 %"))
            window.press("#decisions summary")
            table = "return [...document.querySelectorAll('#decisions li:first-child tbody tr')].map(r => r.firstChild.textContent)"
            self.assertEqual(window.run(table)[0], taken)
            self.assertEqual(len(window.run(table)), 4)
            self.assertTrue(window.run("return document.querySelector('#decisions tr.taken').textContent").startswith(taken))
            kill(servers[0])
            window.until(ROWS + ".some(r => r[1].startsWith('suspended'))")
            for name, width, height, colours in (("light", 1300, 900, "light"), ("dark", 1300, 900, "dark"), ("phone", 360, 740, "light")):
                window.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
                window.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])
                window.picture(PICTURES / f"router-{name}.png")
                self.assertLessEqual(window.run("return document.documentElement.scrollWidth - innerWidth"), 0)
            window.command("Emulation.clearDeviceMetricsOverride")
            window.command("Emulation.setEmulatedMedia", features=[])
            window.press("#theme")
            self.assertIn(window.run("return document.documentElement.dataset.theme"), ("light", "dark"))
            self.assertEqual(window.complaints(), [])

    def test_heat_maps(self):
        """Workers that tell what they call stand side by side, a pixel an expert."""
        with engine() as one, engine() as two, Router([one, two]) as router:
            window = self.window
            window.open(url(router) + "/")
            window.complaints()
            hot = "const c = document.querySelectorAll('#heats canvas'); return c.length === 2 && [...c].every(e => e.getContext('2d').getImageData(0, 0, e.width, e.height).data.some((v, i) => i % 4 === 3 && v > 200))"
            for number in range(1000):
                ask(router, [number % 90 + i % 50 for i in range(128)], 40)
                if window.run(hot):
                    break
            window.complaints()  # of how often pixels are read here
            self.assertEqual(window.run("return [...document.querySelectorAll('#heats canvas')].map(e => [e.width, e.height])"), [[32, 6], [32, 6]])
            self.assertIn(f"127.0.0.1:{one.port}: strongest ", window.run("return document.querySelector('#heats figcaption').textContent"))
            self.assertFalse(window.run("return document.getElementById('experts').hidden"))
            window.press("#decisions summary")
            for name, width, height, colours in (("light", 1300, 900, "light"), ("dark", 1300, 900, "dark"), ("phone", 360, 740, "light")):
                window.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
                window.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])
                window.run("document.getElementById('experts').scrollIntoView()")
                window.picture(PICTURES / f"router-experts-{name}.png")
                self.assertLessEqual(window.run("return document.documentElement.scrollWidth - innerWidth"), 0)
            window.command("Emulation.clearDeviceMetricsOverride")
            window.command("Emulation.setEmulatedMedia", features=[])
            self.assertEqual(window.complaints(), [])

    def test_a_key_is_asked_for(self):
        with mocks(1) as servers, router_with_key(servers, "schl\u00fcssel-\u20ac") as router:
            window = self.window
            window.open(url(router) + "/")
            asks = "const ask = document.getElementById('ask'); return !ask.hidden && document.getElementById('ask-why').textContent"
            self.assertEqual(window.until(asks), "This router needs a key:")
            self.assertEqual(window.run("return [document.activeElement.id, document.getElementById('state').textContent]"), ["secret", "this router needs a key"])
            window.picture(PICTURES / "router-key.png")
            window.press("#key")
            self.assertFalse(window.run(asks))  # whoever closes it
            window.press("#key")
            self.assertEqual(window.run(asks), "The router's API key:")
            window.type("#secret", "wrong" + browser.ENTER)
            window.until("return document.getElementById('ask-why').textContent === 'This router refuses that key. Another:' && !key")
            self.assertFalse(window.run("return document.getElementById('ask').hidden"))
            window.type("#secret", "schl\u00fcssel-\u20ac" + browser.ENTER)
            window.until("return document.querySelectorAll('#workers .dot.up').length === 1")
            self.assertEqual(window.run("return [document.getElementById('ask').hidden, document.getElementById('secret').value]"), [True, ""])
            window.open(url(router) + "/")  # the tab keeps it
            window.until("return document.querySelectorAll('#workers .dot.up').length === 1")
            self.assertTrue(window.run("return document.getElementById('ask').hidden"))

    def test_it_brings_all_that_it_needs(self):
        self.assertEqual(re.findall(r"https?://|<script[^>]+src|<link[^>]+href=\"(?!data:)|@import|url\(|innerHTML", PAGE.read_text()), [])


def router_with_key(servers, key):
    path = PICTURES / f"router-key-{os.getpid()}.txt"
    path.write_text(key + "\n")
    router = Router(servers, "--api-key-file", path)
    router.key = {"Authorization": "Bearer ".encode() + key.encode()}
    return router


if __name__ == "__main__":
    if why := browser.absent():
        print("skipped:", why)
        sys.exit(77)
    unittest.main(verbosity=2)
