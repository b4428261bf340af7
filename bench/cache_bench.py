#!/usr/bin/env python3
"""Time to first token of a prompt that is computed, or found on the device, on the host, or in the store.

Each round asks for every prompt once in each state, one request at a time, so that the ratios are of one run. The pool of
device pages is too small for all prompts together where the host or the store is to be met."""

import argparse
import http.client
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORDS = ("the whale ship sea captain night water harpoon deck sail storm crew island morning voice hand line boat wind "
         "stern chase calm depth spout lance oar tide fog").split()


class Server:
    def __init__(self, binary, model, *flags):
        command = [binary, "serve", "--model-path", model, "--port", "0", *map(str, flags)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.output = []
        for line in self.process.stdout:
            self.output.append(line)
            match = re.search(r"listening on http://(\S+):(\d+)", line)
            if match:
                self.host, self.port = match.group(1), int(match.group(2))
                break
        else:
            sys.exit("the server ended:\n" + "".join(self.output))
        threading.Thread(target=lambda: [None for _ in self.process.stdout], daemon=True).start()
        while self.request("GET", "/health")[0] != 200:
            time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=600)
        connection.request(method, path, json.dumps(body) if body is not None else None,
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def metric(self, name):
        found = re.search(rf"^millrace:{name}(?:{{.*}})? (\S+)$", self.request("GET", "/metrics")[1], re.MULTILINE)
        return float(found.group(1))

    def first_token_s(self, prompt):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=600)
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True, "ignore_eos": True}
        begin = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            sys.exit(f"status {answer.status}: {answer.read().decode()}")
        answer.readline()
        seconds = time.perf_counter() - begin
        answer.read()
        return seconds


def prompts_of(count, words):
    return [f"Chapter {i}. " + " ".join(WORDS[(i * 7 + j * (i + 3)) % len(WORDS)] for j in range(words))
            for i in range(count)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default=str(ROOT / "build" / "millrace"))
    parser.add_argument("--model", default=str(ROOT / "models" / "books-4m"))
    parser.add_argument("--pp-size", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--words", type=int, default=500, help="of each prompt")
    parser.add_argument("--small-pool", type=int, default=1536, help="tokens on the device, fewer than all prompts have")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    prompts = prompts_of(options.prompts, options.words)
    pp = ("--pp-size", options.pp_size)
    times = {"computed": [], "device": [], "host": [], "store": []}
    with tempfile.TemporaryDirectory() as folder:
        small = ("--max-total-tokens", options.small_pool, "--enable-hierarchical-cache", "--hicache-ratio", 16)
        store = (*small, "--hicache-storage-backend", "file", "--hicache-storage-path", folder,
                 "--hicache-storage-prefetch-policy", "wait_complete")
        with (Server(options.binary, options.model, *pp, "--disable-radix-cache") as plain,
              Server(options.binary, options.model, *pp) as device,
              Server(options.binary, options.model, *pp, *small) as host,
              Server(options.binary, options.model, *pp, *store) as stored):
            for server in (plain, device, host, stored):
                for prompt in prompts:
                    server.first_token_s(prompt)
            while stored.metric("kv_cache_persisted_pages_total") < stored.metric("kv_cache_stored_pages_total"):
                time.sleep(0.05)
            for _ in range(options.rounds):
                stored.request("POST", "/flush_cache", {"timeout": 60})
                for prompt in prompts:
                    times["computed"].append(plain.first_token_s(prompt))
                    times["device"].append(device.first_token_s(prompt))
                    times["host"].append(host.first_token_s(prompt))
                    times["store"].append(stored.first_token_s(prompt))
            hits = (device.metric("kv_cache_device_hit_pages_total"), host.metric("kv_cache_host_hit_pages_total"),
                    stored.metric("kv_cache_fetched_pages_total"))
    print(f"pp {options.pp_size}, {options.prompts} prompts of {options.words} words, {options.rounds} rounds; pages found "
          f"on the device {hits[0]:.0f}, on the host {hits[1]:.0f}, in the store {hits[2]:.0f}")
    computed = times["computed"]
    for state, measured in times.items():
        ratios = sorted(a / b for a, b in zip(measured, computed))
        print(f"{state:>9}: {1e3 * statistics.median(measured):8.1f} ms  "
              f"/ computed {statistics.median(ratios):.3f} [{ratios[0]:.3f}, {ratios[-1]:.3f}]")


if __name__ == "__main__":
    main()
