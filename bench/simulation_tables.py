#!/usr/bin/env python3
"""The tables of bench/results/*-simulation.md that come from `millrace simulate` alone, retaken.

  efficiency  16 prompts of 128K on 4 and 8 stages, by chunking, chunk and depth of the window
  ttft        one prompt of 128K on 4 and 8 stages, by chunking and first chunk, on both descriptions
  depths      the published algorithm against balanced, on both descriptions, 2, 4 and 8 stages, depths 0 to 3
  loads       time of the published algorithm over that of balanced under other loads
  million     one prompt of 1,048,576 tokens, both descriptions
  mixed       long and short prompts at random on 4 stages: goodput against fixed chunks and a plain batch queue
  decode      64 requests that decode, by depth
  ranks       DeepSeek-V3.1: pipelines of tensor-parallel stages against one stage, beside what was published

Medians over the seeds and, in brackets, the least and the most. What is simulated takes no time of this machine: the
figures don't depend on it, or on what else it does."""

import argparse
import concurrent.futures
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLUSTERS = {"first": ROOT / "bench" / "clusters" / "h20-qwen3-235b.json",
            "all five": ROOT / "bench" / "clusters" / "h20-qwen3-235b-five.json"}
RANKS = ROOT / "bench" / "clusters" / "h20-deepseek-v3.1.json"
LONG = {"num-prompts": 1, "input-len": 1 << 20}
MIXED = {"pp-size": 4, "num-prompts": 400, "request-rate": 0.8, "input-len": 2048, "length-spread": 0.5,
         "output-len": 200, "long-share": 0.05, "long-input-len": 65536, "goal-ttft": 5, "goal-tpot": 0.35}
OTHER_LOADS = {
    "1 of 131072": {"num-prompts": 1},
    "2 of 524288": {"num-prompts": 2, "input-len": 524288},
    "64 of 8192": {"num-prompts": 64, "input-len": 8192},
    "40 of 4096 `--length-spread 0.5 --long-share 0.2 --long-input-len 131072`":
        {"num-prompts": 40, "input-len": 4096, "length-spread": 0.5, "long-share": 0.2, "long-input-len": 131072},
}


class Simulator:
    def __init__(self, program):
        self.program = program
        self.pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())

    def rows(self, cluster, seed, flags):
        """The simulator's rows of one sweep: one per combination of its lists."""
        with tempfile.NamedTemporaryFile() as result:
            plain = ["--plain-batch-queue"] if flags.get("plain") else []
            command = [self.program, "simulate", "--cluster", CLUSTERS.get(cluster, cluster), "--seed", seed, *plain,
                       "--result-file", result.name]
            for name, value in flags.items():
                if name != "plain":
                    command += ["--" + name, value]
            subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
            return json.loads(Path(result.name).read_text())

    def figures(self, cluster, seeds, flags, figure):
        """{(pp size, chunking, chunk, depth): a value of `figure` per seed}."""
        values = {}
        sweeps = self.pool.map(lambda seed: self.rows(cluster, seed, flags), seeds)
        for row in (row for rows in sweeps for row in rows):
            key = row["pp_size"], row["chunking"], row["chunk_size"], row["async_batch_depth"]
            values.setdefault(key, []).append(row[figure])
        return values


def spread(values, digits, scale=1.0, unit=""):
    scaled = [scale * value for value in values]
    return f"{statistics.median(scaled):.{digits}f}{unit} [{min(scaled):.{digits}f}, {max(scaled):.{digits}f}]"


def percent(values):
    return spread(values, 1, 100, " %")


def print_table(*rows):
    """The first row is the header."""
    header, *others = rows
    print("", "| " + " | ".join(header) + " |", "|" + "---|" * len(header),
          *("| " + " | ".join(row) + " |" for row in others), sep="\n", flush=True)


