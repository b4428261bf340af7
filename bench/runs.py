"""What the scripts of this folder share: whose turn it is, programs that say why they failed, and servers of this machine."""

import argparse
import random
import re
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

LISTENING = re.compile(r"listening on (http://[^\s\"]+)")
READY = re.compile(r' info +ready$|"message":"ready"', re.MULTILINE)

# A proxy of the environment cannot reach this machine's servers.
urlopen = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def positive(text):
    """The type of a flag that counts something."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"found '{text}', wanted a whole number above 0")
    return int(text)


def add_seed(parser):
    parser.add_argument("--seed", type=int, help="of prompts, and of whose turn it is (default: drawn, and printed)")


def draw_seed(options):
    """Call once, before anything is measured: the same prompts again would be found in caches, the same order again biased."""
    if options.seed is None:
        options.seed = random.randrange(1_000_000)
    print(f"--seed {options.seed}", flush=True)


def seed_of(*purpose):
    """A seed for bench/load, which draws the same prompts from the same seed: of each purpose another."""
    return random.Random(" ".join(map(str, purpose))).randrange(2**53)


def order_of(contenders, seed, number):
    """Whose turn it is when in round `number`, from 1 on: drawn for two rounds, of which the second goes backwards, so that
    whoever gains from its place, or from the one before it, does not do so throughout."""
    order = list(contenders)
    random.Random(f"{seed} {(number + 1) // 2}").shuffle(order)
    return order if number % 2 else order[::-1]


def run_quietly(command, **options):
    """A program whose output matters only if it fails, as bench/load, which says there what went wrong."""
    command = [str(part) for part in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **options)
    if done.returncode != 0:
        sys.exit(f"{Path(sys.argv[0]).stem}: {' '.join(command)} ended with code {done.returncode}:\n{done.stdout}")


def start_server(command, name, until):
    """Starts a server and waits for a line of its log that `until` matches. Returns the process and the server's address.
    A thread reads the rest of the log."""
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output, url = [], None
    for line in process.stdout:
        output.append(line)
        url = match.group(1) if (match := LISTENING.search(line)) else url
        if until.search(line):
            break
    else:
        sys.exit(f"the server '{name}' ended:\n" + "".join(output))
    threading.Thread(target=lambda: [None for _ in process.stdout], daemon=True).start()
    return process, url
