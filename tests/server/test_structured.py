"""Structured output: texts keep to what a request says, under every name that clients have for it, and what cannot be met is refused.

Needs llguidance (tools/get-llguidance); of the tests some run without it."""

import json
import os
import pathlib
import re
import sys
import threading
import time
import unittest

from serving import MODEL, SOURCE, Constrained, Server, mock, run, temporary, texts

GOLDEN = pathlib.Path(os.environ["COT_SHARED"]) / "golden/agents/schemas.jsonl"
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
          "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}}, "required": ["name", "age", "tags"],
          "additionalProperties": False}  # fmt: skip
HOT = {"temperature": 1, "max_tokens": 400, "seed": 3}


def is_person(text):
    value = json.loads(text)
    return (list(value) == ["name", "age", "tags"] and isinstance(value["name"], str) and len(value["name"]) <= 8 and type(value["age"]) is int
            and 0 <= value["age"] <= 120 and len(value["tags"]) <= 2 and set(value["tags"]) <= {"a", "b"})  # fmt: skip


def matches(pattern):
    return lambda text: re.fullmatch(pattern, text)


def is_object(text):
    return isinstance(json.loads(text), dict)


SUM = 'start: term ("+" | "-") term\nterm: /[0-9]{1,3}/ | "(" /[0-9]/ ")"'
WAYS = [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}}, is_person),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}}, is_person),
    ({"response_format": {"type": "json_schema", "schema": PERSON}}, is_person),
    ({"response_format": {"type": "json_object", "schema": PERSON}}, is_person),
    ({"response_format": {"type": "json_object"}}, is_object),
    ({"structured_outputs": {"json": PERSON}}, is_person),
    ({"structured_outputs": {"json": json.dumps(PERSON)}}, is_person),
    ({"structured_outputs": {"regex": "[0-9]{3}-[a-f]{2}", "choice": None}}, matches("[0-9]{3}-[a-f]{2}")),
    ({"structured_outputs": {"choice": ["red", "green \"x\""], "disable_fallback": True}}, matches('red|green "x"')),
    ({"structured_outputs": {"grammar": SUM}}, matches(r"(\d{1,3}|\(\d\))[+-](\d{1,3}|\(\d\))")),
    ({"structured_outputs": {"json_object": True}}, is_object),
    ({"guided_json": PERSON, "guided_decoding_backend": "xgrammar"}, is_person),
    ({"guided_json": json.dumps(PERSON)}, is_person),
    ({"guided_regex": "(ab){2,4}"}, matches("(ab){2,4}")),
    ({"guided_choice": ["yes", "no"]}, matches("yes|no")),
    ({"guided_grammar": SUM}, matches(r"(\d{1,3}|\(\d\))[+-](\d{1,3}|\(\d\))")),
    ({"regex": "x{3}y?"}, matches("x{3}y?")),
    ({"json_schema": json.dumps(PERSON)}, is_person),
    ({"json_schema": PERSON}, is_person),
    ({"ebnf": SUM}, matches(r"(\d{1,3}|\(\d\))[+-](\d{1,3}|\(\d\))")),
    ({"grammar": SUM}, matches(r"(\d{1,3}|\(\d\))[+-](\d{1,3}|\(\d\))")),
]


