"""The page at /, in a headless Chromium. Its pictures lie in page-*.png of the build folder, for people to look at."""

import json
import os
import pathlib
import random
import re
import signal
import sys
import time
import unittest

import browser
import serving
import test_moves as moves

PICTURES = pathlib.Path(os.environ["COT_BUILD"])
PAGE = serving.SOURCE / "src" / "server" / "page" / "index.html"
SAID = "return [...document.querySelectorAll('.said.%s')].map(e => e.children[1].textContent)"
IDLE = "return document.getElementById('stop').hidden"
FIGURES = "return [...document.querySelectorAll('.figures')].map(e => e.textContent)"


def say(window, text):
    """Says it and waits for the whole answer."""
    count = len(window.run(FIGURES))
    window.type("#say", text + browser.ENTER)
    window.until(FIGURES + f".length > {count}")
    window.until(IDLE)
    return window.run(SAID % "assistant")[-1]


def turn_knobs(window, **knobs):
    window.run("document.querySelector('details').open = true;"
               "for (const [id, value] of Object.entries(arguments[0])) document.getElementById(id).value = value", knobs)


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(serving.Server())
        cls.shared = cls.enterClassContext(browser.Browser())
        cls.url = f"http://{cls.server.host}:{cls.server.port}/"

    def window(self, server=None):
        """The page of this server in the browser that most tests use; it remembers nothing of the test before."""
        server, window = server or self.server, self.shared
        url = f"http://{server.host}:{server.port}/"
        window.open("about:blank")  # what the test before left keeps nothing any more
        window.command("Storage.clearDataForOrigin", origin=url[:-1], storageTypes="local_storage")
        window.open(url)
        window.complaints()
        return window

    def test_answers_are_those_of_the_api(self):
        window = self.window()
        window.until("return model")
        turn_knobs(window, temperature="0", max_tokens="40")
        messages = [{"role": "user", "content": "What is 2 + 3?"}]
        first = say(window, messages[0]["content"])
        body = {"messages": messages, "temperature": 0, "max_tokens": 40}
        self.assertEqual(first, self.server.post("/v1/chat/completions", body)[1]["choices"][0]["message"]["content"].lstrip())
        second = say(window, "Who is there?")
        whole = window.run("return conversations[0].messages.slice(0, 3).map(({role, content}) => ({role, content}))")
        self.assertEqual(whole[2], {"role": "user", "content": "Who is there?"})
        answer = self.server.post("/v1/chat/completions", body | {"messages": whole})[1]
        self.assertEqual(second, answer["choices"][0]["message"]["content"].lstrip())
        self.assertRegex(window.run(FIGURES)[1], rf"^{answer['usage']['completion_tokens']} tokens, the first after \d+ ms")
        turn_knobs(window, system="Speak of a garden.", seed="7", temperature="0.8", top_p="0.9")
        drawn = say(window, "And then?")
        whole = window.run("return conversations[0].messages.slice(0, 5).map(({role, content}) => ({role, content}))")
        body |= {"messages": [{"role": "system", "content": "Speak of a garden."}] + whole, "seed": 7, "temperature": 0.8, "top_p": 0.9}
        self.assertEqual(drawn, self.server.post("/v1/chat/completions", body)[1]["choices"][0]["message"]["content"].lstrip())
        self.assertEqual(window.complaints(), [])

    def test_a_full_context(self):
        """It is said, and the oldest turn may be left out."""
        window = self.window()
        window.until("return model")
        turn_knobs(window, max_tokens="4", temperature="0")
        say(window, "One")
        self.assertRegex(window.run(FIGURES)[-1], "; cut: “Most tokens” allows no more$")
        self.assertEqual(window.run("return document.querySelectorAll('.said.wrong').length"), 0)
        say(window, "Two")
        window.run("document.getElementById('say').value = arguments[0]", "x " * 700)  # of 512 tokens
        window.type("#say", browser.ENTER)
        window.until("return document.querySelectorAll('.said.wrong button').length == 1")
        window.until(IDLE)
        self.assertIn("context is 512 tokens", window.run("return document.querySelector('.said.wrong').textContent"))
        window.picture(PICTURES / "page-full.png")
        window.press(".said.wrong button")
        self.assertEqual(window.run("return current.messages.map(m => m.role + m.content.slice(0, 3))")[0], "userTwo")
        self.assertEqual(window.run("return current.messages.length"), 2)
        self.assertEqual(window.run("return document.querySelectorAll('.said.wrong').length"), 0)
        self.assertEqual(window.run("return [...document.querySelectorAll('.note')].map(e => e.textContent)"),
                         ["Left out the oldest turn, “One”. What was refused is in the box: send it again."])
        self.assertEqual(window.run("return document.activeElement.id"), "say")
        window.run("drop_turn(current)")
        self.assertRegex(window.run("return document.querySelector('.note').textContent"), "oldest turn, “Two”")
        self.answer_with(window, "and so on", "data: {\"choices\": [{\"delta\": {}, \"finish_reason\": \"length\"}]}\n\ndata: [DONE]\n\n")
        window.run("document.getElementById('say').value = ''")
        turn_knobs(window, max_tokens="")
        say(window, "Three")
        self.assertRegex(window.run(FIGURES)[-1], "; cut: the context is full$")
        window.complaints()  # of the 400, by the browser itself

    def test_what_is_said_is_text(self):
        window = self.window()
        window.until("return model")
        turn_knobs(window, max_tokens="3")
        said = "<img src=x onerror='document.title=1'> & <b>bold</b>"
        say(window, said)
        self.assertEqual(window.run(SAID % "user"), [said])
        self.assertEqual(window.run("return document.querySelectorAll('.log img, .log b').length"), 0)

    def test_escape_stops(self):
        window = self.window()
        window.until("return model")
        for stop in ("dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))", "document.getElementById('stop').click()"):
            for _ in range(10):  # an answer that was over before that is asked for anew
                window.press("#new")
                window.run("new MutationObserver((_, watch) => { if (document.querySelector('.said.assistant')?.textContent.length > 12) {"
                           f" watch.disconnect(); {stop}; }} }}).observe(document.getElementById('log'), {{childList: true, subtree: true,"
                           " characterData: true})")
                with self.server.slowed():
                    self.go_on(window)
                    figures = window.until(FIGURES + "[0]")
                self.assertTrue(window.run(IDLE))
                self.server.wait_idle()
                if figures.endswith("; stopped"):
                    break
            self.assertRegex(figures, "; stopped$")
        self.assertGreaterEqual(self.server.metric("vllm:request_success_total", finished_reason="abort"), 1)

    def test_stopped_before_it_begins(self):
        """What was asked stays, and can be asked again as long as nothing follows it."""
        again = "return [...document.querySelectorAll('.unanswered')].map(b => b.checkVisibility())"
        window = self.window()
        window.until("return model")
        turn_knobs(window, max_tokens="3")
        window.run("slow = call; call = (path, options) => options?.body ? new Promise((_, refuse) => options.signal.addEventListener('abort',"
                   " () => refuse(options.signal.reason))) : slow(path, options)")
        window.type("#say", "Who is there?" + browser.ENTER)
        window.until("return leaving")
        self.assertEqual(window.run(again), [False])
        window.type("#say", browser.ESCAPE)
        window.until(IDLE)
        self.assertEqual((window.run(SAID % "user"), window.run(SAID % "assistant"), window.run(again)), (["Who is there?"], [], [True]))
        window.run("call = slow")
        window.press(".unanswered")
        window.until("return current.messages.length === 2 && !leaving")
        self.assertEqual((window.run(SAID % "user"), window.run(again)), (["Who is there?"], [False]))
        window.run("document.querySelector('.unanswered').click()")  # no more
        self.assertEqual(window.run("return [!!leaving, current.messages.length]"), [False, 2])
        self.assertEqual(window.complaints(), [])

    def test_messages_are_copied_said_again_and_edited(self):
        act = "[...document.querySelectorAll('.said')][arguments[0]].querySelector('.acts').children[arguments[1]].click()"
        window = self.window()
        window.until("return model")
        turn_knobs(window, temperature="0", max_tokens="20")
        first = say(window, "What is 2 + 3?")
        second = say(window, "Who is there?")
        window.run("taken = null; navigator.clipboard.writeText = async text => { taken = text }; " + act, 1, 0)
        self.assertEqual(window.until("return taken"), first)
        window.until("return [...document.querySelectorAll('.acts button')].some(b => b.textContent === 'Copied')")
        window.run("navigator.clipboard.writeText = () => Promise.reject(); copied = []; document.execCommand = what => {"
                   " copied.push(what, document.activeElement.value); return true }; " + act, 2, 0)
        self.assertEqual(window.until("return copied.length && copied"), ["copy", "Who is there?"])
        turn_knobs(window, max_tokens="7")
        window.run(act, 3, 1)  # the last answer again
        window.until("return current.messages.length === 4 && !leaving && /^7 tokens/.test(current.messages[3].figures)")
        self.assertEqual(window.run(SAID % "user"), ["What is 2 + 3?", "Who is there?"])
        again = window.run(SAID % "assistant")
        self.assertEqual(again[0], first)
        self.assertTrue(second.startswith(again[1]) and again[1] != second, (second, again))
        window.run(act, 0, 1)  # the first question, which Escape leaves as it is
        self.assertEqual(window.run("return [document.getElementById('say').value, document.querySelectorAll('.edited').length]"), ["What is 2 + 3?", 1])
        window.type("#say", browser.ESCAPE)
        self.assertEqual(window.run("return [document.getElementById('say').value, document.querySelectorAll('.edited').length]"), ["", 0])
        self.assertEqual(window.run(SAID % "assistant"), again)
        window.run(act, 0, 1)
        window.type("#say", " And 4?" + browser.ENTER)
        window.until("return current.messages.length === 2 && !leaving")
        self.assertEqual(window.run(SAID % "user"), ["What is 2 + 3? And 4?"])
        window.open(self.url)  # it is kept so
        window.until("return model")
        self.assertIn("What is 2 + 3? And 4?", window.run("return [...document.getElementById('conversations').options].map(o => o.text)"))
        self.assertEqual(window.complaints(), [])

    def test_nothing_is_asked_again_beside_an_answer(self):
        act = "[...document.querySelectorAll('.said')][arguments[0]].querySelector('.acts').children[1].click()"
        window = self.window()
        window.until("return model")
        for _ in range(10):  # an answer that was over before that is asked for anew, in a conversation that has room for it
            window.press("#new")
            turn_knobs(window, temperature="0", max_tokens="4")
            say(window, "One")
            with self.server.slowed():
                self.go_on(window)
                under_way = window.run("if (!leaving) return false; " + act + "; return current.messages.length", 1)
                window.run("document.getElementById('stop').click()")
                window.until(IDLE)
            self.server.wait_idle()
            if under_way:
                break
        self.assertIn(under_way, (3, 4))  # of "One", its answer, "Go on" and that one's
        # nor of a conversation that is shown no more
        window.run("kept = [...document.querySelectorAll('.said')][1].querySelector('.acts').children[1]")
        window.press("#new")
        self.assertEqual(window.run("kept.click(); return [!!leaving, current.messages.length]"), [False, 0])
        self.assertEqual(window.complaints(), [])

    def test_errors_are_shown(self):
        window = self.window()
        window.until("return model")
        window.run("document.getElementById('say').value = 'word '.repeat(600)")
        for _ in range(2):  # what is refused is said once, and is no part of what was said
            window.run("seen = document.querySelector('.said.wrong')")
            window.type("#say", browser.ENTER)
            window.until("return document.querySelector('.said.wrong') !== seen")
            self.assertIn("512", window.until(SAID % "wrong" + ".concat([]).join()"))
            window.until(IDLE)
            self.assertEqual([window.run(SAID % kind) for kind in ("assistant", "user")], [[], []])
            self.assertEqual(window.run("return document.querySelectorAll('.said.wrong').length"), 1)
        self.assertTrue(window.run("return document.getElementById('say').value.startsWith('word word')"))  # it can be changed
        window.run("document.getElementById('say').value = ''")
        turn_knobs(window, max_tokens="2")
        say(window, "Hello")  # the page is as good as before

    def test_conversations_are_kept(self):
        window = self.window()
        window.until("return model")
        turn_knobs(window, max_tokens="4")
        first = say(window, "The first")
        window.press("#new")
        say(window, "The second")
        window.open(self.url)
        window.until("return model")
        names = "return [...document.querySelectorAll('#conversations option')].map(o => o.textContent)"
        self.assertEqual(window.run(names), ["The second", "The first"])
        self.assertEqual(window.run(SAID % "user"), ["The second"])
        window.run("const s = document.getElementById('conversations'); s.value = 1; s.dispatchEvent(new Event('change'))")
        self.assertEqual((window.run(SAID % "user"), window.run(SAID % "assistant")), (["The first"], [first]))
        window.open(self.url)  # a reload returns to where one was
        self.assertEqual((window.run(SAID % "user"), window.run(SAID % "assistant")), (["The first"], [first]))
        window.press("#forget")
        self.assertIn("“The first”", window.answer_question(False))
        self.assertEqual(window.run(names), ["The second", "The first"])
        window.press("#forget")
        window.answer_question(True)
        self.assertEqual(window.run(names), ["New conversation", "The second"])
        self.assertEqual(window.run("return [current.messages.length, document.getElementById('forget').disabled]"), [0, True])
        window.press("#forget")  # of nothing, and asks nothing
        self.assertEqual(window.run(names), ["New conversation", "The second"])
        window.open(self.url)
        self.assertEqual(window.until("return model && " + names[7:]), ["New conversation", "The second"])
        self.assertTrue(window.run("return document.getElementById('forget').disabled"))

    def test_a_key_is_asked_for(self):
        with serving.Server(env={"COTERIE_API_KEY": "secret"}) as server:
            window = self.window(server)
            asks = "const ask = document.getElementById('ask'); return !ask.hidden && document.getElementById('ask-why').textContent"
            self.assertEqual(window.until(asks), "This server needs a key:")
            self.assertEqual(window.run("return [document.activeElement.id, document.getElementById('model').textContent]"), ["secret", "this server needs a key"])
            window.picture(PICTURES / "page-key.png")
            window.press("#key")  # whoever closes it is asked again once something is said
            window.type("#say", "Who is there?" + browser.ENTER)
            window.until(asks)
            window.until(IDLE)
            self.assertEqual(window.until(SAID % "wrong"), ["this server needs a key: give it above, then send again"])
            self.assertEqual(window.run("return [document.getElementById('say').value, document.activeElement.id, current.messages.length]"), ["Who is there?", "secret", 0])
            window.type("#secret", "wrong" + browser.ENTER)
            window.until("return document.getElementById('ask-why').textContent === 'This server refuses that key. Another:' && !key")
            self.assertFalse(window.run("return document.getElementById('ask').hidden"))
            window.type("#secret", "secret" + browser.ENTER)
            window.until("return document.getElementById('dot').classList.contains('up')")
            self.assertTrue(window.run("return document.getElementById('ask').hidden"))
            window.run("document.getElementById('say').value = ''")
            turn_knobs(window, max_tokens="2")
            say(window, "Hello")
            self.assertEqual(server.get("/metrics")[0], 401)
            self.assertEqual(server.get("/")[0], 200)
            self.assertEqual(server.send("HEAD", "/")[0], 200)

    # what a page meets when nobody means it well

    def go_on(self, window):
        """Asks for an answer that goes on for long; a server that is slowed is still at it when some of it is shown."""
        window.run("window.real ??= call; call = (path, options) => real(path, options && options.body ?"
                   " {...options, body: JSON.stringify({...JSON.parse(options.body), ignore_eos: true})} : options)")
        turn_knobs(window, max_tokens="450")
        window.type("#say", "Go on" + browser.ENTER)

    def test_reload_keeps_what_was_said(self):
        for _ in range(10):  # an answer that was over before that is asked for anew
            window = self.window()
            window.until("return model")
            window.run("new MutationObserver((_, watch) => { if (document.querySelector('.said.assistant')?.textContent.length > 12) {"
                       " watch.disconnect(); location.reload(); } }).observe(document.getElementById('log'), {childList: true, subtree: true})")
            with self.server.slowed():
                self.go_on(window)
                window.until("return performance.getEntriesByType('navigation')[0].type === 'reload' && model")
            kept = window.run("return current.messages")
            self.assertEqual([m["role"] for m in kept], ["user", "assistant"])
            self.server.wait_idle()
            if kept[1]["figures"].endswith("cut off"):
                break
        self.assertGreater(len(kept[1]["content"]), 5)
        self.assertRegex(kept[1]["figures"], "cut off$")

    def test_a_server_that_dies_or_hangs(self):
        for _ in range(10):  # an answer that was over before that is asked for anew
            with serving.Server(status=-signal.SIGKILL) as server:
                window = self.window(server)
                window.run("patience_ms = 500")
                window.until("return document.getElementById('dot').classList.contains('up')")
                server.process.send_signal(signal.SIGSTOP)
                window.until("return document.getElementById('model').textContent === 'the server cannot be reached'"
                             " && !document.getElementById('dot').classList.contains('up')")
                server.process.send_signal(signal.SIGCONT)
                window.until("return document.getElementById('dot').classList.contains('up') && model")
                with server.slowed():
                    self.go_on(window)
                    window.until(SAID % "assistant" + ".join().length > 5")
                    server.process.kill()
                said = window.until(SAID % "wrong" + ".join() || document.getElementById('stop').hidden && 'over'")
                self.assertTrue(window.run(IDLE))
                if said != "over":
                    break
        self.assertIn("cannot be reached", said)
        self.assertGreater(len(window.run(SAID % "assistant")[0]), 5)
        window.complaints()

    def answer_with(self, window, text, end="data: [DONE]\n\n"):
        """Has the page believe that the server said this."""
        window.run("window.real ??= call; const [text, end] = arguments; call = (path, options) => options?.body"
                   " ? Promise.resolve(new Response(text.match(/[^]{1,999}/g).map(part => 'data: ' + JSON.stringify({choices: [{delta: {content: part}}]})"
                   " + '\\n\\n').join('') + end)) : real(path, options)", text, end)

    def test_hostile_answers(self):
        """Whatever a model says is text, and stays within its bubble, on the smallest of phones too."""
        window = self.window()
        window.until("return model")
        window.command("Emulation.setDeviceMetricsOverride", width=320, height=568, deviceScaleFactor=1, mobile=True)
        try:
            texts = ["<script>document.title = 1</script><img src=x onerror='document.title = 1'>[a](javascript:alert(1)) <!-- </span></div>",
                     "\u202egnihtyna \u2066\u05e9\u05dc\u05d5\u05dd", "Z\u0353\u0303" + "\u0336\u0310\u0489" * 400 + "algo", "x" * 30000,
                     "\n" * 3000 + "end", "\U0001f469\u200d\U0001f469\u200d\U0001f467" * 300, "\x00\x07\ufeff\ufffe" * 9 + "."]  # fmt: skip
            for i, text in enumerate(texts):
                self.answer_with(window, text)
                self.assertEqual(say(window, f"Say {i}"), text.strip(" \n"))
                window.picture(PICTURES / f"page-hostile-{i}.png")
                sizes = window.run("const b = [...document.querySelectorAll('.said')].at(-1).getBoundingClientRect();"
                                   "return [document.documentElement.scrollWidth, innerWidth, b.left, b.right]")
                self.assertTrue(sizes[0] <= sizes[1] == 320 and 0 <= sizes[2] < sizes[3] <= 320, (i, sizes))
            self.assertEqual(window.run("return [document.querySelectorAll('.log img, .log script, .log a').length, document.title === '1']"), [0, False])
            self.answer_with(window, "half of an ans", end="")
            say(window, "And then?")
            self.assertEqual(window.run(SAID % "wrong"), ["the answer was cut off"])
            self.assertEqual(window.complaints(), [])
        finally:
            window.command("Emulation.clearDeviceMetricsOverride")

    def test_what_was_kept_is_broken(self):
        window = self.window()
        for kept in ("5", "{}", "[1, null, {}]", '[{"messages": 7}]', '[{"messages": [null]}]', '[{"messages": [{"role": "user"}]}]', "{"):
            window.run("localStorage.setItem('coterie.conversations', arguments[0])", kept)
            window.open(self.url)
            window.until("return model")
            self.assertEqual(window.run("return conversations.length"), 1, kept)
        broken = window.command("Page.addScriptToEvaluateOnNewDocument", source="for (const name of ['localStorage', 'sessionStorage'])"
                                " Object.defineProperty(window, name, {get() { throw new DOMException('denied', 'SecurityError'); }})")  # fmt: skip
        window.open(self.url)
        window.until("return model")
        turn_knobs(window, max_tokens="2")
        say(window, "Hello")
        window.command("Page.removeScriptToEvaluateOnNewDocument", **broken)
        window.open(self.url)
        self.assertEqual(window.complaints(), [])

    def test_more_than_a_browser_keeps(self):
        """Of many conversations the newest are kept, of long ones as many as there is room for."""
        window = self.window()
        window.until("return model")
        for count, size, most, least in ((100, 10, 50, 50), (40, 400000, 20, 5)):
            window.run("conversations = Array.from({length: arguments[0]}, (_, i) => ({id: i + 1, messages: [{role: 'user', content: i + ' '.padEnd(arguments[1], 'x')}]}));"
                       "begin()", count, size)
            window.open(self.url)
            window.until("return model")
            kept = window.run("return conversations.slice(1).map(c => c.id)")
            self.assertEqual(kept, list(range(1, len(kept) + 1)))
            self.assertTrue(least <= len(kept) + 1 <= most, len(kept))
            window.run("localStorage.clear()")

    def test_two_tabs(self):
        """What is said in one is kept when another says something."""
        window = self.window()
        window.until("return model")
        self.answer_with(window, "Yes")
        first = window.call("GET", "/window")
        second = window.call("POST", "/window/new", {"type": "tab"})["handle"]
        window.call("POST", "/window", {"handle": second})
        window.open(self.url)
        self.answer_with(window, "No")
        say(window, "In the second")
        window.call("POST", "/window", {"handle": first})
        window.until("return conversations.length > 1")
        say(window, "In the first")
        window.call("POST", "/window", {"handle": second})
        window.until("return conversations.length > 1")
        say(window, "In the second again")
        window.call("DELETE", "/window")
        window.call("POST", "/window", {"handle": first})
        window.open(self.url)
        self.assertEqual(window.run("return conversations.map(c => c.messages.map(m => m.content)).sort()"),
                         [["In the first", "Yes"], ["In the second", "No", "In the second again", "No"]])

    def test_a_key_of_any_characters(self):
        with serving.Server(env={"COTERIE_API_KEY": "schl\u00fcssel-\u20ac"}) as server:
            window = self.window(server)
            for key in ("\u20ac", "schl\u00fcssel-\u20ac"):
                window.until("return !document.getElementById('ask').hidden")
                window.type("#secret", key + browser.ENTER)
                window.until("return model || document.getElementById('ask-why').textContent.startsWith('This server refuses')")
            window.until("return document.getElementById('dot').classList.contains('up')")

    def test_live_figures(self):
        window = self.window()
        window.until("return model")
        turn_knobs(window, max_tokens="30")
        say(window, "Hello")
        window.until("return /ms$/.test(document.getElementById('tbt').textContent)")
        window.until("return /ms$/.test(document.getElementById('ttft').textContent)")
        window.until("return lines.rate.some(v => v > 0)")
        window.until("return /^0 to [1-9][0-9]* in [1-9][0-9]* s$/.test(document.getElementById('rate-scale').textContent)")
        window.until("return /^0 to [0-9.]+ m?s in [1-9][0-9]* s$/.test(document.getElementById('tbt-scale').textContent)")
        blocks = int(self.server.metric("coterie:kv_cached_blocks"))
        window.until(f"return document.getElementById('kv-more').textContent.startsWith('{blocks} blocks')")
        # against figures worked out by hand: 10 observations, half of them below 0.1, the rest below 0.2
        rows = "[{labels: {le: '0.1'}, value: %d}, {labels: {le: '0.2'}, value: %d}, {labels: {le: '+Inf'}, value: %d}]"
        script = f"return [.5, .75, 1].map(q => quantile({{x_bucket: {rows % (8, 13, 13)}}}, {{x_bucket: {rows % (3, 3, 3)}}}, 'x', q))"
        self.assertEqual([round(v, 9) for v in window.run(script)], [0.1, 0.15, 0.2])
        self.assertIsNone(window.run(script.replace("13", "3").replace("8", "3"))[0])

    def test_the_inside(self):
        """Experts, sequences and bytes are those that the server tells; cells are named under the pointer and the arrow keys."""
        with serving.Server("--ranks", 3) as server:
            window = self.window(server)
            window.until("return heat && /^No expert was called/.test(document.getElementById('map-more').textContent)")
            prompt = list(range(40, 180))
            self.assertEqual(len(server.complete([prompt] * 2, max_tokens=9, ignore_eos=True, temperature=0)["choices"]), 2)
            experts = json.loads(server.get("/experts")[1])
            window.until("return expert_looks.length > 1 && heat.rows[0].sum === arguments[0]", sum(experts["calls"][0]))
            window.run("document.getElementById('map').focus()")
            window.press_keys(browser.RIGHT, browser.RIGHT, browser.DOWN)  # the first comes to the first cell
            calls = experts["calls"][1][1]
            share, times = 100 * calls / sum(experts["calls"][1]), 32 * calls / sum(experts["calls"][1])
            told = window.run("return document.getElementById('map-more').textContent")
            self.assertEqual(told, f"Layer 1, expert 1, rank 0: {share:.1f} % of the layer's calls, {times:.1f} times the mean")
            window.run("document.activeElement.blur()")
            window.until("return /^(In 10 s|Since the start): most called/.test(document.getElementById('map-more').textContent)")
            colours = window.run("const c = document.getElementById('map'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height);"
                                 "const at = (l, i) => 4 * (Math.floor(over + (l + .5) * (c.height - over) / 6) * c.width + Math.floor(beside + (i + .5) * (c.width - beside) / 33));"
                                 "return heat.rows.map((r, l) => r.cells.map((c, i) => [c.expert, [...d.data.slice(at(l, i), at(l, i) + 3)].join()]))")
            words = window.run("const said = [], of = CanvasRenderingContext2D.prototype, fill = of.fillText;"
                               "of.fillText = function (text, x, y) {"
                               " const wide = this.measureText(text).width, left = x - wide * { left: 0, start: 0, center: .5, right: 1 }[this.textAlign];"
                               " said.push([String(text), y, left, left + wide]); };"
                               "draw_experts(); of.fillText = fill; return [said, document.getElementById('map').clientWidth]")
            self.assertEqual([text for text, *_ in words[0]], [*"012345", "layer", "rank 0", "rank 1", "rank 2"])
            for text, y, left, right in words[0]:  # on the paper, and beside each other
                self.assertTrue(0 <= left < right <= words[1], text)
                self.assertFalse([t for t, above, begin, end in words[0] if t != text and above == y and begin <= right and end >= left], text)
            for line in colours:  # of 32 experts the first rank has one fewer than there is room for
                self.assertEqual([expert for expert, _ in line], [*range(10), None, *range(10, 32)])
            colours = [[colour for expert, colour in line if expert is not None] for line in colours]
            flat = [(n, colour) for row, line in zip(experts["calls"], colours) for n, colour in zip(row, line)]
            self.assertEqual(max(flat)[1], "11,107,87")
            for n, colour in flat:
                self.assertEqual(colour == "243,240,232", n == 0, (n, colour))
            sent = json.loads(server.get("/live")[1])["bytes"]["dispatch"]
            self.assertIn(f"dispatch {sent / 1e6:.1f} MB", window.run("return document.getElementById('sent-more').textContent"))
            shown = ("look_inside(); return /\\(3 of 3\\)$/.test(document.getElementById('lanes-more').textContent)"  # now, not each second
                     " && document.querySelectorAll('#lanes li').length === 3 && [document.querySelectorAll('#lanes .shared').length]")
            for _ in range(20):  # who looks too late asks anew
                with server.slowed():
                    thread, _ = server.in_background({"model": "tiny", "prompt": prompt[::-1], "n": 3, "max_tokens": 320, "ignore_eos": True})
                    while not (seen := window.run(shown)) and thread.is_alive():
                        time.sleep(0.01)
                thread.join()
                if seen:
                    break
            self.assertEqual(seen, [3])
            window.until("return /^Nobody/.test(document.getElementById('lanes-more').textContent)")
            self.assertEqual(window.complaints(), [])

    def test_moves_are_drawn(self):
        """A copy in the slot that it comes into while it does; experts that have come, replicas and spare slots; and what is told of it."""
        drawn = ("return heat && heat.rows.map(r => Array.from({length: heat.ranks}, (_, rank) =>"
                 " r.cells.filter(c => c.rank === rank && c.expert !== null).map(c => c.expert).sort((a, b) => a - b)))")
        shown = "return ['map-twin', 'map-spare', 'map-fresh'].map(id => !document.getElementById(id).hidden)"
        draw = random.Random(serving.seed())
        with serving.Server(*moves.STALLED) as server:
            window = self.window(server)
            window.until("return heat")
            self.assertEqual(window.run(shown), [False, True, False])
            self.assertEqual(moves.put(server, moves.dealt_anew(moves.placement(server), draw))[0], 202)
            coming = window.until("return heat.rows.flatMap(r => r.cells.filter(c => c.coming).map(c => [r.layer, c.rank, c.coming.expert]))[0]")
            self.assertIn(coming, [[copy["layer"], copy["to"], copy["expert"]] for copy in moves.rebalance(server, 1)["copying"]])
            self.assertEqual(window.run(shown), [False, True, True])
            self.assertIn(f"expert {coming[2]} of layer {coming[0]} goes from rank", window.run("return document.getElementById('moves').textContent"))
            server.send("DELETE", "/rebalance/1")
            window.until("return /^Experts have moved .1.: 0 of .* given up: [0-9]+ cancelled$/.test(document.getElementById('moves').textContent)")
            self.assertEqual(window.complaints(), [])
        with serving.Server(*moves.MOVABLE) as server:
            window = self.window(server)
            window.until("return heat")
            wanted = moves.dealt_anew(moves.placement(server), draw)
            self.assertEqual(moves.put(server, wanted)[0], 202)
            moves.wait_over(server, 1)
            window.until("return /^Experts have moved .1.: ([0-9]+) of .1 copies made/.test(document.getElementById('moves').textContent)".replace(".1 copies", "\\1 copies"))
            self.assertEqual(window.run(drawn), moves.held(wanted))
            self.assertEqual(window.run(shown), [True, True, True])
            self.assertEqual(window.complaints(), [])

    def test_why_nothing_moved_is_told(self):
        text = "return document.getElementById('rebalancing').textContent"
        with serving.Server("--ranks", 4, "--rebalance", "load", "--rebalance-interval", "1000000000steps") as server:
            window = self.window(server)
            window.until("return heat")
            self.assertEqual(window.run(text), "Rebalancing by load: has not looked yet")
            self.assertEqual(server.post("/rebalance", {})[0], 200)
            window.until("return /^Rebalancing by load: looked [0-9]+ s ago: too few calls counted in 6 layers$/.test(document.getElementById('rebalancing').textContent)")
            told = {"mode": "joint", "moved": 3, "stayed": 0, "refused": 0, "given_up": 1, "since_seconds": 2.6, "saving_seconds": 1.25e-5,
                    "layers": {"experts move": 1, "no move helps": 5}, "compared": {"foreseen_seconds": 2e-5, "realised_seconds": -1e-6}}
            self.assertEqual(window.run(f"show_rebalancing({json.dumps(told)}); {text}"),
                             "Rebalancing by joint: looked 3 s ago: experts move in 1 layer, no move helps in 5 layers; a step is to take 12.5 µs less."
                             " Earlier moves were to make a step take 20.0 µs less, and it takes 1.0 µs more."
                             " Moves of 1 look took too long and were given up")
            split = {"bytes": 4000000, "states_bytes": 0, "pages_bytes": 3000000, "slots_bytes": 1000000, "replicas_bytes": 500000, "turns": 0, "reason": "pages save more", "gain_seconds": 1.25e-5}
            card = ("const of = id => document.getElementById('memory' + id), parts = [...of('-bar').children].map(e => [e.className, e.style.width]);"
                    "return of('').hidden ? null : [of('-share').textContent, parts, of('-parts').textContent, of('-more').textContent, of('-bar').ariaLabel]")
            self.assertIsNone(window.run(card))  # nothing is shared
            self.assertEqual(window.run(f"show_memory({json.dumps(split)}); {card}"),
                             ["75 % for texts", [["pages", "75%"], ["twins", "12.5%"], ["open", "12.5%"]], "KV pages 3.0 MBreplicas 500.0 kBopen for replicas 500.0 kB",
                              "Of 4.0 MB. The last look: pages save more; by the best split a step would take 12.5 µs less",
                              "Of 4.0 MB: KV pages 3.0 MB, replicas 500.0 kB, open for replicas 500.0 kB"])
            later = split | {"states_bytes": 1000000, "pages_bytes": 2000000, "slots_bytes": 0, "replicas_bytes": 1000000, "reason": None, "gain_seconds": 0}
            self.assertEqual(window.run(f"show_memory({json.dumps(later)}); {card}")[:4],
                             ["50 % for texts", [["states", "25%"], ["pages", "50%"], ["twins", "25%"]], "states 1.0 MBKV pages 2.0 MBreplicas 1.0 MB",
                              "Of 4.0 MB. Has not looked yet"])
            self.assertEqual(window.run("return lines.memory"), [3000000, 2000000])
            self.assertEqual(window.complaints(), [])

    def test_people_can_use_it(self):
        """Names for a screen reader, the keyboard's way, no sideways scrolling, enough contrast; and pictures."""
        window = self.window()
        for name, width, height, colours in (("wide", 1400, 900, "light"), ("projector", 2560, 1300, "light"), ("phone", 360, 740, "dark")):
            with self.subTest(name):
                window.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
                window.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])
                window = self.window()
                window.until("return model")
                turn_knobs(window, max_tokens="60", seed="1")
                say(window, "What is 2 + 3?")
                say(window, "Who is there?")
                window.until("return lines.tbt.some(v => v > 0)")
                window.picture(PICTURES / f"page-{name}.png")
                self.assertLessEqual(window.run("return document.documentElement.scrollWidth - innerWidth"), 0)
                if name == "phone":  # fingers are wider than pointers
                    heights = window.run("return [...document.querySelectorAll('button')].filter(b => b.checkVisibility()).map(b => b.offsetHeight)")
                    self.assertGreaterEqual(min(heights), 32)
                names = window.run("return [...document.querySelectorAll('button, input, select, textarea')].map(e =>"
                                   " e.ariaLabel || e.labels?.[0]?.textContent.trim() || e.textContent.trim())")
                self.assertTrue(all(names), names)
                window.run("reached = []; document.activeElement.blur(); addEventListener('focusin', e => reached.push(e.target.id))")
                window.press_keys(*[browser.TAB] * 30)
                reached = set(window.run("return reached"))
                self.assertLessEqual({"conversations", "new", "forget", "key", "theme", "log", "say", "send", "temperature", "system", "map"}, reached)
                for _ in range(3):  # by the system's choice, the other, and back by one's own
                    self.assertGreaterEqual(min(self.contrasts(window)), 4.5)
                    self.assertGreaterEqual(min(self.contrasts(window, (("edge", "mine"), ("edge", "card")))), 3)
                    window.press("#theme")
                self.assertEqual(window.complaints(), [])
        window.command("Emulation.clearDeviceMetricsOverride")
        window.command("Emulation.setEmulatedMedia", features=[])

    TEXTS = (("ink", "paper"), ("ink", "card"), ("ink", "mine"), ("soft", "paper"), ("soft", "card"), ("warn", "card"), ("accent-ink", "accent"))

    def contrasts(self, window, pairs=TEXTS):
        colours = window.run("const s = getComputedStyle(document.documentElement);"
                             "return Object.fromEntries(['paper', 'card', 'ink', 'soft', 'mine', 'accent', 'accent-ink', 'warn', 'edge'].map("
                             "n => [n, s.getPropertyValue('--' + n).trim()]))")

        def luminance(name):
            parts = [int(colours[name][i : i + 2], 16) / 255 for i in (1, 3, 5)]
            linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
            return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

        for text, ground in pairs:
            light, dark = sorted((luminance(text), luminance(ground)), reverse=True)
            yield (light + 0.05) / (dark + 0.05)


class File(unittest.TestCase):
    def test_it_brings_all_that_it_needs(self):
        self.assertEqual(re.findall(r"https?://|<script[^>]+src|<link[^>]+href=\"(?!data:)|@import|url\(", PAGE.read_text()), [])
        with serving.Server() as server:
            status, headers, body = server.send("GET", "/")
            self.assertEqual((status, body, headers["Content-Type"]), (200, PAGE.read_bytes(), "text/html; charset=utf-8"))
            self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
            self.assertEqual(server.get("//")[0], 404)
            self.assertEqual(server.send("POST", "/", {})[0], 405)


if __name__ == "__main__":
    if why := browser.absent():
        print(f"SKIPPED: {why}", file=sys.stderr)
        sys.exit(77)
    unittest.main()
