"""A headless Chromium of the tests, through WebDriver (https://www.w3.org/TR/webdriver2/) and Python's own library."""

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.request

SECONDS = 120  # beside other tests, a server under sanitizers
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # what the standard calls an element's key
ENTER, ESCAPE, TAB, RIGHT, DOWN = "\ue007", "\ue00c", "\ue004", "\ue014", "\ue015"


def absent():
    """Why there is no browser, or None."""
    missing = [name for name in ("chromedriver", "chromium") if not shutil.which(name)]
    return f"no {' and no '.join(missing)} (Debian: chromium-driver)" if missing else None


class Browser:
    """One window, until the block is left."""

    def __init__(self):
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,900"]
        self.wanted = {"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:loggingPrefs": {"browser": "ALL"},
                                                        "goog:chromeOptions": {"args": arguments}}}}

    def __enter__(self):
        self.process = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            if found := re.search(r"successfully on port (\d+)", line):
                break
        else:
            raise AssertionError("chromedriver does not start")
        self.url = f"http://127.0.0.1:{found[1]}/session"
        try:
            self.url += "/" + self.call("POST", "", self.wanted)["sessionId"]
        except BaseException:
            self.process.kill()
            raise
        return self

    def __exit__(self, *_):
        try:
            self.call("DELETE", "")
        finally:
            self.process.terminate()
            self.process.wait()
            self.process.stdout.close()

    def call(self, method, path, body=None):
        data = json.dumps(body or {}).encode() if method == "POST" else None
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer)["value"]

    def open(self, url):
        """Opens the page, which looks at its server ten times as often as it does for people."""
        self.call("POST", "/url", {"url": url})
        self.run("look_ms = 100")

    def command(self, name, **parameters):
        """One of Chromium's own (https://chromedevtools.github.io/devtools-protocol/)."""
        return self.call("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def run(self, script, *arguments):
        """What the script returns."""
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def until(self, script, *arguments):
        """What the script returns once that is true."""
        end = time.monotonic() + SECONDS
        while not (value := self.run(script, *arguments)):
            if time.monotonic() > end:
                raise AssertionError(f"never: {script}; {self.run('return document.body.innerText')!r}")
            time.sleep(0.05)
        return value

    def element(self, selector):
        return self.call("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def type(self, selector, keys):
        self.call("POST", f"/element/{self.element(selector)}/value", {"text": keys})

    def press(self, selector):
        self.call("POST", f"/element/{self.element(selector)}/click")

    def press_keys(self, *keys):
        """Wherever the focus is."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def answer_question(self, yes):
        """What a page asks by confirm(), which is returned."""
        asked = self.call("GET", "/alert/text")
        self.call("POST", "/alert/accept" if yes else "/alert/dismiss")
        return asked

    def complaints(self):
        """What the page's console holds since it was last asked."""
        return [entry["message"] for entry in self.call("POST", "/se/log", {"type": "browser"})]

    def picture(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("GET", "/screenshot")))
