"""Drives a headless Chromium over its debugging pipe: JSON messages that end with a zero byte, on descriptors 3 and 4."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import threading

from millrace_server import PATIENCE_S, wait_until

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium():
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page of one browser, as a context manager."""

    def __init__(self, width=1440, height=900):
        self.profile = tempfile.TemporaryDirectory(prefix="millrace-chromium-", ignore_cleanup_errors=True)
        commands_out, commands_in = os.pipe()
        replies_out, replies_in = os.pipe()
        command = [find_chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                   "--hide-scrollbars", "--no-first-run", "--mute-audio", f"--user-data-dir={self.profile.name}",
                   f"--window-size={width},{height}", "--remote-debugging-pipe", "about:blank"]
        # The shell moves the pipes to the descriptors that Chromium uses.
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{commands_out} 4>&{replies_in}', "bash", *command],
            pass_fds=(commands_out, replies_in), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands_out)
        os.close(replies_in)
        self.commands = os.fdopen(commands_in, "wb", buffering=0)
        self.replies = os.fdopen(replies_out, "rb", buffering=0)
        self.answers = {}
        self.errors = []
        self.count = 0
        self.session = None
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.size = (width, height)

    def __enter__(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Runtime.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=self.size[0], height=self.size[1], deviceScaleFactor=1,
                  mobile=False)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.commands.close()
        self.reader.join(timeout=PATIENCE_S)
        self.profile.cleanup()

    def _read(self):
        rest = b""
        while chunk := self.replies.read(65536):
            *messages, rest = (rest + chunk).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self.answers[message["id"]] = message
                elif message.get("method") == "Runtime.exceptionThrown":
                    self.errors.append(message["params"]["exceptionDetails"].get("exception", {}).get("description"))

    def call(self, method, **params):
        self.count += 1
        number = self.count
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.commands.write(json.dumps(message).encode() + b"\0")
        wait_until(lambda: number in self.answers or self.process.poll() is not None, f"an answer to {method}")
        answer = self.answers.pop(number)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def open(self, url):
        self.call("Page.navigate", url=url)

    def dark(self, wanted):
        value = "dark" if wanted else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def evaluate(self, expression):
        """Returns the value of a JavaScript expression. A promise is awaited."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
