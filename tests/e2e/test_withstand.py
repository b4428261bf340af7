"""Tests hostile load: many connections, slow ones, huge prompts, clients that disconnect."""

import asyncio
import json
import os
import random
import resource
import socket
import threading
import time

import httpx
import pytest
from millrace_server import MODEL, PATIENCE_S, MillraceServer, wait_until
from prompts import PROMPT

CONNECTIONS = 10_000
MAX_KIB_PER_CONNECTION = 16
ABORT_LOAD_S = float(os.environ.get("MILLRACE_ABORT_LOAD_S", "4"))  # minutes show that memory stays flat
MAX_GROWTH_MIB = 24
WORKERS = 24


def address_of(server):
    host, port = server.url.removeprefix("http://").rsplit(":", 1)
    return host, int(port)


def resident_kib(server):
    with open(f"/proc/{server.process.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def is_sanitized():
    return "ASAN_OPTIONS" in os.environ


def test_ten_thousand_connections():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < CONNECTIONS + 512:
        pytest.skip(f"only {hard} descriptors may be open (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    connections = []
    try:
        with MillraceServer("--max-connections", CONNECTIONS + 1, "--idle-timeout", 3600) as server:
            before = resident_kib(server)
            for _ in range(CONNECTIONS):
                connections.append(socket.create_connection(address_of(server), timeout=PATIENCE_S))
            wait_until(lambda: server.metric("millrace:http_connections") == CONNECTIONS + 1, "all of them open")
            each = (resident_kib(server) - before) / CONNECTIONS
            print(f"{each:.2f} KiB of resident memory per idle connection")
            assert is_sanitized() or each < MAX_KIB_PER_CONNECTION
            for connection in random.sample(connections, 50):
                connection.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
                assert connection.recv(4096).startswith(b"HTTP/1.1 200 OK")
            with httpx.Client(timeout=PATIENCE_S) as last:
                body = {"prompt": PROMPT, "max_tokens": 4}
                assert last.post(server.url + "/v1/completions", json=body).status_code == 200
                assert "--max-connections" in httpx.get(server.url + "/version", timeout=PATIENCE_S).text
            for connection in connections:
                connection.close()
            wait_until(lambda: server.metric("millrace:http_connections") == 1, "all of them closed")
    finally:
        for connection in connections:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_slow_headers_are_cut_off_while_others_are_served():
    with MillraceServer("--header-timeout", 1) as server:
        slow = []
        for _ in range(300):
            slow.append(socket.create_connection(address_of(server), timeout=PATIENCE_S))
            slow[-1].sendall(b"GET /health HTTP/1.1\r\nX-Slow: ")
        stop = threading.Event()

        def drip():
            while not stop.wait(0.05):
                for connection in slow:
                    try:
                        connection.send(b"X")
                    except OSError:
                        pass  # the server closes it

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            assert server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 8}).status_code == 200
            for connection in slow:
                answer = connection.recv(4096)
                assert answer.startswith(b"HTTP/1.1 408 ") and b"--header-timeout" in answer
            wait_until(lambda: server.metric("millrace:http_connections") == 1, "the end of all of them")
        finally:
            stop.set()
            dripping.join()
            for connection in slow:
                connection.close()


@pytest.mark.parametrize("prompt", [[5] * 1_000_000, "whale " * 1_000_000], ids=["ids", "text"])
def test_a_prompt_of_a_million_tokens_is_refused_with_numbers(pp4, prompt):
    limit = pp4.get("/server_info").json()["model"]["context_length"]
    answer = pp4.post("/v1/completions", {"prompt": prompt, "max_tokens": 1})
    assert answer.status_code == 400
    assert str(limit) in answer.json()["error"]["message"]
    if not isinstance(prompt, str):
        assert "1000000" in answer.json()["error"]["message"]


def test_a_body_beyond_the_limit_names_its_flag(pp4):
    answer = httpx.post(pp4.url + "/v1/completions", content=b"[" * (17 << 20), timeout=PATIENCE_S,
                        headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert "--max-body-mib" in answer.json()["error"]["message"]


async def ask(server, dice, counts):
    """Sends one request. Half of the clients disconnect before the response."""
    leaves = dice.random() < 0.5
    body = json.dumps({"prompt": f"{PROMPT} {dice.randrange(50)} " * dice.randrange(1, 20), "ignore_eos": True,
                       "max_tokens": dice.randrange(1, 80), "n": dice.choice([1, 1, 2]), "stream": dice.random() < 0.7})
    reader, writer = await asyncio.open_connection(*address_of(server))
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    try:
        if leaves:
            await asyncio.wait_for(reader.read(dice.randrange(1, 4000)), dice.random() * 0.2)
        else:
            answer = await asyncio.wait_for(reader.read(-1), PATIENCE_S)
            assert answer.startswith(b"HTTP/1.1 200 OK"), answer[:300]
            assert answer.rstrip().endswith((b"}", b"0")), answer[-300:]
    except asyncio.TimeoutError:
        assert leaves, "a whole answer is late"
    counts[leaves] += 1
    if leaves and dice.random() < 0.5:
        writer.transport.abort()
    else:
        writer.close()


async def load(server, seconds, seed):
    counts = {True: 0, False: 0}
    end = time.monotonic() + seconds

    async def work(number):
        dice = random.Random(seed * WORKERS + number)
        while time.monotonic() < end:
            await ask(server, dice, counts)

    await asyncio.gather(*(work(number) for number in range(WORKERS)))
    return counts


@pytest.mark.parametrize("stages", [1, 4])
def test_aborts_of_half_of_all_requests_leave_nothing_behind(stages):
    def engine():
        return server.get("/server_info").json()["engine"]

    def settled():
        now = engine()
        return now["running"] == now["waiting"] == 0 and now["free_pages"] == now["total_pages"]

    # A small cache fills early, so that its pages are resident.
    with MillraceServer("--pp-size", stages, "--max-running-requests", 16, "--max-total-tokens", 8192) as server:
        asyncio.run(load(server, ABORT_LOAD_S, 1))  # buffers and arenas reach their size
        wait_until(settled, "the end of all requests")
        before = resident_kib(server)
        counts = asyncio.run(load(server, ABORT_LOAD_S, 2))
        wait_until(settled, "the end of all requests")
        growth_mib = (resident_kib(server) - before) / 1024
        print(f"{counts[False]} answered, {counts[True]} left early, resident memory grew by {growth_mib:.1f} MiB")
        assert counts[True] > 0 and counts[False] > 0
        assert is_sanitized() or growth_mib < MAX_GROWTH_MIB
        assert server.get("/load").json()["server_load"] == 0
        assert server.post("/flush_cache", {}).status_code == 200
        assert engine()["cached_pages"] == 0
        answer = server.post("/v1/completions", {"model": MODEL.name, "prompt": PROMPT, "max_tokens": 4})
        assert answer.status_code == 200
        assert "error" not in server.log().lower()
