"""The requests of `vllm bench serve`, by a client of its own: what that load generator sends for its backends `openai` and
`openai-chat`, and what it reckons from the answers. Its token count is the number of events where a server tells no
usage, so there must be exactly one event a token."""

import concurrent.futures
import contextlib
import json
import random
import time
import unittest

from serving import Server, seed

REQUESTS, STREAMS = 96, 12


def body_of_completion(prompt, tokens, ignore_eos):
    """Backend openai: /v1/completions."""
    body = {"model": "tiny", "prompt": prompt, "temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": tokens}
    body |= {"logprobs": None, "stream": True, "stream_options": {"include_usage": True}}
    return body | ({"ignore_eos": True} if ignore_eos else {})


def body_of_chat(prompt, tokens, ignore_eos):
    """Backend openai-chat: /v1/chat/completions, the text as one part of a message."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": [{"type": "text", "text": prompt}]}]}
    body |= {"temperature": 0.0, "max_completion_tokens": tokens, "stream": True, "stream_options": {"include_usage": True}}
    return body | ({"ignore_eos": True} if ignore_eos else {})


class Load:
    """One run: requests from as many threads as there are streams; each answer read line by line, as it comes."""

    def __init__(self, server, path, bodies):
        self.server, self.path = server, path
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            self.answers = list(pool.map(self.ask, range(len(bodies)), bodies))

    def ask(self, number, body):
        with contextlib.closing(self.server.connect()) as connection:
            headers = {"Content-Type": "application/json", "Authorization": "Bearer EMPTY", "x-request-id": f"bench-{number}"}
            begin = last = time.perf_counter()
            connection.request("POST", self.path, json.dumps(body).encode(), headers)
            reply = connection.getresponse()
            assert reply.status == 200, (reply.status, reply.read())
            answer = {"id": reply.headers["x-request-id"], "ttft": None, "itl": [], "texts": [], "usage": None, "ended": False}
            for line in reply:
                line = line.strip()
                if not line or line.startswith(b":"):
                    continue
                assert line.startswith(b"data: "), line
                assert not answer["ended"], line
                if line == b"data: [DONE]":
                    answer["ended"] = True
                    continue
                event, now = json.loads(line[6:]), time.perf_counter()
                if event["choices"]:
                    choice = event["choices"][0]
                    answer["texts"].append(choice["text"] if "text" in choice else choice["delta"].get("content") or "")
                    if answer["ttft"] is None:
                        answer["ttft"] = now - begin
                    else:
                        answer["itl"].append(now - last)
                    last = now
                else:  # usage comes alone, after all choices
                    assert answer["usage"] is None
                    answer["usage"] = event["usage"]
            answer["latency"] = last - begin
            return answer


class VllmBenchServe(unittest.TestCase):
    def setUp(self):
        self.draw = random.Random(seed())
        words = "a farmer has 12 hens each hen lays eggs who sells them in town for 3 coins naïve 東京".split()
        self.prompts = [" ".join(self.draw.choices(words, k=self.draw.randint(1, 40))) for _ in range(REQUESTS)]
        self.lengths = [self.draw.randint(1, 60) for _ in range(REQUESTS)]

    def complete_run(self, path, make, ignore_eos):
        bodies = [make(prompt, tokens, ignore_eos) for prompt, tokens in zip(self.prompts, self.lengths)]
        with Server("--ranks", 2, "--max-num-seqs", 8) as server:
            self.assertEqual(json.loads(server.get("/v1/models")[1])["data"][0]["id"], "tiny")
            run = Load(server, path, bodies)
            counts = []
            for number, (answer, prompt, tokens) in enumerate(zip(run.answers, self.prompts, self.lengths)):
                usage = answer["usage"]
                counts.append(usage["completion_tokens"])
                self.assertEqual((answer["id"], answer["ended"]), (f"bench-{number}", True))
                self.assertEqual(len(answer["texts"]), usage["completion_tokens"])  # one event a token
                self.assertEqual(len(answer["itl"]), usage["completion_tokens"] - 1)
                self.assertTrue(0 < answer["ttft"] <= answer["latency"])
                self.assertAlmostEqual(answer["ttft"] + sum(answer["itl"]), answer["latency"])
                self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
                given = {"prompt": prompt} if path == "/v1/completions" else {"messages": [{"role": "user", "content": prompt}]}
                self.assertEqual(usage["prompt_tokens"], server.post("/tokenize", given)[1]["count"])
                if ignore_eos:
                    self.assertEqual(usage["completion_tokens"], tokens)
                else:
                    self.assertTrue(1 <= usage["completion_tokens"] <= tokens)
            self.assertEqual(server.metric("vllm:generation_tokens_total"), sum(counts))
            self.assertEqual(server.metric("vllm:prompt_tokens_total"), sum(a["usage"]["prompt_tokens"] for a in run.answers))
            ends = ("length",) if ignore_eos else ("length", "stop")
            self.assertEqual(sum(server.metric("vllm:request_success_total", finished_reason=e) for e in ends), REQUESTS)
            # the text is that of the same request unstreamed
            for number in self.draw.sample(range(REQUESTS), 5):
                plain = {k: v for k, v in bodies[number].items() if not k.startswith("stream")}
                choice = server.post(path, plain)[1]["choices"][0]
                whole = choice["text"] if "text" in choice else choice["message"]["content"]
                self.assertEqual("".join(run.answers[number]["texts"]), whole)

    def test_completions(self):
        for ignore_eos in (True, False):
            self.complete_run("/v1/completions", body_of_completion, ignore_eos)

    def test_chat(self):
        for ignore_eos in (True, False):
            self.complete_run("/v1/chat/completions", body_of_chat, ignore_eos)


if __name__ == "__main__":
    unittest.main()
