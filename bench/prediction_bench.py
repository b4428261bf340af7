#!/usr/bin/env python3
"""Real servers against what `millrace simulate` predicts for them, and ways of cutting prompts against each other.

For each --pp-size a server per chunking starts and times its stages; one that cuts by cost gives the description of the
ring (/cost_model). Then bench/load runs loads heavy in prefill, heavy in decode, and mixed
(or `long`: a few prompts of many chunks), on each server in turn, --rounds times after one turn that does not count; and
the simulator replays the very requests of each run over that description. Printed: what was measured, predicted /
measured, and the time against that of the first chunking; medians and, in brackets, the least and the most; at the end
the ratios as tables for bench/results. The description is taken before each run (--describe run), or once, before
the first (start), and in either case once more after the run: what is foreseen wrong before and right afterwards is the
machine's wandering speed, what is wrong both times is the simulator's doing. What ran before a load leaves its mark on
the description: --shuffle draws the order anew for every round, so that it is not always the same.
Needs the machine for itself."""

import argparse
import collections
import contextlib
import json
import random
import tempfile
from pathlib import Path

import machine_load
from ring_bench import ROOT, Ring, add_start_patience, spread
from runs import positive, run_quietly, urlopen

Run = collections.namedtuple("Run", "path result before after")  # and the descriptions of before and after it
LOADS = {
    "prefill": ["--num-prompts", "8", "--max-concurrency", "4", "--input-len", "1500", "--output-len", "2"],
    "decode": ["--num-prompts", "32", "--max-concurrency", "16", "--input-len", "32", "--output-len", "64"],
    "mixed": ["--num-prompts", "24", "--max-concurrency", "8", "--input-len", "512", "--output-len", "32"],
    "long": ["--num-prompts", "4", "--max-concurrency", "4", "--input-len", "4000", "--output-len", "1"],
}
FIGURES = {  # of bench/load's result file, of the simulator's
    "time, s": ("duration", "duration", 1),
    "TTFT mean, ms": ("mean_ttft_ms", "mean_ttft_ms", 0),  # its median lies between those who came first and the others
    "TPOT mean, ms": ("mean_tpot_ms", "mean_tpot_ms", 1),
}
MOMENTS = ("before", "after")


def fetch(url):
    with urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def run_load(options, ring, load, seed, path):
    run_quietly([options.build / "bench" / "load", "--base-url", ring.url, "--result-file", path, "--ignore-eos",
                 "--quiet", "--seed", seed, "--range-ratio", options.range_ratio, *LOADS[load]], timeout=600)
    return json.loads(path.read_text())


def simulate(options, chunking, cluster, requests, path):
    run_quietly([options.build / "millrace", "simulate", "--cluster", cluster, "--requests", requests, "--chunking",
                 chunking, "--chunked-prefill-size", options.chunk, "--pp-async-batch-depth", options.depth,
                 "--result-file", path])
    return json.loads(path.read_text())[0]


def measure(options, rings, describe, folder):
    """{(load, chunking): [Run]}, one entry per round that counts."""
    runs = {(load, chunking): [] for load in options.loads for chunking in rings}
    for number in range(options.rounds + 1):
        for load, chunking in order_of(options, number):
            ring = rings[chunking]
            path = folder / f"{ring.name}-{load}-{number}.json".replace(" ", "")
            # A server of fixed chunks can't describe itself before it has served.
            before = describe(path.with_suffix(".before.json")) if number > 0 else None
            seed = 100 * number + options.loads.index(load)  # no prompt twice
            result = run_load(options, ring, load, seed, path)
            if number > 0:
                after = describe(path.with_suffix(".after.json"), anew=True)
                runs[load, chunking].append(Run(path, result, before, after))
    return runs


def order_of(options, number):
    order = [(load, chunking) for load in options.loads for chunking in options.chunkings]
    if options.shuffle is not None:
        random.Random(f"{options.shuffle} {number}").shuffle(order)
    return order