def efficiency(simulator):
    rows = []
    for chunking, chunks, depths in (("fixed", "6144", "0,2"), ("published", "18432", "0,2"),
                                     ("balanced", "18432,24576", "0,1,2")):
        flags = {"pp-size": "4,8", "chunking": chunking, "chunked-prefill-size": chunks, "pp-async-batch-depth": depths}
        found = simulator.figures("first", range(10), flags, "efficiency")
        rows += [[chunking, str(chunk), str(depth), percent(found[4, chunking, chunk, depth]), percent(values)]
                 for (pp_size, _, chunk, depth), values in sorted(found.items()) if pp_size == 8]
    print_table(["", "chunk", "depth", "pp 4", "pp 8"], *rows)


def ttft(simulator):
    chunks = [6144, 12288, 18432, 24576]
    for cluster in CLUSTERS:
        flags = {"pp-size": "4,8", "chunking": "fixed,published,balanced", "num-prompts": 1,
                 "chunked-prefill-size": ",".join(map(str, chunks))}
        found = simulator.figures(cluster, [0], flags, "mean_ttft_ms")
        rows = [[f"pp {pp_size}: {chunking}",
                 *(f"{found[pp_size, chunking, chunk, 0][0] / 1000:.2f}" for chunk in chunks)]
                for pp_size in (8, 4) for chunking in ("fixed", "published", "balanced")]
        print_table([f"{cluster}: first chunk", *map(str, chunks)], *rows)


def depths(simulator):
    rows = []
    for cluster in CLUSTERS:
        flags = {"pp-size": "2,4,8", "chunking": "published,balanced", "chunked-prefill-size": "18432,24576",
                 "pp-async-batch-depth": "0,1,2,3"}
        found = simulator.figures(cluster, range(3), flags, "efficiency")
        for pp_size in (2, 4, 8):
            for chunk in (18432, 24576):
                cells = [" / ".join(f"{100 * statistics.median(found[pp_size, chunking, chunk, depth]):.1f}"
                                    for chunking in ("published", "balanced")) for depth in range(4)]
                rows.append([cluster, f"pp {pp_size}, {chunk}", *cells])
    print_table(["description", "", *(f"depth {depth}" for depth in range(4))], *rows)


def loads(simulator):
    rows = []
    for name, load in OTHER_LOADS.items():
        cells = []
        for cluster in CLUSTERS:
            flags = {"pp-size": "2,4,8", "chunking": "published,balanced", "chunked-prefill-size": "6144,18432",
                     "pp-async-batch-depth": "0,2", **load}
            found = simulator.figures(cluster, [0], flags, "duration")
            ratios = {(pp_size, chunk, depth): values[0] / found[pp_size, "balanced", chunk, depth][0]
                      for (pp_size, chunking, chunk, depth), values in found.items() if chunking == "published"}
            cells.append(f"{min(ratios.values()):.3f} to {max(ratios.values()):.3f}")
            least = min(ratios, key=ratios.get)
            print(f"{name}, {cluster}: least at pp {least[0]}, chunk {least[1]}, depth {least[2]}")
        rows.append([name, *cells])
    print_table(["`--num-prompts`, `--input-len`", "first description", "all five"], *rows)


def million(simulator):
    rows = []
    for cluster in CLUSTERS:
        flags = {"pp-size": 8, "chunking": "fixed,published,balanced", "chunked-prefill-size": "18432,24576",
                 "pp-async-batch-depth": 2, **LONG}
        for figure, digits in (("duration", 1), ("efficiency", 3)):
            found = simulator.figures(cluster, range(3), flags, figure)
            rows += [[cluster, figure, chunking, str(chunk), spread(values, digits)]
                     for (_, chunking, chunk, _), values in found.items()]
    print_table(["description", "figure", "chunking", "chunk", ""], *rows)


