"""What the soak's clients and its operator do, and what they count."""

import asyncio
import contextlib
import json
import random
import re
import socket

LATE_S = 300
JSON_TYPE = "Content-Type: application/json\r\n"
WORDS = "whale ship captain sea harpoon Pierre princess Moscow Holmes Watson Elizabeth Darcy horse snow ball letter".split()


async def ask(server, method, path, body=None, most=None, pause_s=0.0):
    """Status and body; at most `most` bytes are read, `pause_s` passes between reads, and then the client is gone."""
    limit = 4096 if pause_s else 1 << 16
    connection = socket.socket()
    connection.setblocking(False)
    if pause_s:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limit)
    try:
        await asyncio.get_running_loop().sock_connect(connection, (server.host, server.port))
        reader, writer = await asyncio.open_connection(sock=connection, limit=limit)
    except BaseException:
        connection.close()
        raise
    try:
        payload = json.dumps(body).encode() if body is not None else b""
        head = f"{method} {path} HTTP/1.1\r\nHost: soak\r\nConnection: close\r\n{JSON_TYPE}"
        writer.write(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
        received = b""
        while most is None or len(received) < most:
            piece = await asyncio.wait_for(reader.read(limit), LATE_S)
            if not piece:
                break
            received += piece
            if pause_s:
                await asyncio.sleep(pause_s)
        head, _, rest = received.partition(b"\r\n\r\n")
        status = int(head.split()[1]) if head else 0
        if b"transfer-encoding: chunked" in head.lower():
            rest = re.sub(rb"(?:^|\r\n)[0-9a-f]+\r\n", b"", rest)  # events hold no carriage return
        return status, rest.decode(errors="replace")
    finally:
        if most is None:
            writer.close()
        else:
            writer.transport.abort()


class Load:
    """One run. Faults are what must not be, the first twenty of them."""

    def __init__(self, server, options):
        self.server, self.options = server, options
        self.dice = random.Random(options.seed)
        self.counts = dict.fromkeys(("answered", "left", "refused", "aborted", "canaries"), 0)
        self.faults = []
        self.canaries = {}
        self.model = options.model.name
        self.prefixes = [" ".join(self.dice.choices(WORDS, k=self.dice.randrange(20, 200))) for _ in range(40)]
        self.stopping = False

    def fault(self, text):
        if len(self.faults) < 20:
            self.faults.append(text[:400])

    async def note_canaries(self):
        for prefix in self.prefixes[:6]:
            body = {"prompt": prefix, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
            status, text = await ask(self.server, "POST", "/v1/completions", body)
            assert status == 200, text
            self.canaries[json.dumps(body)] = json.loads(text)["choices"][0]["text"]

    async def canary(self, _):
        body, wanted = self.dice.choice(list(self.canaries.items()))
        status, text = await ask(self.server, "POST", "/v1/completions", json.loads(body))
        choice = json.loads(text)["choices"][0] if status == 200 else {}
        if choice.get("finish_reason") == "length":
            self.counts["canaries"] += 1
            if choice["text"] != wanted:
                self.fault(f"a canary changed: {choice['text']!r}, wanted {wanted!r}")
        else:
            self.judge(status, text, {})

    def judge(self, status, text, body):
        """Counts a whole answer, or notes what is wrong with it."""
        if status in (429, 503):
            self.counts["refused"] += 1
            return
        if status != 200:
            return self.fault(f"status {status} for {body}: {text}")
        if not body.get("stream"):
            ends = [choice["finish_reason"] for choice in json.loads(text)["choices"]]
        else:
            events = [event[6:] for event in text.split("\n\n") if event.startswith("data: ")]
            if '"error"' in events[-1]:
                return self.fault(f"a stream ended with {events[-1]}")
            if events[-1] != "[DONE]":
                return self.fault(f"a stream ended with {events[-1]!r}")
            choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
            ends = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        if len(ends) != body.get("n", 1) * (len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1):
            return self.fault(f"{len(ends)} choices for {body}")
        self.counts["aborted" if "abort" in ends else "answered"] += 1

    def completion(self, dice, **fields):
        prompt = f"{dice.choice(self.prefixes)} {' '.join(dice.choices(WORDS, k=dice.randrange(1, 30)))}"
        return {"prompt": prompt, "max_tokens": dice.randrange(1, 60), "temperature": dice.choice([0, 0.8, 1.5]),
                "stream": dice.random() < 0.6, **fields}

    async def plain(self, dice):
        fields = dice.choice([{}, {"n": 3}, {"logprobs": 3, "n": 2}, {"echo": True, "logprobs": 0}, {"stop": ["e", " the"]},
                              {"logit_bias": {"40": 5, "50": -100}, "min_tokens": 1}, {"return_token_ids": True},
                              {"prompt": ["Call me", dice.choice(self.prefixes)]}, {"cache_salt": dice.choice("abc")}])
        body = self.completion(dice, **fields)
        self.judge(*await ask(self.server, "POST", "/v1/completions", body), body)

    async def conversation(self, dice):
        messages = [{"role": "user", "content": dice.choice(self.prefixes)}]
        for _ in range(dice.randrange(1, 4)):
            body = {"messages": messages, "max_tokens": 24, "temperature": 0.7, "stream": False, "logprobs": dice.random() < 0.3}
            status, text = await ask(self.server, "POST", "/v1/chat/completions", body)
            self.judge(status, text, body)
            if status != 200:
                return
            messages = messages + [json.loads(text)["choices"][0]["message"], {"role": "user", "content": dice.choice(WORDS)}]

    async def messages(self, dice):
        turns = [{"role": "user", "content": dice.choice(self.prefixes)}]
        for _ in range(dice.randrange(1, 4)):
            body = {"model": self.model, "messages": turns, "max_tokens": 24, "stream": dice.random() < 0.5}
            status, text = await ask(self.server, "POST", "/v1/messages", body)
            if status in (429, 503):
                self.counts["refused"] += 1
                return
            if status != 200:
                return self.fault(f"status {status} for {body}: {text}")
            if body["stream"]:
                events = [json.loads(event.split("\ndata: ")[1]) for event in text.strip().split("\n\n")]
                if events[0]["type"] != "message_start" or events[-1]["type"] != "message_stop":
                    return self.fault(f"a message's events are not whole: {text}")
                said = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
            else:
                said = "".join(block.get("text", "") for block in json.loads(text)["content"])
            self.counts["answered"] += 1
            turns = turns + [{"role": "assistant", "content": said or "."}, {"role": "user", "content": dice.choice(WORDS)}]

    async def vectors(self, dice):
        texts = dice.choices(self.prefixes, k=dice.choice([1, 3, 40]))
        path, body, member = dice.choice([
            ("/v1/embeddings", {"input": texts, "encoding_format": dice.choice(["float", "base64"])}, "data"),
            ("/rerank", {"query": dice.choice(WORDS), "documents": texts}, "results"),
            ("/score", {"text_1": dice.choice(WORDS), "text_2": texts}, "data")])
        status, text = await ask(self.server, "POST", path, body)
        if status in (429, 503):
            self.counts["refused"] += 1
        elif status == 409:
            self.counts["aborted"] += 1
        elif status != 200:
            self.fault(f"status {status} for {str(body)[:200]}: {text}")
        elif len(json.loads(text)[member]) != len(texts):
            self.fault(f"{len(json.loads(text)[member])} of {path} for {len(texts)} texts")
        else:
            self.counts["answered"] += 1

    async def token_counts(self, dice):
        turn = dice.choice(self.prefixes)
        path, body = dice.choice([
            ("/v1/messages/count_tokens", {"model": self.model, "messages": [{"role": "user", "content": turn}]}),
            ("/v1/responses/input_tokens", {"model": self.model, "input": turn})])
        status, text = await ask(self.server, "POST", path, body)
        if status in (429, 503):
            self.counts["refused"] += 1
        elif status != 200 or json.loads(text)["input_tokens"] < 1:
            self.fault(f"status {status} for {path}: {text}")
        else:
            self.counts["answered"] += 1

    async def respond(self, body):
        """Asks for a response, and returns its id if it has ended well."""
        status, text = await ask(self.server, "POST", "/v1/responses", body)
        is_forgotten = status == 400 and json.loads(text)["error"]["param"] == "previous_response_id"
        if is_forgotten or status in (429, 503):  # the store forgets what was used longest ago
            self.counts["refused"] += 1
            return None
        if status != 200:
            return self.fault(f"status {status} for {body}: {text}")
        if body["stream"]:
            events = [json.loads(event.split("\ndata: ")[1]) for event in text.strip().split("\n\n")]
            if [event["sequence_number"] for event in events] != list(range(len(events))):
                return self.fault(f"the events of a response are not in order: {text}")
            response = events[-1]["response"]
        else:
            response = json.loads(text)
        if response["status"] not in ("completed", "incomplete", "cancelled", "queued"):
            return self.fault(f"a response ended as {response['status']}: {response['error']}")
        self.counts["aborted" if response["status"] == "cancelled" else "answered"] += 1
        return response["id"]

    async def responses(self, dice):
        previous = None
        for _ in range(dice.randrange(1, 4)):
            body = {"input": dice.choice(self.prefixes), "max_output_tokens": 24, "stream": dice.random() < 0.5,
                    "previous_response_id": previous, "truncation": "auto", "store": dice.random() < 0.8}
            previous = await self.respond(body)

    async def background(self, dice):
        body = {"input": dice.choice(self.prefixes), "max_output_tokens": 60, "stream": False, "background": True}
        id = await self.respond(body)
        if id is None:
            return
        method, path = dice.choice([("GET", ""), ("GET", "?stream=true"), ("POST", "/cancel"), ("DELETE", "")])
        status, text = await ask(self.server, method, f"/v1/responses/{id}{path}")
        if status not in (200, 404, 409):
            self.fault(f"status {status} for {method} of a response{path}: {text}")

    async def leaver(self, dice):
        body = self.completion(dice, n=dice.choice([1, 1, 4]), max_tokens=300, ignore_eos=True)
        asked = ask(self.server, "POST", "/v1/completions", body, most=dice.choice([1, 400, 4000]))
        with contextlib.suppress(asyncio.TimeoutError, ConnectionError):
            await asyncio.wait_for(asked, dice.random())
        self.counts["left"] += 1

    async def slow_reader(self, dice):
        body = self.completion(dice, n=4, max_tokens=100, stream=True, logprobs=5)
        most = dice.choice([None, 20000])
        status, text = await ask(self.server, "POST", "/v1/completions", body, most, dice.choice([0.005, 0.05]))
        if most is None and text.rstrip().endswith("[DONE]"):
            self.judge(status, text, body)
        else:
            self.counts["left"] += 1

    async def nonsense(self, dice):
        path, body = dice.choice([("/v1/completions", {"prompt": 5}), ("/v1/completions", {"prompt": [1] * 100_000}),
                                  ("/v1/chat/completions", {"messages": []}), ("/v1/responses", {"input": [{}]}), ("/v1/nowhere", {}),
                                  ("/v1/messages", {"messages": []}), ("/v1/embeddings", {"input": []}),
                                  ("/detokenize", {"tokens": ["x"]}), ("/abort_request", {"rid": "nobody"})])
        status, text = await ask(self.server, "POST", path, body)
        if status not in (400, 404):
            self.fault(f"status {status} for {path} {str(body)[:80]}: {text}")
        self.counts["refused"] += 1

    async def client(self, number):
        dice = random.Random(self.options.seed * 1000 + number)
        kinds = [self.plain] * 6 + [self.conversation] * 2 + [self.leaver] * 3 + [self.canary] * 2 + [
            self.responses, self.background, self.messages, self.vectors, self.token_counts, self.slow_reader,
            self.nonsense]
        while not self.stopping:
            kind = dice.choice(kinds)
            try:
                await kind(dice)
            except (OSError, ValueError, KeyError, IndexError, asyncio.TimeoutError) as problem:
                self.fault(f"{kind.__name__}: {problem!r}")

    async def operator(self):
        dice = random.Random(self.options.seed)
        while not self.stopping:
            await asyncio.sleep(dice.uniform(0.5, 3))
            try:
                await self.operate(dice)
            except (OSError, ValueError, KeyError, IndexError) as problem:
                self.fault(f"operator: {problem!r}")

    async def operate(self, dice):
        for path in ("/metrics", "/live", "/server_info", "/openapi.json", "/"):
            status, _ = await ask(self.server, "GET", path)
            if status != 200:
                self.fault(f"status {status} for {path}")
        what = dice.randrange(10)
        if what < 3:
            try:
                await ask(self.server, "POST", "/pause_generation", {"mode": ("in_place", "retract", "abort")[what]})
                await asyncio.sleep(dice.uniform(0.05, 0.5))
            finally:
                await ask(self.server, "POST", "/continue_generation", {})
        elif what == 3:
            await ask(self.server, "POST", "/flush_cache", {"timeout": 0.2})
        elif what == 4:
            await ask(self.server, "POST", "/abort_request", {"abort_all": True})

    async def state(self):
        _, text = await ask(self.server, "GET", "/server_info")
        info = json.loads(text)
        return {**info["engine"], "in_flight": info["requests_in_flight"], "connections": info["connections"]}
