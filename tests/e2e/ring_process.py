"""Starts a front and a ring in another process, which joins it."""

import subprocess
import threading

from millrace_ring import free_port
from millrace_server import BINARY, MODEL, PATIENCE_S, MillraceServer, wait_until


class RingProcess:
    """The ring of a number, in a process of its own."""

    def __init__(self, address, number, *flags, model=MODEL):
        self.output = []
        command = [str(BINARY), "serve", "--model-path", str(model), "--dp-rank", str(number), "--dp-address", address,
                   "--threads", "1", *map(str, flags)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
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
        code = self.process.wait(timeout=PATIENCE_S)
        self.reader.join(timeout=PATIENCE_S)
        return code

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.wait()


class DividedServer(MillraceServer):
    """A front with ring 0, and ring 1 in another process, as a context manager."""

    def __init__(self, *flags, model=MODEL):
        self.address = f"127.0.0.1:{free_port()}"
        self.ring_flags = flags
        self.model = model
        self.ring = None
        super().__init__("--dp-size", 2, "--dp-size-local", 1, "--dp-address", self.address, "--threads", 1, *flags,
                         model=model)

    def start_ring(self):
        self.ring = RingProcess(self.address, 1, *self.ring_flags, model=self.model)

    def wait_for_all_rings(self):
        wait_until(lambda: self.get("/health").json() == {"status": "ok"}, "all rings serve")

    def __enter__(self):
        super().__enter__()
        try:
            self.start_ring()
            self.wait_for_all_rings()
        except BaseException:
            self.end()
            raise
        return self

    def end(self):
        if self.ring:
            self.ring.kill()
        super().end()
