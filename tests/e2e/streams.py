"""Streams in the background, and streams that a pause holds in the middle until the test lets them go on."""

import json
import socket
import threading

import httpx
from millrace_server import PATIENCE_S, wait_until

COMPLETIONS = "/v1/completions"
#: Tries to pause a stream before it ends. One suffices unless the machine stalls for seconds.
TRIES = 20
#: Events of a stream by which every API has sent text.
BEGUN = 4


class Stream(threading.Thread):
    """A streaming request in the background. `text` holds what has come, `events` its data, or the body of an error."""

    def __init__(self, server, prompt=None, path=COMPLETIONS, **fields):
        super().__init__(daemon=True)
        self.url = server.url + path
        self.body = {"stream": True, "temperature": 0, **fields} | ({} if prompt is None else {"prompt": prompt})
        self.text = ""
        self.reply = None
        self.has_left = False
        self.start()

    def run(self):
        try:
            with httpx.stream("POST", self.url, json=self.body, timeout=PATIENCE_S) as self.reply:
                for piece in self.reply.iter_text():
                    self.text += piece
        except httpx.TransportError:
            if not self.has_left:
                raise

    @property
    def events(self):
        lines = self.text.split("\n")
        whole = lines[:-1] if self.is_alive() else lines
        return [json.loads(line.removeprefix("data: ")) for line in whole if line.startswith(("data: {", "{"))]

    def wait_for_text(self):
        wait_until(lambda: len(self.events) >= BEGUN or not self.is_alive(), "the text of a stream")

    def leave(self):
        """Closes the connection."""
        self.has_left = True
        self.reply.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self.join(PATIENCE_S)

    def join_whole(self):
        """Waits for the end and returns the last event."""
        self.join(PATIENCE_S)
        assert not self.is_alive() and self.events, self.text
        return self.events[-1]

    def error(self):
        return self.join_whole().get("error")

    def finish_reason(self):
        return self.join_whole()["choices"][0]["finish_reason"]

    def end(self):
        """Waits for the end. Returns whether the stream finished, and the message of its error."""
        self.join_whole()
        errors = [event["error"] for event in self.events if "error" in event]
        finished = self.text.endswith("data: [DONE]\n\n")
        assert len(errors) == (0 if finished else 1), self.text[-500:]
        return finished, errors[0]["message"] if errors else ""


def pause(server, ring=None):
    """Pauses a ring, or all. Returns once the pause holds and no plan is in flight."""
    where = {} if ring is None else {"ring": ring}
    assert server.post("/pause_generation", {"mode": "in_place", **where}).status_code == 200
    for number in range(len(states_of(server))) if ring is None else [ring]:
        wait_until(lambda number=number: states_of(server)[number]["paused"], "the pause")
        seen = 0
        # A ring in another process reports its state and its plans from time to time: the first report may be older.
        for _ in range(3):
            seen = wait_until(lambda number=number, seen=seen: time_without_plans(server, number, seen), "the last plans")


def stands_still(server):
    """Asserts that a paused server of one ring plans nothing while its live view is asked twenty times."""
    planned = server.get("/live").json()["micro_batches"]
    for _ in range(20):
        live = server.get("/live").json()
        assert (live["in_flight"], live["micro_batches"]) == (0, planned), live


def resume(server, ring=None):
    assert server.post("/continue_generation", {} if ring is None else {"ring": ring}).status_code == 200


def states_of(server):
    """Returns the state of each ring."""
    info = server.get("/server_info").json()
    return info.get("rings") or [info["engine"]]


def time_without_plans(server, ring, after_us):
    """Returns the time of a ring's newest report, or nothing if it is not after `after_us` or has plans in flight."""
    reply = server.get(f"/live?ring={ring}")
    if reply.status_code != 200:
        return None
    live = reply.json()
    return live["now_us"] if live["now_us"] > after_us and live["in_flight"] == 0 else None


def pause_during(server, start, count=1, ring=None):
    """Calls `start` until the `count` sequences that it starts run when the pause comes. Returns what it returned last,
    objects with `wait_for_text` and `join`. Nothing ends before `resume`, unless the test ends it."""
    for _ in range(TRIES):
        requests = start()
        for request in requests:
            request.wait_for_text()
        pause(server, ring)
        states = states_of(server) if ring is None else [states_of(server)[ring]]
        if sum(state["running"] + state["waiting"] for state in states) >= count:
            return requests
        resume(server, ring)
        for request in requests:
            request.join()
    raise AssertionError(f"the requests ended before the pause in each of {TRIES} tries")


def paused_streams(server, bodies, ring=None, path=COMPLETIONS):
    """Returns a stream for each body. Each one has begun, and a pause keeps it from its end until `resume`."""
    count = sum(body.get("n", 1) for body in bodies)
    return pause_during(server, lambda: [Stream(server, path=path, **body) for body in bodies], count, ring)


def paused_stream(server, ring=None, path=COMPLETIONS, **body):
    """Returns a stream that has begun, and that a pause keeps from its end until `resume`."""
    return paused_streams(server, [body], ring, path)[0]
