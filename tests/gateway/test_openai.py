"""What users' code does: the openai client streams through the router while the worker that answers is killed."""

import os
import sys
import unittest

import routing  # whose folder of helpers pypi.py is in
from pypi import need

CLIENT = "openai==1.109.1"


if __name__ == "__main__" and "COT_IN_VENV" not in os.environ:
    python = need("openai", CLIENT)
    os.execve(python, [python, "-B", __file__, *sys.argv[1:]], os.environ | {"COT_IN_VENV": "1"})

import openai  # noqa: E402


class OpenAI(unittest.TestCase):
    def test_kill(self):
        chat = {"model": "mock", "messages": [{"role": "user", "content": "count to ten"}], "max_tokens": 60, "temperature": 0}
        with routing.mocks(2, {"ttft_ms": 1, "tpot_ms": 10}) as servers, routing.Router(servers) as router:
            with openai.OpenAI(base_url=f"{routing.url(router)}/v1", api_key="none", max_retries=0) as client:
                whole = client.chat.completions.create(**chat).choices[0]
                text, ids, roles, busy = "", set(), 0, None
                for count, chunk in enumerate(client.chat.completions.create(**chat, stream=True)):
                    ids.add(chunk.id)
                    text += chunk.choices[0].delta.content or ""
                    roles += chunk.choices[0].delta.role is not None
                    if count == 10:
                        (busy,) = (w["name"] for w in router.workers() if w["running"])
                        routing.kill(routing.serves(servers, busy))
                self.assertEqual((text, len(ids), roles, chunk.choices[0].finish_reason), (whole.message.content, 1, 1, "length"))
                self.assertEqual(router.figure("coterie:router_resumptions_total"), 1)
                with self.assertRaises(openai.BadRequestError):
                    client.chat.completions.create(**chat | {"max_tokens": -1})


if __name__ == "__main__":
    unittest.main()