def report(options, pp_size, runs, folder):
    """Prints what was measured and foreseen; returns the rows of the tables, by moment."""
    rows = {moment: [] for moment in MOMENTS}
    for (load, chunking), measured in runs.items():
        print(f"pp {pp_size}, {chunking}, {load}")
        label = f"pp {pp_size}, {load}" + (f", {chunking}" if len(options.chunkings) > 1 else "")
        predicted = {moment: predict(options, chunking, measured, moment, folder) for moment in MOMENTS}
        cells = {moment: [] for moment in MOMENTS}
        for name, (real, simulated, digits) in FIGURES.items():
            values = [run.result[real] for run in measured]
            print(f"  {name:16} {spread(values, digits):28}", end="")
            for moment in MOMENTS:
                ratios = [row[simulated] / value for row, value in zip(predicted[moment], values) if value > 0]
                # Two tokens have one gap between them, which shows prefill and not decode.
                shown = ratios and not (real == "mean_tpot_ms" and load == "prefill")
                cells[moment].append(spread(ratios, 2) if shown else "")
                print(f" {moment} {spread(ratios, 3) if ratios else '':24}", end="")
            print()
        if chunking != options.chunkings[0]:
            base = options.chunkings[0]
            first = runs[load, base]
            ratios = [own.result["duration"] / other.result["duration"] for own, other in zip(measured, first)]
            others = predict(options, base, first, "before", folder)
            ours = [own["duration"] / other["duration"] for own, other in zip(predicted["before"], others)]
            print(f"  time against {base}: {spread(ratios, 3)}, predicted {spread(ours, 3)}")
        print(end="", flush=True)
        for moment in MOMENTS:
            rows[moment].append("| " + " | ".join([label, *cells[moment]]) + " |")
    return rows


def predict(options, chunking, measured, moment, folder):
    return [simulate(options, chunking, getattr(run, moment), run.path, folder / "row.json") for run in measured]


def bench(options, pp_size, folder):
    with contextlib.ExitStack() as stack:
        rings = {}
        for chunking in options.chunkings:
            flags = ["--pp-size", pp_size, "--threads", options.threads, "--chunking", chunking,
                     "--chunked-prefill-size", options.chunk, "--pp-async-batch-depth", options.depth]
            rings[chunking] = stack.enter_context(Ring(f"pp{pp_size} {chunking}", options, [([], flags)]))
        timed = next((ring for chunking, ring in rings.items() if chunking != "fixed"), rings[options.chunkings[0]])
        start = folder / f"cluster-pp{pp_size}.json"
        if options.describe == "start":
            start.write_text(fetch(timed.url + "/cost_model"))

        def describe(path, anew=False):
            if options.describe == "start" and not anew:
                return start
            path.write_text(fetch(timed.url + "/cost_model"))
            return path

        runs = measure(options, rings, describe, folder)
    return report(options, pp_size, runs, folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True,
                        help="folder of a model with a context of 8192; "
                             "tools/make_random_checkpoint.py makes ones of real shapes")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="build folder (millrace and bench/load)")
    parser.add_argument("--pp-sizes", type=positive, nargs="+", default=[1, 2, 4])
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=["prefill", "decode", "mixed"])
    parser.add_argument("--range-ratio", type=float, default=0.5, help="lengths vary by this part to either side")
    parser.add_argument("--rounds", type=positive, default=3)
    add_start_patience(parser)
    parser.add_argument("--threads", type=positive, default=2, help="over all stages")
    parser.add_argument("--chunkings", nargs="+", default=["balanced"], choices=["fixed", "published", "balanced"],
                        help="fixed alone gives no description before it has served")
    parser.add_argument("--chunk", type=int, default=1024, help="--chunked-prefill-size of server and simulator")
    parser.add_argument("--depth", type=int, default=0, help="--pp-async-batch-depth of both")
    parser.add_argument("--shuffle", type=int, metavar="SEED", help="draw the order of the loads anew in every round")
    parser.add_argument("--describe", choices=["run", "start"], default="run", help="when to ask for the description")
    parser.add_argument("--serve-flags", type=str.split, default=[], help="more flags for every server, in one string")
    parser.add_argument("--keep", type=Path, help="folder for the descriptions and the result files")
    options = parser.parse_args()
    for program in (options.build / "millrace", options.build / "bench" / "load"):
        if not program.exists():
            parser.error(f"{program} is not built")
    machine_load.print_load_at_exit()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        tables = [bench(options, pp_size, folder) for pp_size in options.pp_sizes]
    for moment in MOMENTS:
        rows = [row for table in tables for row in table[moment]]
        print(f"\n| predicted from {moment} the run / measured | time | TTFT, mean | TPOT, mean |", "|---|---|---|---|",
              *rows, sep="\n")


if __name__ == "__main__":
    main()
