#!/usr/bin/env python3
"""Two servers that speak the OpenAI API take turns under the same load: the first against the second.

Both must be running, with the same model and as many threads; the idle one should use no processor time. Each load runs
--rounds times after one turn that does not count, with prompts that no cache knows; which of the two begins changes from
round to round. Prints, per load, the median of either server with the least and the most, and of the ratios of each round
(above 1: the first is better).

  prefill-N         one prompt of N tokens at a time: prompt tokens per second, from the median TTFT
  decode            one request at a time, 16 tokens in, 64 out: tokens per second, from the median TPOT
  batch-C           C requests at once, 16 tokens in, 64 out: output tokens per second
  served-C          closed loop of C clients, 128 tokens in, 64 out: output tokens per second, and the median TTFT
  beside-N          4 requests of 256 tokens out while prompts of N tokens arrive one after another: p99 and median of
                    the time between tokens, and the median TTFT of the prompts
  hogs-K            decode beside K processes that only compute: p90 over median of the time between tokens

  build/millrace serve --model-path DIR --threads 2 --port 30000
  OTHER SERVER, on port 8080
  bench/versus.py http://127.0.0.1:30000 http://127.0.0.1:8080 --loads prefill-512 decode served-16"""

import argparse
import concurrent.futures
import contextlib
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine_load
from runs import add_seed, draw_seed, order_of, positive, run_quietly, seed_of

ROOT = Path(__file__).resolve().parent.parent
#: What a load may be called: those that say nothing without a number have one.
NAMES = re.compile(r"(prefill|beside|hogs)-[1-9]\d*|(decode|batch|served)(-[1-9]\d*)?")


def load_name(text):
    if not NAMES.fullmatch(text):
        raise argparse.ArgumentTypeError(f"no load is called '{text}' (see --help)")
    return text


def load_flags(load):
    """What bench/load is told for a load of this name."""
    kind, _, number = load.partition("-")
    count = int(number or 1)
    if kind == "prefill":
        return ["--num-prompts", 3, "--max-concurrency", 1, "--input-len", count, "--output-len", 1]
    if kind in ("decode", "batch"):
        return ["--num-prompts", 2 * count, "--max-concurrency", count, "--input-len", 16, "--output-len", 64]
    if kind == "beside":
        return ["--num-prompts", 4, "--max-concurrency", 4, "--input-len", 16, "--output-len", 256]
    if kind == "hogs":
        return ["--num-prompts", 2, "--max-concurrency", 1, "--input-len", 16, "--output-len", 128]
    return ["--num-prompts", max(3, 2 * count), "--max-concurrency", count, "--input-len", 128, "--output-len", 64]


def figures(load, report):
    """Name -> (value, whether more is better)."""
    kind, _, number = load.partition("-")
    if kind == "prefill":
        return {"prompt tokens/s": (int(number) / report["median_ttft_ms"] * 1e3, True)}
    if kind == "decode":
        return {"tokens/s": (1e3 / report["median_tpot_ms"], True)}
    if kind == "beside":
        return {"ITL p99, ms": (report["p99_itl_ms"], False), "ITL, ms": (report["median_itl_ms"], False)}
    if kind == "hogs":
        return {"ITL p90 / median": (report["p90_itl_ms"] / report["median_itl_ms"], False),
                "ITL, ms": (report["median_itl_ms"], False)}
    rate = {"output tokens/s": (report["output_throughput"], True)}
    return rate | {"TTFT, ms": (report["median_ttft_ms"], False)} if kind == "served" else rate


def run_load(options, url, seed, flags):
    with tempfile.NamedTemporaryFile() as result:
        command = [options.build / "bench" / "load", "--base-url", url, "--ignore-eos", "--quiet", "--seed", seed,
                   "--result-file", result.name, *flags]
        run_quietly(command, timeout=1800)
        return json.loads(Path(result.name).read_text())


@contextlib.contextmanager
def hogs(count):
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def prompts_while(running, options, url, seed, length):
    """The median TTFT in ms of prompts sent one after another until `running` ends."""
    ttfts, draw = [], random.Random(seed)
    while not running.done() or not ttfts:
        flags = ["--num-prompts", 1, "--input-len", length, "--output-len", 1]
        ttfts.append(run_load(options, url, draw.randrange(2**53), flags)["median_ttft_ms"])
    return statistics.median(ttfts)


def measure(options, url, load, seed):
    kind, _, number = load.partition("-")
    if kind == "hogs":
        with hogs(int(number)):
            return figures(load, run_load(options, url, seed, load_flags(load)))
    if kind == "beside":
        with concurrent.futures.ThreadPoolExecutor() as pool:
            running = pool.submit(run_load, options, url, seed, load_flags(load))
            time.sleep(0.5)
            ttft = prompts_while(running, options, url, seed, int(number))
            return figures(load, running.result()) | {"prompt's TTFT, ms": (ttft, False)}
    return figures(load, run_load(options, url, seed, load_flags(load)))


def measure_round(options, load, number):
    """The figures of the first and of the second."""
    found = {}
    for place in order_of(range(2), f"{options.seed} {load}", number):
        url = (options.first, options.second)[place]
        found[place] = measure(options, url, load, seed_of(options.seed, load, number))
    return found[0], found[1]


def spread(values, digits):
    low, mid, high = min(values), statistics.median(values), max(values)
    return f"{mid:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first")
    parser.add_argument("second")
    parser.add_argument("--loads", nargs="+", type=load_name, metavar="LOAD", default=["prefill-512", "decode", "served-16"])
    parser.add_argument("--rounds", type=positive, default=3)
    add_seed(parser)
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="build folder (default: build)")
    options = parser.parse_args()
    machine_load.print_load_at_exit()
    draw_seed(options)
    print(f"{'load':<14}{'figure':<20}{'first':<26}{'second':<26}first against second", flush=True)
    for load in options.loads:
        rounds = [measure_round(options, load, number) for number in range(options.rounds + 1)][1:]
        for name, (_, more_is_better) in rounds[0][0].items():
            first, second = ([pair[i][name][0] for pair in rounds] for i in (0, 1))
            ratios = [a / b if more_is_better else b / a for a, b in zip(first, second, strict=True)]
            print(f"{load:<14}{name:<20}{spread(first, 1):<26}{spread(second, 1):<26}{spread(ratios, 2)}", flush=True)


if __name__ == "__main__":
    main()
