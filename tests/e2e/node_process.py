"""Starts a node of millrace, other than the one that serves HTTP, in a process of its own."""

import subprocess
import threading

from millrace_server import PATIENCE_S


class NodeProcess:
    """A process whose output is read while it runs."""

    def __init__(self, command):
        self.output = []
        self.process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        stdin=subprocess.DEVNULL, text=True, errors="replace")
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.output.append(line)

    def log(self):
        return "".join(self.output)

    def signal(self, what):
        self.process.send_signal(what)

    def wait(self):
        """Returns the exit status."""
        try:
            code = self.process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the node did not end within {PATIENCE_S} s; its log:\n{self.log()}") from None
        self.reader.join(timeout=PATIENCE_S)
        return code

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