def mixed(simulator):
    kinds = [("fixed", {"chunking": "fixed"}, "2048,4096,8192", 0),
             ("plain batch queue", {"chunking": "fixed", "plain": True}, "2048,8192", 0),
             ("published", {"chunking": "published"}, "2048,8192", 0),
             ("balanced", {"chunking": "balanced"}, "2048,4096,8192", 0),
             ("balanced, depth 2", {"chunking": "balanced"}, "8192", 2)]
    goodput, rows = {}, []
    for name, own, chunks, depth in kinds:
        for chunk in chunks.split(","):
            flags = {**MIXED, **own, "chunked-prefill-size": chunk, "pp-async-batch-depth": depth}
            found = [result[0] for result in simulator.pool.map(lambda seed: simulator.rows("first", seed, flags),
                                                                range(10))]
            goodput[name, chunk] = values = [row["goodput"] for row in found]
            above = sum(mine > fixed for mine, fixed in zip(values, goodput["fixed", chunk]))
            middle = {key: statistics.median(row[key] for row in found)
                      for key in ("bubble_ratio", "p99_ttft_ms", "p50_tpot_ms")}
            rows.append([name, chunk, f"{100 * middle['bubble_ratio']:.1f} %", f"{middle['p99_ttft_ms'] / 1000:.1f}",
                         f"{middle['p50_tpot_ms'] / 1000:.3f}", spread(values, 3),
                         "" if name == "fixed" else str(above)])
    print_table(["", "chunk", "bubble", "TTFT p99, s", "TPOT p50, s", "goodput per s", "above fixed"], *rows)
    best = {name: max((values for (kind, _), values in goodput.items() if kind == name), key=statistics.median)
            for name in ("fixed", "plain batch queue", "balanced")}
    for other in ("fixed", "plain batch queue"):
        ratios = [mine / theirs for mine, theirs in zip(best["balanced"], best[other])]
        print(f"balanced over {other}, each at its best chunk, seed by seed: {spread(ratios, 3)}")


def decode(simulator):
    flags = {"pp-size": 4, "chunking": "balanced", "chunked-prefill-size": 8192, "pp-async-batch-depth": "0,1,2,4",
             "num-prompts": 64, "input-len": 1024, "output-len": 512}
    found = simulator.figures("first", [0], flags, "duration")
    print_table(["depth", "time, s"], *([str(key[3]), f"{values[0]:.1f}"] for key, values in found.items()))


def ranks(simulator):
    def row_of(requests, pp_size, tp_size, chunking, chunk):
        return simulator.rows(RANKS, 0, {"num-prompts": requests, "input-len": 131072, "pp-size": pp_size,
                                         "tp-size": tp_size, "chunking": chunking, "chunked-prefill-size": chunk,
                                         "dynamic-chunking-smoothing": 0.65})[0]
    settings = [("TP8", 1, 8, "fixed", 12288, "1", "48.5"), ("TP32", 1, 32, "fixed", 12288, "2.54", ""),
                ("PP4 × TP8", 4, 8, "fixed", 4096, "3.20", ""), ("PP4 × TP8", 4, 8, "published", 12288, "3.31", "15.5"),
                ("PP4 × TP8", 4, 8, "balanced", 12288, "", ""), ("PP2 × TP16", 2, 16, "balanced", 12288, "", "")]
    one = row_of(16, 1, 8, "fixed", 12288)["duration"]
    rows = []
    for name, pp_size, tp_size, chunking, chunk, published, published_ttft in settings:
        many, single = (row_of(count, pp_size, tp_size, chunking, chunk) for count in (16, 1))
        speedup = one / many["duration"]
        rows.append([name, chunking, str(chunk), f"{speedup:.2f}", published,
                     f"{100 * speedup * 8 / (pp_size * tp_size):.1f} %", f"{single['mean_ttft_ms'] / 1000:.1f}",
                     published_ttft])
    print_table(["", "chunking", "chunk", "throughput over TP8", "published", "per GPU", "TTFT, s", "published"], *rows)


TABLES = {table.__name__: table for table in (efficiency, ttft, depths, loads, million, mixed, decode, ranks)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="all of them, if none is named")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="build folder")
    options = parser.parse_args()
    if unknown := set(options.tables) - set(TABLES):
        parser.error(f"no table {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    program = options.build / "millrace"
    if not program.exists():
        parser.error(f"{program} is not built")
    simulator = Simulator(program)
    for name in options.tables or TABLES:
        TABLES[name](simulator)


if __name__ == "__main__":
    main()
