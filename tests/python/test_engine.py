"""coterie.Engine: the text of `coterie run`, several at once, cancelled and forgotten ones, placements, refusals."""

import gc
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time
import unittest

from skip import need

(numpy,) = need("numpy")
SOURCE = pathlib.Path(os.environ["COT_SOURCE"])
sys.path.insert(0, str(SOURCE / "python"))
import coterie  # noqa: E402

SEED = time.time_ns() % 2**32
MODEL = SOURCE / "models" / "tiny"
PROMPTS = ["Question: A farmer has 12 hens.", "The town was", "Two trains leave at noon."]


def run(prompt, *arguments):
    """What the command line says, without its last line's end."""
    command = [os.environ["COT_PROGRAM"], "run", MODEL, "-p", prompt, *arguments]
    return subprocess.run(command, capture_output=True, check=True).stdout.decode()[:-1]


def children():
    """Processes that this one has forked."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rsplit(")", 1)[1].split()[1]
        except OSError:  # it is gone
            continue
        if int(parent) == os.getpid():
            found.append(int(stat.parent.name))
    return found


class Generating(unittest.TestCase):
    def test_commands_text(self):
        """Greedy and drawn texts are those of the command line, for several ranks."""
        for ranks in (1, 3):
            with coterie.Engine(MODEL, ranks=ranks, precision="fp32", progress=False) as engine:
                self.assertEqual((engine.ranks, engine.layers, engine.experts, engine.moe_layers.tolist()),
                                 (ranks, 6, 32, list(range(6))))  # fmt: skip
                made = engine.generate(PROMPTS[0], max_tokens=20)
                tokens = list(made)
                self.assertEqual(made.text, run(PROMPTS[0], "-n", "20", "--precision", "fp32"))
                self.assertEqual("".join(token.text for token in tokens), made.text)
                self.assertEqual([token.id for token in tokens if token.id is not None], made.ids)
                self.assertEqual((len(made.ids), made.finish), (20, "length"))
                self.assertTrue(made.text.startswith(engine.decode(made.ids[:5])))
                drawn = engine.generate(PROMPTS[1], max_tokens=20, temperature=0.9, top_k=40, top_p=0.95, seed=7)
                list(drawn)
                options = "-n 20 --precision fp32 --temperature 0.9 --top-k 40 --top-p 0.95 --seed 7".split()
                self.assertEqual(drawn.text, run(PROMPTS[1], *options))

    def test_several_at_once(self):
        """Texts that are stepped in turn, in any order, are those that are made alone."""
        draw = random.Random(SEED)
        with coterie.Engine(MODEL, ranks=2, attention="dp", precision="fp32", progress=False) as engine:
            alone = []
            for prompt in PROMPTS:
                alone.append(engine.generate(engine.encode(prompt), max_tokens=15))
                list(alone[-1])
            together = [engine.generate(prompt, max_tokens=15) for prompt in PROMPTS]
            left = list(together)
            while left:
                one = draw.choice(left)
                if next(one, None) is None:
                    left.remove(one)
            self.assertEqual([(g.text, g.ids) for g in together], [(g.text, g.ids) for g in alone])

    def test_ends(self):
        with coterie.Engine(MODEL, kv_tokens=512, sequences=2, progress=False) as engine:
            stopped = engine.generate(PROMPTS[0], stop=["hens,"], max_tokens=60)
            list(stopped)
            whole = engine.generate(PROMPTS[0], max_tokens=60)
            list(whole)
            self.assertEqual(stopped.finish, "stop")
            self.assertEqual(stopped.text, whole.text.split("hens,")[0])
            for _ in range(20):  # more than there is room for, if any were kept
                forgotten, closed = engine.generate("The", max_tokens=200), engine.generate("The", max_tokens=200)
                next(forgotten), next(closed)
                del forgotten
                gc.collect()
                closed.close()
                closed.close()
                self.assertEqual(closed.finish, "cancelled")
                self.assertLessEqual(len(list(closed)), 1)
            after = engine.generate(PROMPTS[0], max_tokens=60)
            list(after)
            self.assertEqual(after.text, whole.text)
            open_end = engine.generate("The", max_tokens=200)
        self.assertEqual(open_end.finish, "cancelled")
        self.assertEqual(list(open_end), [])
        with coterie.Engine(MODEL, sequence_tokens=40, sequences=2, progress=False) as short:
            self.assertEqual(short.context_tokens, 40)
            cut = short.generate(PROMPTS[0], max_tokens=60)
            list(cut)
            self.assertEqual((cut.finish, cut.ids), ("context", whole.ids[: len(cut.ids)]))
            self.assertEqual(len(short.encode(PROMPTS[0])) + len(cut.ids), 40)
            self.assertRaisesRegex(coterie.Error, "context is 40", short.generate, "word " * 50)
        self.assertIn("closed", repr(engine))
        for use in (lambda: engine.generate("The"), lambda: engine.encode("The"), lambda: engine.decode([1])):
            self.assertRaisesRegex(ValueError, "closed", use)
        engine.close()

    def test_constraints(self):
        """Texts keep to what they have to be, several at once, and are the command line's; what is wrong is said."""
        schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "maximum": 99}},
                  "required": ["name", "age"], "additionalProperties": False}  # fmt: skip
        with coterie.Engine(MODEL, kv_tokens=1024, sequences=4, progress=False) as engine:
            try:
                engine.generate("The", regex="a").close()
            except coterie.Error as error:
                self.assertIn("get-llguidance", str(error))
                self.skipTest(print(f"SKIPPED: {error}", file=sys.stderr) or "no llguidance")
            for _ in range(8):
                hot = {"temperature": 1, "max_tokens": 200}
                made = [engine.generate("The", json_schema=schema, seed=1, **hot), engine.generate("The", regex="[0-9]{3}", **hot),
                        engine.generate("The", choice=["yes", "no"], **hot), engine.generate("The", grammar='start: "x"+ "y"', max_tokens=5)]  # fmt: skip
                open_end = engine.generate("The", json_schema=json.dumps(schema), max_tokens=200)
                next(open_end)
                open_end.close()
                texts = ["".join(token.text for token in one) for one in made]
                value = json.loads(texts[0])
                self.assertEqual(list(value), ["name", "age"])
                self.assertLessEqual(len(value["name"]), 6)
                self.assertRegex(texts[1], r"^[0-9]{3}$")
                self.assertIn(texts[2], ("yes", "no"))
                self.assertRegex(texts[3], r"^x+y?$")
                self.assertEqual([one.finish for one in made[:3]], ["eos"] * 3)
            for wrong, words in (({"regex": "("}, "parse error"), ({"json_schema": {"not": {}}}, "not"), ({"choice": []}, "at least one"),
                                 ({"regex": "a", "grammar": "b"}, "exclude one another"), ({"grammar": "start: a"}, "a")):  # fmt: skip
                self.assertRaisesRegex(ValueError, words, engine.generate, "The", **wrong)
            self.assertRaises(TypeError, engine.generate, "The", regex=5)
            open_end = engine.generate("The", regex="a*")
        self.assertEqual(open_end.finish, "cancelled")

    def test_placements(self):
        """Experts elsewhere, as an array, a Placement or a file: the same text."""
        text, draw = run(PROMPTS[2], "-n", "12", "--precision", "fp32"), numpy.random.default_rng(SEED)
        slots = numpy.stack([draw.permutation(32) for _ in range(6)])
        placement = coterie.place(draw.integers(1, 100, (6, 32)), ranks=2, slots=40, method="eplb")
        path = pathlib.Path(f"/tmp/coterie-test-engine-{os.getpid()}.json")
        placement.write(path)
        try:
            for where in (slots, placement, path):
                with coterie.Engine(MODEL, 2, attention="dp", precision="fp32", placement=where, progress=False) as engine:
                    made = engine.generate(PROMPTS[2], max_tokens=12)
                    list(made)
                    self.assertEqual(made.text, text)
        finally:
            path.unlink()

    def test_pipelines(self):
        """Tokens that go home before the gate: the same text."""
        text = run(PROMPTS[2], "-n", "12", "--precision", "fp32")
        with coterie.Engine(MODEL, 3, precision="fp32", pipeline="s-moe", predict="none", progress=False) as engine:
            made = engine.generate(PROMPTS[2], max_tokens=12)
            list(made)
            self.assertEqual(made.text, text)

    def test_signals(self):
        """What a signal raises comes out of the loop, and no text ends by it."""
        alarm = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            with coterie.Engine(MODEL, precision="fp32", progress=False) as engine:
                whole = engine.generate(PROMPTS[1], max_tokens=150, ignore_eos=True)
                list(whole)
                for _ in range(4):
                    made, raised = engine.generate(PROMPTS[1], max_tokens=150, ignore_eos=True), 0
                    signal.setitimer(signal.ITIMER_REAL, 0.001 + 0.02 * random.random())
                    while made.finish is None and raised < 2:
                        try:
                            for _ in made:
                                pass
                        except KeyboardInterrupt:
                            raised += 1
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    self.assertEqual((made.finish, made.ids), ("length", whole.ids))
        finally:
            signal.signal(signal.SIGALRM, alarm)

    def test_forks(self):
        """A child of this process has no engine, and its end is not the ranks'."""
        for fabric in ("threads", "processes"):
            with coterie.Engine(MODEL, ranks=2, fabric=fabric, progress=False) as engine:
                before = engine.generate("The", max_tokens=8)
                next(before)
                child = os.fork()
                if not child:
                    refused = 0
                    try:
                        engine.generate("The")
                    except ValueError:
                        refused = 1
                    before.close()
                    engine.close()
                    os._exit(refused)
                self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 1)
                list(before)
                self.assertEqual(before.finish, "length")

    def test_deaths(self):
        """An engine of which a rank has died says so, and can be closed."""
        with coterie.Engine(MODEL, ranks=2, fabric="processes", progress=False) as engine:
            made = engine.generate("The", max_tokens=100)
            next(made)
            ranks = children()
            self.assertEqual(len(ranks), 1)
            os.kill(ranks[0], signal.SIGKILL)
            with self.assertRaisesRegex(coterie.Error, "rank 1 was killed"):
                list(made)
        self.assertEqual(made.finish, "cancelled")
        self.assertIn("closed", repr(engine))

    def test_threads(self):
        """A text that another thread forgets is ended by the engine's; two at once are refused."""
        with coterie.Engine(MODEL, kv_tokens=512, sequences=2, progress=False) as engine:
            for _ in range(6):
                holder = [engine.generate("The", max_tokens=200)]
                next(holder[0])
                other = threading.Thread(target=holder.clear)
                other.start(), other.join()
            made = engine.generate("The", max_tokens=30, ignore_eos=True)
            list(made)
            self.assertEqual(len(made.ids), 30)
            slow, refused = engine.generate("The", max_tokens=150, ignore_eos=True), []

            def use():
                try:
                    list(slow)
                except RuntimeError as error:
                    refused.append(str(error))

            both = [threading.Thread(target=use) for _ in range(2)]
            for one in both:
                one.start()
            for one in both:
                one.join()
            list(slow)
            self.assertEqual(len(slow.ids), 150)
            self.assertTrue(all("another thread" in words for words in refused), refused)

    def test_refusals(self):
        with coterie.Engine(MODEL, progress=False) as engine:
            nothing = engine.generate("a", max_tokens=0)
            self.assertEqual((list(nothing), nothing.finish), ([], "length"))
            for prompt, options, kind, words in (
                ("", {}, ValueError, "empty"),
                ([], {}, ValueError, "empty"),
                ([10**6], {}, ValueError, "vocabulary"),
                ([2**40], {}, ValueError, "prompt is"),
                ([0.5], {}, TypeError, "token ids"),
                ("a", {"temperature": -1}, ValueError, "temperature"),
                ("a", {"top_k": 1.5}, TypeError, "top_k"),
                ("a", {"stop": [""]}, ValueError, "stop"),
                ("a", {"stop": ["a\0b"]}, ValueError, "NUL"),
                ("a", {"stop": [1]}, TypeError, "stop is 1"),
                (b"abc", {}, TypeError, "bytes"),
                ([[1, 2, 3]], {}, ValueError, "shape"),
                ([[], []], {}, ValueError, "shape"),
                ("a", {"max_tokens": -1}, ValueError, "max_tokens"),
                ("word " * 5000, {}, coterie.Error, "context"),
            ):
                with self.assertRaisesRegex(kind, words, msg=(prompt[:9], options)):
                    engine.generate(prompt, **options)
        for options, words in (({"ranks": 65}, "ranks"), ({"precision": "fp8"}, "fp8"), ({"fabric": "x"}, "'x'"),
                               ({"pipeline": "x"}, "unknown pipeline 'x'"),
                               ({"collective": "tree"}, "unknown collective 'tree'"),
                               ({"a2a": "x"}, "unknown a2a 'x'"), ({"op": "fused", "dedup": "off"}, "dedup off"),
                               ({"op": "fused", "sms_reserve": 2}, "'fused' runs on no device that could leave 2 multiprocessors"),
                               ({"sms_reserve": 4097}, "multiprocessors in reserve 4097 is not in"),
                               ({"predict": "token-table", "attention": "dp"}, "of attention tp"),
                               ({"sequence_tokens": 513}, "max model length 513 is not in"), ({"sequence_tokens": -1}, "sequence_tokens is -1"),
                               ({"placement": numpy.zeros((2, 32), int)}, "placement")):  # fmt: skip
            self.assertRaisesRegex(ValueError, words, coterie.Engine, MODEL, **options)
        self.assertRaises(coterie.Error, coterie.Engine, "/nowhere")
        self.assertRaisesRegex(coterie.Error, "/nowhere", coterie.Engine, MODEL, tables="/nowhere")


class Shown(unittest.TestCase):
    def test_results(self):
        """What is printed names what matters, in notebooks as a table."""
        placement = coterie.place(numpy.arange(1, 25).reshape(3, 8), "complete:ranks=4,gpus=1")
        self.assertRegex(repr(placement), r"^Placement\(layers 3, experts 8, ranks 4, slots a rank 2, objective [\d,.]+, ")
        self.assertRegex(placement._repr_html_(), "<table>.*<th[^>]*>objective</th><td>[0-9,.]+</td>.*</table>")
        with coterie.Engine(MODEL, ranks=2, progress=False) as engine:
            self.assertRegex(repr(engine), r"^Engine\(Qwen3MoeForCausalLM, 6 layers, 32 experts, top 4, 2 ranks, ")
        trace = coterie.Trace(numpy.zeros((1, 3, 1), int), n_experts=2, model="<b>")
        self.assertIn("tokens 3", repr(trace))
        self.assertIn("&lt;b&gt;", trace._repr_html_())


if __name__ == "__main__":
    print("seed", SEED)
    unittest.main()