class Structured(Constrained):
    def ended(self, body, path="/v1/completions"):
        """The texts of the choices that ended by themselves."""
        status, answer = self.server.post(path, body)
        self.assertEqual(status, 200, answer)
        return [c["text"] if "text" in c else c["message"]["content"] for c in answer["choices"] if c["finish_reason"] == "stop"]

    def test_every_name(self):
        paths = ("/v1/completions", {"prompt": "It is"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
        for i, (said, check) in enumerate(WAYS):
            with self.subTest(said=str(said)[:60]):
                path, prompt = paths[i % 2]
                got = self.ended(HOT | prompt | said | {"n": 3}, path)
                self.assertGreaterEqual(len(got), 2)
                for text in got:
                    self.assertTrue(check(text), text)

    def test_text_is_no_constraint(self):
        free = self.server.complete("x", **HOT)
        for said in ({"response_format": {"type": "text"}}, {"response_format": None}, {"structured_outputs": None}, {"guided_json": None}, {"grammar": ""}, {"guided_regex": ""}):
            self.assertEqual(texts(self.server.complete("x", **HOT, **said)), texts(free))

    def test_an_empty_schema_is_any_json(self):
        """Under every name, as an object and as a text; llama.cpp's and SGLang's too."""
        ways = [{"json_schema": {}}, {"json_schema": "{}"}, {"guided_json": {}}, {"guided_json": "{}"}, {"structured_outputs": {"json": {}}},
                {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}}, {"response_format": {"type": "json_schema", "schema": {}}}]  # fmt: skip
        body = {"prompt": "It is"} | HOT
        expected = texts(self.server.complete(**body, **ways[1]))
        self.assertNotEqual(expected, texts(self.server.complete(**body)))
        json.loads(expected[0])
        for said in ways:
            with self.subTest(said=str(said)):
                self.assertEqual(texts(self.server.complete(**body, **said)), expected)

    def test_streams_and_continued(self):
        body = {"prompt": "It is", "guided_json": PERSON, "return_token_ids": True} | HOT
        [whole] = self.server.complete(**body)["choices"]
        events = self.server.events("/v1/completions", body)
        self.assertEqual("".join(e["choices"][0]["text"] for e in events[:-1]), whole["text"])
        ids = whole["token_ids"]
        for cut in (1, len(ids) // 2, len(ids) - 1):
            rest = self.server.complete(**body, continue_token_ids=[ids[:cut]])["choices"][0]
            self.assertEqual(rest["token_ids"], ids[cut:])
            self.assertTrue(whole["text"].endswith(rest["text"]))
        status, answer = self.server.post("/v1/completions", body | {"continue_token_ids": [[5]]})  # no JSON begins so
        self.assertEqual((status, answer["error"]["param"]), (400, "guided_json"))

    def test_company(self):
        """Others' texts are what they are alone."""
        free = {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0}
        alone = self.server.complete(**free)["choices"][0]["text"]
        threads = [threading.Thread(target=self.server.complete, kwargs={"prompt": "It is", "guided_json": PERSON} | HOT | {"seed": i}) for i in range(6)]
        for thread in threads:
            thread.start()
        self.assertEqual(self.server.complete(**free)["choices"][0]["text"], alone)
        for thread in threads:
            thread.join()

    def test_refused(self):
        chat = {"type": "json_schema", "json_schema": {"name": "x"}}
        nested = '{"items":' * 10_000 + "{}" + "}" * 10_000
        table = [
            ({"response_format": chat}, "response_format", "no schema"),
            ({"response_format": {"type": "grammar", "grammar": "x"}}, "response_format", "'grammar'"),
            ({"response_format": {"x": 1}}, "response_format", "'type'"),
            ({"response_format": "json"}, "response_format", "an object"),
            ({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}, "response_format", "a JSON schema"),
            ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex", "exclude"),
            ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs", "'regex' and 'json' in 'structured_outputs' exclude"),
            ({"regex": "a", "structured_outputs": {"json": {}}}, "regex", "'structured_outputs' and 'regex' exclude"),
            ({"structured_outputs": {"regex": 5}}, "structured_outputs", "a string"),
            ({"structured_outputs": {"choice": "a"}}, "structured_outputs", "a list"),
            ({"structured_outputs": {"json": None}}, "structured_outputs", "nothing that is known"),
            ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs", "structural_tag"),
            ({"structured_outputs": {"regex": "a", "whitespace_pattern": "x"}}, "structured_outputs", "whitespace_pattern"),
            ({"guided_whitespace_pattern": "x"}, "guided_whitespace_pattern", "not supported"),
            ({"structural_tag": "x"}, "structural_tag", "not supported"),
            ({"guided_choice": [1]}, "guided_choice", "a list of strings"),
            ({"guided_choice": []}, "guided_choice", "at least one"),
            ({"guided_regex": "("}, "guided_regex", "regex parse error: unclosed group"),
            ({"guided_regex": "a\0"}, "guided_regex", "U+0000"),
            ({"guided_grammar": "start: nothing"}, "guided_grammar", "nothing"),
            ({"grammar": 'root ::= "a"'}, "grammar", "GBNF"),
            ({"ebnf": 'root ::= "a"'}, "ebnf", "GBNF"),
            ({"guided_json": "{"}, "guided_json", "no JSON"),
            ({"guided_json": nested}, "guided_json", "deeper than 64"),
            ({"guided_json": '{"enum": ["' + "x" * 10_000_000 + '"]}'}, "guided_json", "at most 1048576"),
            ({"guided_json": {"$ref": "#/$defs/nope"}}, "guided_json", "nope"),
            ({"guided_json": {"$ref": "https://example.invalid/x.json"}}, "guided_json", "example.invalid"),
            ({"guided_json": {"not": {}}}, "guided_json", "not"),
            ({"guided_json": {"$ref": "#"}}, "guided_json", "without an end"),
            ({"guided_json": {"type": "array", "items": {"$ref": "#"}, "minItems": 1}}, "guided_json", "without an end"),
            ({"guided_grammar": "start: start"}, "guided_grammar", "nothing can meet"),
            ({"guided_grammar": "start: " + " | ".join(f'"{i} word"' for i in range(3000))}, "guided_grammar", "too large"),
            ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": "yes"}}}, "response_format", "'strict'"),
            ({"response_format": {"type": "json_schema", "schema": {}, "strict": 1}}, "response_format", "'strict'"),
            ({"guided_json": {"type": "string", "minLength": 5, "maxLength": 3}}, "guided_json", "Unsatisfiable"),
        ]
        for said, param, word in table:
            with self.subTest(said=str(said)[:60]):
                status, answer = self.server.post("/v1/completions", {"prompt": "x"} | said)
                self.assertEqual((status, answer["error"]["param"]), (400, param), answer)
                self.assertIn(word, answer["error"]["message"])
                self.assertNotIn("\n", answer["error"]["message"])

    def test_bounded(self):
        """What loops or explodes costs its own request, and not for long."""
        for said in ({"guided_json": {"$ref": "#"}}, {"guided_json": {"type": "array", "items": {"$ref": "#"}, "minItems": 1}},
                     {"guided_json": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}},
                     {"guided_regex": "(a|a)*(a|a)*b" * 50}, {"guided_regex": "(x{1,1000}){1,1000}"}, {"guided_regex": "(.*)*y{500}"},
                     {"guided_json": {"enum": ["x" * i for i in range(1200)]}}):  # fmt: skip
            with self.subTest(said=str(said)[:60]):
                began = time.monotonic()
                status, answer = self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 12} | said)
                self.assertIn(status, (200, 400), answer)
                self.assertLess(time.monotonic() - began, 60)  # of a machine with much else to do
                self.assertEqual(len(self.server.complete("x", max_tokens=3)["choices"]), 1)

    def test_many_choices(self):
        """Thousands, of which some begin others, and of characters that mean something elsewhere."""
        choices = [f"{i % 7}|{i} \"/.*\\n\n(é" + "[" * (i % 3) for i in range(5000)] + ["0", ""]
        status, answer = self.server.post("/v1/completions", HOT | {"prompt": "x", "guided_choice": choices, "n": 4})
        self.assertEqual(status, 200, answer)
        ended = [c["text"] for c in answer["choices"] if c["finish_reason"] == "stop"]
        self.assertGreaterEqual(len(ended), 3)
        self.assertLessEqual(set(ended), set(choices))

    def test_others_do_not_wait(self):
        """While three compile for long one that is soon compiled is answered before most of them."""
        words = [f"{i * 2654435761 % 2**32:08x}" * 5 for i in range(20000)]
        ended, begun = [], threading.Barrier(4)

        def long():
            begun.wait()
            ended.append(self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "guided_choice": words})[0])

        threads = [threading.Thread(target=long) for _ in range(3)]
        for thread in threads:
            thread.start()
        begun.wait()
        time.sleep(0.3)  # they are being compiled
        self.assertEqual(self.server.complete("x", max_tokens=2, guided_choice=["a"])["choices"][0]["text"], "a")
        self.assertLess(len(ended), 2)
        for thread in threads:
            thread.join()
        self.assertEqual(len(ended), 3)

    def test_golden(self):
        """Schemas of all kinds: what ends by itself is valid. Where jsonschema is at hand it is the judge."""
        if not GOLDEN.exists():
            self.skipTest(print(f"SKIPPED: no {GOLDEN}", file=sys.stderr) or "no golden schemas")
        try:
            from jsonschema import Draft202012Validator as Validator
        except ImportError:
            Validator = None
        rows = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").split("\n") if line]
        rows = [row for row in rows if row["llguidance"] == "same"][:: int(os.environ.get("COT_EVERY", 8))]
        done, lock = [], threading.Lock()
        ends = [self.server.post("/tokenize", {"prompt": text})[1]["tokens"][0] for text in '"}]']
        bias = {"0": 100} | {str(id): 6 for id in ends}

        def work(mine):
            for row in mine:
                body = {"prompt": "It is", "guided_json": row["schema"], "logit_bias": bias} | HOT | {"seed": len(row["id"])}
                got = self.server.post("/v1/completions", body)
                with lock:
                    done.append((row, got))

        threads = [threading.Thread(target=work, args=(rows[i::8],)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ended = several = 0
        for row, (status, answer) in done:
            self.assertEqual(status, 200, (row["id"], answer))
            [choice] = answer["choices"]
            if choice["finish_reason"] != "stop":
                continue
            ended += 1
            names = []  # of each object: llguidance lets a name that the schema does not list come twice, as JSON does
            value = json.loads(choice["text"], object_pairs_hook=lambda pairs: names.append([name for name, _ in pairs]) or dict(pairs))
            twice = any(len(set(some)) < len(some) for some in names)
            several += twice
            if Validator and not twice:
                Validator(row["schema"]).validate(value)
        self.assertEqual(len(done), len(rows))
        self.assertGreaterEqual(ended, 0.8 * len(rows))
        self.assertLessEqual(several, 0.1 * len(rows))
        print(f"{ended} of {len(rows)} schemas' texts ended, {several} with a name twice, {'judged by jsonschema' if Validator else 'read as JSON, without jsonschema'}", file=sys.stderr)


class Commands(unittest.TestCase):
    def test_run(self):
        """`coterie run --json-schema`: each text is JSON of the schema, on ranks that are processes too."""
        with temporary() as folder:
            schema = pathlib.Path(folder) / "schema.json"
            schema.write_text(json.dumps(PERSON))
            command = "run", MODEL, "-p", "It is", "-p", "The", "--temperature", 1, "-n", 400, "--json-schema", schema
            first = run(*command)
            if first.returncode and "get-llguidance" in first.stderr:
                self.skipTest(print("SKIPPED:", first.stderr, file=sys.stderr) or "no llguidance")
            for more in (), ("--ranks", 2, "--attention", "dp", "--fabric", "processes"):
                done = run(*command, *more)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                for text in re.fullmatch("== 1 ==\n(.*)\n== 2 ==\n(.*)\n", done.stdout, re.S).groups():
                    self.assertTrue(is_person(text), text)
            schema.write_text('{"not": {}}')
            done = run(*command)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("--json-schema", done.stderr)
            done = run(*command[:-1], "/nowhere.json")
            self.assertEqual((done.returncode, done.stdout), (1, ""))
        done = run("run", MODEL, "-p", "x", "--json-schema", "-", input='{"type": "integer", "minimum": 7, "maximum": 7}')
        self.assertEqual((done.returncode, done.stdout), (0, "7\n"))


class Without(unittest.TestCase):
    def test_without_the_library(self):
        with Server(env={"COTERIE_LLGUIDANCE": "/nowhere/_lib.so"}) as server:
            for _ in range(2):
                status, answer = server.post("/v1/completions", {"prompt": "x", "regex": "a"})
                self.assertEqual((status, answer["error"]["param"], answer["error"]["code"]), (400, "regex", "unsupported_parameter"))
                self.assertIn("'tools/get-llguidance'", answer["error"]["message"])
                self.assertEqual(len(server.complete("x", max_tokens=3)["choices"]), 1)

    def test_without_the_library_beside_tools(self):
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
        strict = [{"type": "function", "function": tools[0]["function"] | {"strict": True}}]
        form = {"response_format": {"type": "json_object"}}
        with Server("--chat-template", SOURCE / "examples/tools.jinja", env={"COTERIE_LLGUIDANCE": "/nowhere/_lib.so"}) as server:
            for fields, param in ((form | {"tools": tools}, "response_format"), (form | {"tools": strict}, "response_format"), ({"tools": strict}, "tools")):
                status, answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]} | fields)
                self.assertEqual((status, answer["error"]["param"]), (400, param), answer)
                self.assertIn(f"'{param}': ", answer["error"]["message"])

    def test_gpt_oss_without_its_tokens(self):
        for option in ("--tool-call-parser", "--reasoning-parser"):
            done = run("serve", MODEL, "--port", 0, option, "gpt-oss")
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertIn("'gpt-oss' needs the token '<|start|>'", done.stderr)

    def test_mocks_refuse(self):
        with mock({}) as server:
            status, answer = server.post("/v1/completions", {"prompt": "x", "response_format": {"type": "json_object"}})
            self.assertEqual((status, answer["error"]["param"]), (400, "response_format"))
            self.assertIn("computes nothing", answer["error"]["message"])


if __name__ == "__main__":
    unittest.main()
