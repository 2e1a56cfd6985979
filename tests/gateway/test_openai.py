"""What users' code does: the openai client streams through the router while the worker that answers is killed."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

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

    def test_docs(self):
        """The first commands of docs/ROUTER.md, on other ports, and what is said of them there."""
        source, program = pathlib.Path(os.environ["COT_SOURCE"]).resolve(), pathlib.Path(routing.PROGRAM).resolve()
        block = re.search(r"\n\n((?: {4}.*\n)+)", (source / "docs/ROUTER.md").read_text())[1]
        first = routing.free_ports(20)
        moved = {"800": first, "555": first + 5, "556": first + 10, "557": first + 15}  # and the number behind
        script = re.sub(r"\b(\d{3})\$i\b", lambda port: f"$(({moved[port[1]]} + i))", block)
        script = re.sub(r"\b800(\d)\b", lambda port: str(first + int(port[1])), script)
        self.assertNotRegex(script, r"\b(800|55\d)[\d$]")
        with tempfile.TemporaryFile("w+") as log:
            shell = subprocess.Popen(["bash", "-ec", script], cwd=source, stdout=log, stderr=log, start_new_session=True, env=os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"})
            try:
                self.stream_beside_death(first, lambda: shell.poll() is None)
            except BaseException:
                log.seek(0)
                print(log.read(), file=sys.stderr)
                raise
            finally:
                os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()

    def stream_beside_death(self, first, runs):
        def get(port, path):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=routing.SECONDS) as answer:
                return answer.read()

        def up():
            try:
                return sum(w["state"] == "up" for w in json.loads(get(first, "/workers"))["workers"])
            except urllib.error.URLError:
                return 0

        end = time.monotonic() + routing.SECONDS
        while up() < 4:
            self.assertTrue(runs() and time.monotonic() < end)
            time.sleep(0.1)
        chat = {"model": "tiny", "messages": [{"role": "user", "content": "count to ten"}], "max_tokens": 400, "temperature": 0, "extra_body": {"ignore_eos": True}}
        with openai.OpenAI(base_url=f"http://127.0.0.1:{first}/v1", api_key="none", max_retries=0) as client:
            whole = client.chat.completions.create(**chat).choices[0]
            text = ""
            stream = client.chat.completions.create(**chat, stream=True)
            for count, chunk in enumerate(stream):
                text += chunk.choices[0].delta.content or ""
                if count == 2:
                    kill_who_listens(int(stream.response.headers["X-Worker"].rsplit(":", 1)[1]))
            self.assertEqual((text, chunk.choices[0].finish_reason), (whole.message.content, "length"))
        reasons = [d["reason"] for d in json.loads(get(first, "/decisions"))["decisions"]]
        self.assertIn(reasons, (["first", "first"], ["resumed", "first", "first"]))  # the stream may have been over, for the router
        self.assertIn(b"<html", get(first, "/"))


def kill_who_listens(port):
    """kill -9 for the process whose command line has `--port PORT`."""
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[1:2] == [b"serve"] and str(port).encode() in words:
            os.kill(int(folder.name), signal.SIGKILL)


if __name__ == "__main__":
    unittest.main()
