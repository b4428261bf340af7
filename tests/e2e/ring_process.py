"""Starts a front and a ring in another process, which joins it."""

from millrace_ring import free_port
from millrace_server import BINARY, MODEL, MillraceServer, wait_until
from node_process import NodeProcess


class RingProcess(NodeProcess):
    """The ring of a number, in a process of its own."""

    def __init__(self, address, number, *flags, model=MODEL):
        super().__init__([BINARY, "serve", "--model-path", model, "--dp-rank", number, "--dp-address", address,
                          "--threads", 1, *flags])


class DividedServer(MillraceServer):
    """A front with ring 0, and ring 1 in another process, as a context manager. `front_flags` are the front's alone, and
    `other_flags` those of ring 1."""

    def __init__(self, *flags, front_flags=(), other_flags=(), model=MODEL):
        self.address = f"127.0.0.1:{free_port()}"
        self.ring_flags = (*flags, *other_flags)
        self.model = model
        self.ring = None
        super().__init__("--dp-size", 2, "--dp-size-local", 1, "--dp-address", self.address, "--threads", 1, *flags,
                         *front_flags, model=model)

    def start_ring(self):
        size = ("--dp-size", 2) if "--enable-ep" in self.ring_flags else ()
        self.ring = RingProcess(self.address, 1, *size, *self.ring_flags, model=self.model)

    def wait_for_all_rings(self):
        wait_until(lambda: self.get("/health").json() == {"status": "ok"}, "all rings serve")

    def __enter__(self):
        # A front whose rings share experts serves once all are there.
        starts_first = "--enable-ep" in self.ring_flags
        if starts_first:
            self.start_ring()
        try:
            super().__enter__()
            if not starts_first:
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
