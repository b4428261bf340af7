"""Requests to a ring: streams that may break, and the comparison of its outputs with those of one stage."""

import json
import threading

import httpx
from millrace_server import PATIENCE_S
from prompts import PROMPT

LONG = {"prompt": PROMPT, "max_tokens": 900, "temperature": 0.9, "seed": 5, "ignore_eos": True, "stream": True}
GREEDY = {"prompt": PROMPT, "max_tokens": 60, "temperature": 0}
SEEDED = {"prompt": PROMPT, "max_tokens": 60, "temperature": 0.9, "top_p": 0.9, "seed": 11, "logprobs": 3}


class Stream:
    """A streaming request on its own thread. `events` holds the data of its events or of its error body."""

    def __init__(self, ring, max_tokens=900):
        self.events = []
        self.body = {**LONG, "max_tokens": max_tokens}
        self.url = ring.server.url + "/v1/completions"
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        with httpx.stream("POST", self.url, json=self.body, timeout=PATIENCE_S) as response:
            for line in response.iter_lines():
                if line:
                    self.events.append(line.removeprefix("data: "))

    def end(self):
        """Waits for the end. Returns whether it finished, and the message of its error."""
        self.thread.join()
        assert self.events
        errors = [event for event in self.events if "error" in (json.loads(event) if event != "[DONE]" else {})]
        finished = self.events[-1] == "[DONE]"
        assert len(errors) == (0 if finished else 1), self.events[-3:]
        return finished, json.loads(errors[0])["error"]["message"] if errors else ""


def completion(server, body):
    response = server.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def same_answers(ring, pp1):
    for body in (GREEDY, SEEDED):
        ours, theirs = completion(ring.server, body), completion(pp1, body)
        assert ours["text"] == theirs["text"]
        assert ours["logprobs"] == theirs["logprobs"]
