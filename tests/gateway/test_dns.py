"""Workers that a name stands for come and go with its addresses."""

import json
import os
import pathlib
import signal
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "server"))
from routing import QUICK, Router  # noqa: E402
from serving import Server, free_ports, run  # noqa: E402


def worker(spec, host, port):
    return Server("--mock", spec, "--host", host, "--port", port, model=None, name="mock")


class Dns(unittest.TestCase):
    def test_addresses_come_and_go(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "spec.json").write_text(json.dumps(QUICK))
            names, log = folder / "names", folder / "access.log"
            port = free_ports(1)
            names.write_text("127.0.0.2\n127.0.0.3\n127.0.0.2\n")
            env = {"LD_PRELOAD": os.environ["COT_FAKE_DNS_LIBRARY"], "COT_FAKE_DNS": str(names), "ASAN_OPTIONS": "verify_asan_link_order=0"}
            with worker(folder / "spec.json", "127.0.0.2", port), worker(folder / "spec.json", "127.0.0.3", port), \
                 worker(folder / "spec.json", "127.0.0.4", port), \
                 Router([f"dns:fleet.test:{port}"], "--access-log", log, up=2, env=env) as router:  # fmt: skip

                def until(*hosts):
                    wanted = {f"127.0.0.{host}:{port}" for host in hosts}
                    router.wait(lambda workers: {w["name"] for w in workers} == wanted and all(w["state"] == "up" for w in workers))
                    answered = {router.send("POST", "/v1/completions", {"prompt": [i], "max_tokens": 1})[1]["X-Worker"] for i in range(6)}
                    self.assertLessEqual(answered, wanted)

                until(2, 3)
                names.write_text("127.0.0.3\n127.0.0.4\n")
                router.process.send_signal(signal.SIGHUP)
                until(3, 4)
                names.write_text("")
                router.process.send_signal(signal.SIGHUP)
                router.must_say("cannot look up 'fleet.test', its workers stay as they were")
                until(3, 4)
                names.write_text("127.0.0.2\n")
                router.process.send_signal(signal.SIGHUP)
                until(2)

    def test_refused(self):
        for text in ("dns:", "dns:a", "dns::80", "dns:a:", "dns:a:0", "dns:a:65536", "dns:a:8x", "dns:a/b:80", "dns:a:80:90"):
            with self.subTest(text):
                done = run("router", "--port", 0, "--workers", text)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                self.assertIn(f"'{text}' is not dns:NAME:PORT", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
