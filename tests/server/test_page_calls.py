"""Reasoning and calls of tools on the page at /, in a headless Chromium: what an agent's client sends, the page is made to send. Its pictures
lie in page-calls-*.png of the build folder, for people to look at. Needs llguidance (tools/get-llguidance)."""

import os
import pathlib
import sys
import unittest

import browser
import serving
from test_page import say

PICTURES = pathlib.Path(os.environ["COT_BUILD"])
TOOL = {"type": "function", "function": {"name": "tide", "parameters": {"type": "object", "properties": {"port": {"type": "string"}}}}}
CALL = '<tool_call>\n{"name": "tide", "arguments": {"port": "%s", "note": "%s"}}\n</tool_call>'
THOUGHT = "The user asks for the tide; <b>two</b> ports are meant."
NOTE = "<img src=x onerror='document.title=1'> " + "long" * 12
TEXT = f"<think>{THOUGHT}</think>I look at both. " + CALL % ("Brest", NOTE) + CALL % ("Ys", "")
# all that the page asks is asked with more fields
WRAP = """const more = arguments[0], send = window.fetch.bind(window);
          window.fetch = (url, options = {}) => send(url, options.body ? {...options, body: JSON.stringify({...JSON.parse(options.body), ...more})} : options)"""
SHOWN = """const said = [...document.querySelectorAll('.said.assistant')].at(-1), folded = said.querySelector('details');
           return {order: [...said.children].map(e => e.tagName + '.' + e.className), open: folded.open, head: folded.querySelector('summary').textContent,
                   reasoning: folded.querySelector('span').textContent, words: said.querySelector('.words').textContent,
                   calls: [...said.querySelectorAll('.call')].map(e => e.textContent), inner: said.querySelectorAll('b, img').length}"""


class Calls(serving.Constrained):
    options = ("--chat-template", serving.SOURCE / "examples/tools.jinja", "--reasoning-parser", "think")

    def test_reasoning_is_folded_and_calls_are_cards(self):
        url = f"http://{self.server.host}:{self.server.port}/"
        with browser.Browser() as window:
            for name, width, height, colours in (("light", 1200, 800, "light"), ("dark", 1200, 800, "dark"), ("phone", 320, 640, "dark")):
                with self.subTest(name):
                    window.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=True)
                    window.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])
                    window.open("about:blank")
                    window.command("Storage.clearDataForOrigin", origin=url[:-1], storageTypes="local_storage")
                    window.open(url)
                    window.until("return model")
                    window.run(WRAP, {"tools": [TOOL], "structured_outputs": {"choice": [TEXT]}, "max_tokens": 300})
                    say(window, "When is high water?")
                    shown = window.run(SHOWN)
                    self.assertEqual((shown["open"], shown["head"], shown["reasoning"]), (False, "Reasoning", THOUGHT))
                    self.assertEqual(shown["words"], "I look at both.")
                    wanted = [f'tide {{"port": "{port}", "note": "{note}"}}' for port, note in (("Brest", NOTE), ("Ys", ""))]
                    self.assertEqual(shown["calls"], wanted)
                    self.assertEqual(shown["inner"], 0)  # what a model says is text
                    order = [child.split(".")[0] + "." + child.split(".")[1] for child in shown["order"]]
                    self.assertLess(order.index("DETAILS."), order.index("SPAN.words"))
                    self.assertLess(order.index("SPAN.words"), order.index("DIV.calls"))
                    self.assertNotEqual(window.run("return document.title"), "1")
                    self.assertLessEqual(window.run("return document.documentElement.scrollWidth - innerWidth"), 0)
                    window.picture(PICTURES / f"page-calls-{name}-folded.png")
                    window.run("document.querySelector('.said.assistant details summary').click()")
                    self.assertTrue(window.run(SHOWN)["open"])
                    self.assertLessEqual(window.run("return document.documentElement.scrollWidth - innerWidth"), 0)
                    window.picture(PICTURES / f"page-calls-{name}.png")
                    # what was said is there again, and the next answer begins behind it
                    window.open(url)
                    window.until("return document.querySelectorAll('.said.assistant').length == 1")
                    self.assertEqual(window.run(SHOWN) | {"order": 0}, shown | {"order": 0})
                    self.assertEqual(window.complaints(), [])


if __name__ == "__main__":
    if why := browser.absent():
        print(f"SKIPPED: {why}", file=sys.stderr)
        sys.exit(77)
    unittest.main()
