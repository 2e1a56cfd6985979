"""Strict tools under `auto` over HTTP: text is free, and a call that has begun keeps to its schema. Needs llguidance (tools/get-llguidance)."""

import json
import unittest

from serving import SOURCE, Constrained

SCHEMA = {"type": "object", "properties": {"port": {"enum": ["Brest", "Ys"]}, "day": {"type": "integer", "minimum": 0, "maximum": 9}},
          "required": ["port", "day"], "additionalProperties": False, "x-guidance": {"whitespace_flexible": False}}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "tide", "strict": True, "parameters": SCHEMA}}]
ASK = {"messages": [{"role": "user", "content": "When?"}], "tools": TOOLS, "max_tokens": 300, "seed": 1}


class Strict(Constrained):
    options = ("--chat-template", SOURCE / "examples/tools.jinja", "--reasoning-parser", "think")

    def begun(self, text, **fields):
        """What goes on behind a text."""
        status, ids = self.server.post("/tokenize", {"prompt": text, "add_special_tokens": False})
        self.assertEqual(status, 200)
        status, answer = self.server.post("/v1/chat/completions", ASK | {"continue_token_ids": [ids["tokens"]]} | fields)
        self.assertEqual(status, 200, answer)
        return answer["choices"][0]

    def test_calls_keep_to_the_schema(self):
        for text, there in (("<tool_call>", ""), ('I look. <tool_call>\n{"name": "', ""), ('<tool_call>{"name": "tide", "arguments": {"port":"', '{"port":"')):
            for seed in range(4):
                choice = self.begun(text, seed=seed, temperature=1.5, logit_bias={"93": 5})
                arguments = json.loads(there + choice["message"]["tool_calls"][0]["function"]["arguments"])
                self.assertEqual(list(arguments), ["port", "day"])
                self.assertIn(arguments["port"], ["Brest", "Ys"])
                self.assertIn(arguments["day"], range(10))

    def test_text_is_free(self):
        """Where no call begins the tokens are those of a request whose tools are not strict."""
        loose = [{"type": "function", "function": {"name": "tide", "parameters": SCHEMA}}]
        fields = {"max_tokens": 30, "return_token_ids": True, "temperature": 0}
        for text in ("", "<think>so", "We <tool"):
            answers = [self.begun(text, tools=tools, **fields) for tools in (TOOLS, loose)] if text else [
                self.server.post("/v1/chat/completions", ASK | fields | {"tools": tools})[1]["choices"][0] for tools in (TOOLS, loose)]  # fmt: skip
            self.assertEqual(answers[0]["token_ids"], answers[1]["token_ids"])

    def test_refused(self):
        """A schema that nothing meets, or that the library does not take, is refused by the field's name; not where the tool is not strict."""
        for schema in ({"type": "object", "properties": {"a": {"not": {}}}, "required": ["a"]}, {"type": "object", "properties": {"a": False}, "required": ["a"]}):
            for strict, wanted in ((True, 400), (False, 200)):
                tools = [{"type": "function", "function": {"name": "tide", "strict": strict, "parameters": schema}}]
                status, answer = self.server.post("/v1/chat/completions", ASK | {"tools": tools, "max_tokens": 3})
                self.assertEqual(status, wanted, answer)
                if wanted == 400:
                    self.assertIn("'tools'", answer["error"]["message"])
        # where something else is asked of the text, that alone may come, and no call
        status, answer = self.server.post("/v1/chat/completions", ASK | {"structured_outputs": {"choice": ["yes"]}})
        self.assertEqual((status, answer["choices"][0]["message"]["content"]), (200, "yes"))


if __name__ == "__main__":
    unittest.main()
