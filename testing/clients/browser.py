"""Debian's chromium, driven by the W3C WebDriver protocol, which is plain HTTP and needs no client library."""

import base64
import os
import shutil
import time

import requests

from harness import Process, clean_environment

# Disables requests of the browser's own services.
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]
# Key of an element reference in the protocol.
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
# Maximum wait, reached only by a fault.
TIMEOUT_SECONDS = 120


class Browser:
    """A browser with an empty profile, in a separate process."""

    def __init__(self, folder, width=1280, height=900, dark=False):
        self.process = Process([driver(), "--port=0"], clean_environment(), folder / "chromedriver.log")
        port = self.process.wait_for(r"started successfully on port (\d+)").group(1)
        self.root = f"http://127.0.0.1:{port}/session"
        arguments = [*FLAGS, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{height}"]
        if dark:
            arguments.append("--force-dark-mode")
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        response = self._send("POST", self.root, {"capabilities": {"alwaysMatch": wanted}})
        self.root += "/" + response["sessionId"]

    def _send(self, method, url, body=None):
        response = requests.request(method, url, json=body, timeout=60)
        value = response.json()["value"]
        assert response.ok, value
        return value

    def _session(self, method, path, body=None):
        return self._send(method, f"{self.root}/{path}", body)

    def open(self, url):
        self._session("POST", "url", {"url": url})

    def url(self):
        return self._session("GET", "url")

    def run(self, script, *arguments):
        """Runs `script`, the body of a function, in the page and returns its result."""
        return self._session("POST", "execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector="body"):
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def until(self, what, script, *arguments):
        """Waits until `script` returns a true value, and returns it."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not (value := self.run(script, *arguments)):
            assert time.monotonic() < deadline, f"never: {what}\n{self.text()}"
            time.sleep(0.1)
        return value

    def _element(self, selector):
        return self._session("POST", "element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self._session("POST", f"element/{self._element(selector)}/click", {})

    def type(self, selector, text):
        self._session("POST", f"element/{self._element(selector)}/value", {"text": text})

    def press(self, keys):
        """Sends keys to the focused element."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._session("POST", "actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def set(self, selector, value):
        """Puts `value` into an input, whatever keys its kind takes."""
        self.run("document.querySelector(arguments[0]).value = arguments[1]", selector, value)

    def point(self, selector, x, y):
        """Moves the mouse to a place of an element, counted from its middle."""
        origin = {ELEMENT: self._element(selector)}
        move = {"type": "pointerMove", "duration": 0, "origin": origin, "x": x, "y": y}
        actions = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": [move]}
        self._session("POST", "actions", {"actions": [actions]})

    def resize(self, width, height):
        self._session("POST", "window/rect", {"width": width, "height": height})

    def cookies(self):
        return self._session("GET", "cookie")

    def console(self):
        """Returns the browser's log since the last call: script errors, blocked and failed requests."""
        return self._session("POST", "se/log", {"type": "browser"})

    def screenshot(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self._session("GET", "screenshot")))

    def stop(self):
        try:
            self._send("DELETE", self.root)
        finally:
            self.process.stop()


def driver():
    found = os.environ.get("BYWASH_CHROMEDRIVER") or shutil.which("chromedriver")
    assert found, "chromedriver is missing; `cargo xtask test` installs it"
    return found
