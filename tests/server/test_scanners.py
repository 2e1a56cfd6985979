"""What tools of other people say of the server: testssl.sh of its TLS, slowhttptest of its patience (Debian packages of these
names). A test whose tool is missing is skipped, loudly."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

from serving import Server, temporary
from test_tls import Authority, SecureServer

SECONDS = 30  # of each mode of slowhttptest: longer than a head may take, and as long as a body may
CONNECTIONS = 1000


def needs(name, package):
    def skipped():
        print(f"SKIPPED: there is no {name} (apt-get install {package})", file=sys.stderr)
        return True

    return unittest.skipIf(not shutil.which(name) and skipped(), f"no {name}")


@needs("testssl", "testssl.sh")
class Testssl(unittest.TestCase):
    def test_nothing_to_complain_of(self):
        """Nothing of MEDIUM or above in protocols, ciphers and vulnerabilities. Of the certificate it says that it ends in two
        days and cannot be revoked, which is how the tests make theirs."""
        with temporary() as folder:
            authority, found = Authority(folder), pathlib.Path(folder) / "found.json"
            certificate, key = authority.certify("server")
            with SecureServer(authority.context(), "--ssl-certfile", certificate, "--ssl-keyfile", key) as server:
                run = subprocess.run(["testssl", "--quiet", "--color", "0", "--warnings", "batch", "--protocols", "--std", "--fs",
                                      "--server-preference", "--server-defaults", "--vulnerable", "--jsonfile", found, "--add-ca",
                                      authority.root, f"127.0.0.1:{server.port}"], stdin=subprocess.DEVNULL, capture_output=True, text=True)  # fmt: skip
                self.assertEqual(server.get("/health")[0], 200)
            findings = json.loads(found.read_text())
        said = {f["id"]: f for f in findings}
        for name in ("TLS1_2", "TLS1_3", "heartbleed", "ROBOT", "SWEET32", "LUCKY13", "RC4", "cert_chain_of_trust"):  # it came to its end
            self.assertIn(name, said, run.stdout)
        print(json.dumps([(f["id"], f["severity"], f["finding"]) for f in findings if f["severity"] not in ("OK", "INFO")]), file=sys.stderr)
        wrong = {f["id"] for f in findings if f["severity"] in ("MEDIUM", "HIGH", "CRITICAL", "FATAL")}
        self.assertLessEqual(wrong, {"cert_expirationStatus", "cert_notAfter", "cert_revocation"})


@needs("slowhttptest", "slowhttptest")
class Slowhttptest(unittest.TestCase):
    def available(self, *mode, path="/"):
        """The service is, each time that it is asked, beside a thousand connections of this mode."""
        with Server() as server:
            server.complete("x", max_tokens=1)
            run = subprocess.run(["slowhttptest", *map(str, mode), "-c", str(CONNECTIONS), "-r", "200", "-l", str(SECONDS), "-p", "5", "-u",
                                  f"http://127.0.0.1:{server.port}{path}"], stdin=subprocess.DEVNULL, capture_output=True, text=True)  # fmt: skip
            server.complete("x", max_tokens=1)
        said = re.sub(r"\x1b\[[0-9;]*m", "", run.stdout + run.stderr)
        answers = re.findall(r"service available:\s+(\w+)", said)
        self.assertTrue(answers, said)
        self.assertEqual(set(answers), {"YES"}, said)
        ended = re.findall(r"Exit status:.*", said)
        print(" ".join(map(str, mode)), ended, file=sys.stderr)

    def test_slow_heads(self):
        self.available("-H", "-i", 2)

    def test_slow_bodies(self):
        self.available("-B", "-i", 2, "-s", 100000, "-t", "POST", "-f", "application/json", path="/v1/completions")

    def test_ranges(self):
        self.available("-R", "-t", "GET", "-a", 10, "-b", 3000)

    def test_slow_readers(self):
        self.available("-X", "-k", 3, "-n", 2, "-w", 16, "-y", 64, "-z", 32)


if __name__ == "__main__":
    unittest.main()
