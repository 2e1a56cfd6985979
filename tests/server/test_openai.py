"""What users' code does: the openai client, synchronous and not, against `coterie serve`.

The client comes from the package index into a virtual environment under COT_BUILD; without an index the test is skipped,
loudly."""

import asyncio
import os
import subprocess
import sys
import typing
import unittest

from pypi import need

CLIENT = "openai==1.109.1"


if __name__ == "__main__" and "COT_IN_VENV" not in os.environ:
    python = need("openai", CLIENT)
    os.execve(python, [python, "-B", __file__, *sys.argv[1:]], os.environ | {"COT_IN_VENV": "1"})

import openai  # noqa: E402
import pydantic  # noqa: E402
from serving import SOURCE, Server  # noqa: E402

CHAT = [{"role": "user", "content": "What is 2 + 3?"}]
GREEDY = {"model": "tiny", "temperature": 0, "max_tokens": 10}


class OpenAI(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--ranks", 2, "--max-num-seqs", 8, "--api-key", "sk-test").__enter__()
        cls.url = f"http://127.0.0.1:{cls.server.port}/v1"
        cls.client = openai.OpenAI(base_url=cls.url, api_key="sk-test", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.__exit__(None, None, None)

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], ["tiny"])
        self.assertEqual(self.client.models.retrieve("tiny").owned_by, "coterie")

    def test_chat(self):
        whole = self.client.chat.completions.create(messages=CHAT, **GREEDY)
        self.assertEqual(whole.choices[0].message.role, "assistant")
        self.assertEqual(whole.usage.completion_tokens, 10)
        chunks = list(self.client.chat.completions.create(messages=CHAT, stream=True, stream_options={"include_usage": True}, **GREEDY))
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(chunks[-1].usage.total_tokens, whole.usage.total_tokens)
        self.assertEqual([c.choices[0].finish_reason for c in chunks[:-1]], [None] * 9 + ["length"])

    def test_parse(self):
        """A text as an object of the user's class, whole and streamed."""

        class Person(pydantic.BaseModel):
            name: typing.Literal["Ann", "Bob"]
            age: int = pydantic.Field(ge=0, le=99)

        asked = {"model": "tiny", "messages": CHAT, "response_format": Person, "max_tokens": 100, "temperature": 0}
        try:
            person = self.client.chat.completions.parse(**asked).choices[0].message.parsed
        except openai.BadRequestError as error:
            if "get-llguidance" not in str(error):
                raise
            self.skipTest(print(f"SKIPPED: {error}", file=sys.stderr) or "no llguidance")
        self.assertIsInstance(person, Person)
        with self.client.chat.completions.stream(**asked) as stream:
            for _ in stream:
                pass
            self.assertEqual(stream.get_final_completion().choices[0].message.parsed, person)

    def test_tools(self):
        """The guide's loop, which calls a tool and asks again."""
        with Server("--chat-template", SOURCE / "examples/tools.jinja") as server:
            url = f"http://127.0.0.1:{server.port}/v1"
            run = subprocess.run([sys.executable, SOURCE / "examples/tool_loop.py", url], capture_output=True, text=True, timeout=120)
        if "get-llguidance" in run.stderr:
            self.skipTest(print(f"SKIPPED: {run.stderr.splitlines()[-1]}", file=sys.stderr) or "no llguidance")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(run.stdout, "^called tide {'port': '(Brest|Hobart)', 'day': [0-9]+, 'high_water': '06:12'}\n")

    def test_stream_helper(self):
        """The client's own accumulation of events into a message."""
        text = self.client.chat.completions.create(messages=CHAT, **GREEDY).choices[0].message.content
        ended = GREEDY | {"stop": text[-2:]}  # the helper takes a text that was cut for an error
        with self.client.chat.completions.stream(messages=CHAT, **ended) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion()
        whole = self.client.chat.completions.create(messages=CHAT, **ended)
        self.assertEqual(final.choices[0].finish_reason, "stop")
        self.assertEqual(final.choices[0].message.content, whole.choices[0].message.content)

    def test_completions(self):
        answer = self.client.completions.create(prompt=["One", "Two"], n=2, seed=5, model="tiny", max_tokens=6, temperature=1, logprobs=2)
        self.assertEqual([c.index for c in answer.choices], [0, 1, 2, 3])
        for choice in answer.choices:
            self.assertEqual("".join(choice.logprobs.tokens), choice.text)
            self.assertEqual(len(choice.logprobs.token_logprobs), 6)
        chunks = list(self.client.completions.create(prompt="One", n=2, seed=5, model="tiny", max_tokens=6, temperature=1, stream=True))
        for i in range(2):
            text = "".join(c.choices[0].text for c in chunks if c.choices[0].index == i)
            self.assertEqual(text, answer.choices[i].text)

    def test_logprobs(self):
        answer = self.client.chat.completions.create(messages=CHAT, logprobs=True, top_logprobs=3, **GREEDY)
        content = answer.choices[0].logprobs.content
        self.assertEqual("".join(t.token for t in content), answer.choices[0].message.content)
        self.assertTrue(all(t.logprob == t.top_logprobs[0].logprob and len(t.top_logprobs) == 3 for t in content))

    def test_extras(self):
        """What vLLM's users send beside OpenAI's fields."""
        extra = {"top_k": 5, "min_p": 0.01, "repetition_penalty": 1.1, "ignore_eos": True, "min_tokens": 10, "return_token_ids": True}
        answer = self.client.chat.completions.create(messages=CHAT, seed=1, model="tiny", max_tokens=10, extra_body=extra)
        self.assertEqual(len(answer.choices[0].token_ids), 10)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(messages=CHAT, model="tiny", max_tokens=100_000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(messages=CHAT, model="other")
        with self.assertRaises(openai.BadRequestError):  # the template has no format for calls
            self.client.chat.completions.create(messages=CHAT, model="tiny", tools=[{"type": "function", "function": {"name": "f"}}])
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.url, api_key="sk-wrong", max_retries=0).models.list()

    def test_leaving_a_stream(self):
        stream = self.client.completions.create(prompt="x", model="tiny", max_tokens=500, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.assertEqual(self.client.completions.create(prompt="x", **GREEDY).usage.completion_tokens, 10)

    def test_async(self):
        async def all_at_once():
            async with openai.AsyncOpenAI(base_url=self.url, api_key="sk-test", max_retries=0) as client:
                create = client.chat.completions.create
                answers = await asyncio.gather(*(create(messages=CHAT, seed=i, model="tiny", max_tokens=12) for i in range(16)))
                streamed = []
                for i in range(3):
                    parts = [c.choices[0].delta.content or "" async for c in await create(messages=CHAT, seed=i, model="tiny", max_tokens=12, stream=True)]
                    streamed.append("".join(parts))
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(create(messages=CHAT, model="tiny", max_tokens=400, n=16, extra_body={"ignore_eos": True}), 0.05)
                return [a.choices[0].message.content for a in answers], streamed

        answers, streamed = asyncio.run(all_at_once())
        self.assertEqual(answers[:3], streamed)

    def test_retries(self):
        """The client comes again where it is told to, and is served then."""
        with Server("--max-num-seqs", 1, "--max-queue", 1) as server:
            async def crowd():
                async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=50) as client:
                    create = client.completions.create
                    return await asyncio.gather(*(create(prompt="x", model="tiny", max_tokens=60, extra_body={"ignore_eos": True}) for _ in range(6)))

            self.assertEqual([a.usage.completion_tokens for a in asyncio.run(crowd())], [60] * 6)


if __name__ == "__main__":
    unittest.main()
