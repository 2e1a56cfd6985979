"""TLS from the router to its workers, and from the load test to a router."""

import contextlib
import http.client
import json
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "server"))
from routing import QUICK, Router, contents, kill, stream  # noqa: E402
from serving import PROGRAM, SECONDS, free_ports, mock, temporary  # noqa: E402
from test_tls import Authority  # noqa: E402

GREEDY = {"temperature": 0, "seed": 1, "ignore_eos": True}


class SecureRouter(Router):
    """One that is itself spoken to over TLS."""

    def __init__(self, context, workers, *options):
        super().__init__(workers, *options)
        self.context = context

    def connect(self):
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=SECONDS, context=self.context)


@contextlib.contextmanager
def secure_mocks(certificate, count=2, spec=QUICK):
    """Workers that are spoken to over TLS, which publish what they hold as others do."""
    with contextlib.ExitStack() as stack:
        servers = []
        for _ in range(count):
            first = free_ports(3)
            events = {"enable_kv_cache_events": True, "endpoint": f"tcp://127.0.0.1:{first}", "replay_endpoint": f"tcp://127.0.0.1:{first + 1}"}
            servers.append(stack.enter_context(mock(spec, "--ssl-certfile", certificate[0], "--ssl-keyfile", certificate[1], "--kv-events-config",
                                                    json.dumps(events), "--step-reports-endpoint", f"tcp://127.0.0.1:{first + 2}")))  # fmt: skip
        yield servers


def urls(servers):
    return [f"https://127.0.0.1:{s.port}" for s in servers]


class Tls(unittest.TestCase):
    def test_streams_go_on(self):
        """A stream, a whole answer and a prompt that workers tokenise; one worker is killed in the midst of a stream."""
        with temporary() as folder:
            authority = Authority(folder)
            with secure_mocks(authority.certify("worker"), spec=QUICK | {"tpot_ms": 10}) as servers, Router(urls(servers), "--worker-ca-certs", authority.root) as router:
                body = {"prompt": "Once upon a time", "max_tokens": 30} | GREEDY
                whole = router.post("/v1/completions", body)[1]["choices"][0]["text"]

                def on_event(headers, count):
                    if count == 10:
                        kill(next(s for s in servers if headers["X-Worker"].endswith(f":{s.port}")))

                _, events = stream(router, "/v1/completions", body, on_event)
                self.assertEqual(contents(events)[0]["text"], whole)
                self.assertEqual(router.figure("coterie:router_resumptions_total"), 1)
                self.assertEqual(router.figure("coterie:router_untokenised_total"), 0)
                # blocks that workers tell of are heard of them, too: endpoints lie at the URL's host
                long = {"prompt": [i % 200 for i in range(320)], "max_tokens": 2} | GREEDY
                router.post("/v1/completions", long)
                router.wait(lambda _: router.figure("coterie:router_index_blocks") >= 20)

    def test_a_stranger_is_refused(self):
        """Whose certificate comes from somebody else, or is another host's, gets no request; that is said."""
        with temporary() as folder:
            ours, other = Authority(folder), Authority(folder, "other")
            with secure_mocks(ours.certify("worker"), 1) as good, secure_mocks(other.certify("stranger"), 1) as bad:
                other_host = f"https://localhost:{good[0].port}"  # the certificate is of 127.0.0.1
                with Router([*urls(good + bad), other_host], "--worker-ca-certs", ours.root, up=1) as router:
                    router.must_say(f"'127.0.0.1:{bad[0].port}' is not there yet: '127.0.0.1:{bad[0].port}': the server's certificate is refused")
                    router.must_say(f"'localhost:{good[0].port}' is not there yet: 'localhost:{good[0].port}': the server's certificate is refused")
                    for _ in range(3):
                        headers = router.send("POST", "/v1/completions", {"prompt": [1, 2], "max_tokens": 1})[1]
                        self.assertTrue(headers["X-Worker"].endswith(f":{good[0].port}"))
                    self.assertEqual([w["state"] for w in router.workers()], ["up", "new", "new"])

    def test_other_than_tls(self):
        with temporary() as folder:
            authority = Authority(folder)
            with mock(QUICK) as plain, Router([f"https://127.0.0.1:{plain.port}"], "--worker-ca-certs", authority.root, up=0) as router:
                router.must_say("the TLS handshake failed")

    def test_load_over_tls(self):
        """The load test speaks TLS to a router that does so, too; not with certificates of somebody else."""
        with temporary() as folder:
            ours, other = Authority(folder), Authority(folder, "other")
            own, key = ours.certify("router")
            with secure_mocks((own, key)) as servers, \
                 SecureRouter(ours.context(), urls(servers), "--worker-ca-certs", ours.root, "--ssl-certfile", own, "--ssl-keyfile", key) as router:
                command = [PROGRAM, "bench", "serve", f"https://127.0.0.1:{router.port}", "-n", "20", "-c", "4", "--output-tokens", "4",
                           "--vocabulary", "200", "--json", "--ca-certs"]  # fmt: skip
                done = subprocess.run([*command, ours.root], capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertEqual(json.loads(done.stdout)["completed"], 20)
                done = subprocess.run([*command, other.root], capture_output=True, text=True)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn("the server's certificate is refused", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
