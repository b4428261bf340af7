"""Starts the built server, sends requests without a client library, and stops it."""

import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("MILLRACE_BUILD_DIR", ROOT / "build"))
BINARY = BUILD / "millrace"
MODEL = Path(os.environ.get("MILLRACE_E2E_MODEL", ROOT / "models" / "books-4m")).resolve()
LISTENING = re.compile(r"listening on (http://\S+:\d+)")
PATIENCE_S = 120  # generous, since sanitizers and busy machines are slow


def wait_until(condition, what, patience_s=PATIENCE_S):
    """Polls until `condition()` returns a true value, and returns it."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what} did not happen within {patience_s} s")


def run_binary(*arguments):
    """Runs a command that ends by itself."""
    return subprocess.run([str(BINARY), *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S)


class MillraceServer:
    """One server process, as a context manager."""

    def __init__(self, *flags, model=MODEL, host="127.0.0.1", port=0, prefix=()):
        self.prefix = list(prefix)
        self.flags = ["serve", "--model-path", str(model), "--host", host, "--port", str(port),
                      *map(str, flags)]
        self.output = []
        self.url = None
        self.process = None
        self.reader = None

    def __enter__(self):
        self.process = subprocess.Popen([*self.prefix, str(BINARY), *self.flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        stdin=subprocess.DEVNULL, text=True, errors="replace")
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        try:
            wait_until(lambda: self.url or self.process.poll() is not None, "the line 'listening on'")
            assert self.url, f"the server ended with code {self.process.poll()}:\n{self.log()}"
            wait_until(self._is_ready, "readiness")
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_):
        self.end()

    def _read(self):
        for line in self.process.stdout:
            self.output.append(line)
            match = LISTENING.search(line)
            if match and not self.url:
                self.url = match.group(1)

    def _is_ready(self):
        assert self.process.poll() is None, self.log()
        try:
            return self.get("/health").status_code == 200
        except httpx.TransportError:  # the process is ending, which the next poll sees
            return False

    def log(self):
        return "".join(self.output[-100:])

    def get(self, path):
        return httpx.get(self.url + path, timeout=PATIENCE_S)

    def post(self, path, body=None):
        return httpx.post(self.url + path, json=body, timeout=PATIENCE_S)

    def metric(self, name, **labels):
        """Returns the sum of the samples of `name` whose labels include the given ones."""
        total = 0.0
        for line in self.get("/metrics").text.splitlines():
            match = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? (\S+)", line)
            if not match or match.group(1) != name:
                continue
            found = dict(re.findall(r'(\w+)="([^"]*)"', match.group(2) or ""))
            if all(found.get(key) == str(value) for key, value in labels.items()):
                total += float(match.group(3))
        return total

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def wait(self):
        code = self.process.wait(timeout=PATIENCE_S)
        self.reader.join(timeout=PATIENCE_S)
        return code

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
