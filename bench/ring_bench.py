#!/usr/bin/env python3
"""Real servers side by side under the load generator: what dividing a model over stages costs and brings.

  partition   values of --pp-layer-partition (--divisions) against even, and all against one stage of one core, under
              one load of prompts and decode steps: tokens per second, how evenly the stages were busy, and the
              processor time of the stages' compute threads, which other load on the machine distorts least: one core's
              over that of the slowest stage is the most that two cores can gain
  scaling     two stages of one core each against one stage of one core: long prompts, then decode at batch 16, with
              both stages in one process, in two processes over TCP on loopback, and, as root, in two network
              namespaces 1 Gbit/s and 2 ms apart each way, by netem, or by bench/slow_link where the kernel has none
              (--network). Efficiency: the ratio of tokens per second, over two. The control: two servers of one core each
              at the same time, which share nothing but the machine, with half of the prompts each, and for decode also
              with all 16 each, which is what a stage has to read its weights for if micro-batches are to be as large
  flags       a server with each --with FLAGS against one without

All servers of a comparison run at once, idle but for the one that is measured; they take turns, --rounds times, after
one turn that does not count, in changing order, with prompts that no cache knows. Prints medians and, in brackets, the least and the most,
and the medians of what a turn took of the processors' time and of micro-batches; each turn on standard error.
The load generator shares the cores with the servers: it takes about 4 us per token."""

import argparse
import collections
import concurrent.futures
import contextlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine_load
from ring_network import NETWORKS, two_namespaces
from runs import LISTENING, READY, add_seed, draw_seed, order_of, positive, run_quietly, seed_of

ROOT = Path(__file__).resolve().parent.parent
Turn = collections.namedtuple("Turn", "tokens_per_second processor_s micro_batches")

LOADS = {
    "prefill": {"--max-concurrency": 4, "--output-len": 1},  # and --prompts of --prompt-len
    "decode": {"--num-prompts": 16, "--max-concurrency": 16, "--input-len": 8, "--output-len": 32},
    "decode-32": {"--num-prompts": 32, "--max-concurrency": 32, "--input-len": 8, "--output-len": 32},
    "mixed": {"--num-prompts": 16, "--max-concurrency": 16, "--input-len": 64, "--output-len": 32},
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Ring:
    """The processes of one server; use as a context manager. One command per node: (prefix, flags)."""

    def __init__(self, name, options, nodes, client_prefix=()):
        self.name, self.options, self.nodes, self.client_prefix = name, options, nodes, list(client_prefix)
        self.processes, self.url = [], None
        self.log = tempfile.TemporaryFile("w+")

    def __enter__(self):
        for prefix, flags in reversed(self.nodes):
            command = [*prefix, str(self.options.build / "millrace"), "serve", "--model-path", str(self.options.model),
                       "--port", "0", *self.options.serve_flags, *flags]
            self.processes.append(subprocess.Popen([str(part) for part in command], stdout=self.log, stderr=self.log))
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self):
        end = time.monotonic() + self.options.start_patience
        while time.monotonic() < end:
            if any(process.poll() is not None for process in self.processes):
                break
            # Asked by HTTP it would have to answer beside the stages that are being timed.
            log = self.text()
            if READY.search(log):
                self.url = LISTENING.search(log).group(1)
                return
            time.sleep(0.1)
        sys.exit(f"ring_bench: {self.name} did not start:\n{self.text()}")

    def get(self, path):
        """The body of the answer, from where the server's clients are; None: there was none, or an error."""
        done = subprocess.run([*self.client_prefix, sys.executable, "-c", FETCH, self.url + path],
                              stdout=subprocess.PIPE, text=True)
        return done.stdout if done.returncode == 0 else None

    def metrics(self, name):
        """The values of a metric, one for each of its labels."""
        return [float(value) for value in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", self.get("/metrics") or "", re.M)]

    def processor_s(self):
        """What the processes have had of the processors so far."""
        fields = [Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split() for process in self.processes]
        return sum(int(own[11]) + int(own[12]) for own in fields) / os.sysconf("SC_CLK_TCK")  # user, system

    def compute_s(self):
        """What each compute thread has had of the processors so far."""
        found = {}
        for process in self.processes:
            for task in Path(f"/proc/{process.pid}/task").iterdir():
                name, fields = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
                if name.startswith("compute"):
                    found[task.name] = sum(map(int, fields.split()[11:13])) / os.sysconf("SC_CLK_TCK")
        return found

    def text(self):
        self.log.flush()
        return Path(f"/proc/self/fd/{self.log.fileno()}").read_text(errors="replace")

    def __exit__(self, *_):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()

    def run(self, load, seed, share=1):
        """The load generator's result, for every `share`-th of a load's prompts and streams."""
        flags = dict(LOADS[load])
        if load == "prefill":
            flags.update({"--num-prompts": self.options.prompts, "--input-len": self.options.prompt_len})
        for name in ("--num-prompts", "--max-concurrency"):
            flags[name] = max(1, flags[name] // share)
        with tempfile.NamedTemporaryFile() as result:
            run_quietly([*self.client_prefix, self.options.build / "bench" / "load", "--base-url", self.url, "--result-file",
                         result.name, "--ignore-eos", "--quiet", "--seed", seed,
                         *(part for flag in flags.items() for part in flag)], timeout=600)
            return json.loads(Path(result.name).read_text())

    def used(self):
        return self.processor_s(), sum(self.metrics("millrace:micro_batches_total"))

    def turn(self, load, seed):
        before = self.used()
        result = self.run(load, seed)
        return Turn(tokens_of(load, result) / result["duration"],
                    *(late - early for early, late in zip(before, self.used())))


class Control:
    """Servers that share nothing but the machine, under the load at the same time, a `share`-th of it each."""

    def __init__(self, name, rings, share):
        self.name, self.rings, self.share = name, rings, share

    def turn(self, load, seed):
        before = [ring.used() for ring in self.rings]
        seeds = [seed_of(seed, self.share, rank) for rank in range(len(self.rings))]  # prompts of their own
        with concurrent.futures.ThreadPoolExecutor(len(self.rings)) as pool:
            results = list(pool.map(lambda ring, own: ring.run(load, own, self.share), self.rings, seeds))
        speed = sum(tokens_of(load, each) for each in results) / max(each["duration"] for each in results)
        spent = [[late - early for early, late in zip(own, ring.used())] for own, ring in zip(before, self.rings)]
        return Turn(speed, *(sum(each) for each in zip(*spent)))


def tokens_of(load, result):
    return result["total_output_tokens"] + (0 if load.startswith("decode") else result["total_input_tokens"])


FETCH = """
import sys, urllib.request
try:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    print(direct.open(sys.argv[1], timeout=30).read().decode())
except OSError:
    sys.exit(1)
"""


def two_nodes(name, options, host, prefixes, client_prefix=(), cores=None):
    """Of one thread each, on the CPUs that `cores` names for each: one each where it names none."""
    place = ["--nnodes", 2, "--dist-init-addr", f"{host}:{free_port()}", "--threads", 1]
    cores = cores or options.cores
    nodes = [([*prefixes[rank], "taskset", "-c", cores[rank]], [*place, "--node-rank", rank, "--pp-size", 2])
             for rank in range(2)]
    return Ring(name, options, nodes, client_prefix)


def measure(options, rings, load):
    """Each ring's Turns, one per round; the rings take turns."""
    turns = {ring.name: [] for ring in rings}
    for number in range(options.rounds + 1):
        for ring in order_of(rings, f"{options.seed} {load}", number):
            turn = ring.turn(load, seed_of(options.seed, load, number))
            print(f"  {load}, turn {number}, {ring.name}: {turn.tokens_per_second:.0f} tokens/s, "
                  f"{turn.processor_s:.1f} s of the processors, {turn.micro_batches:.0f} micro-batches",
                  file=sys.stderr, flush=True)
            if number > 0:
                turns[ring.name].append(turn)
    return turns


def busy_seconds(ring):
    """The stages' busy seconds so far."""
    return ring.metrics("millrace:stage_busy_seconds_total")


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def report(load, turns, *baselines):
    """`baselines`: (name, by what the ratio to it is divided)."""
    values = {name: [turn.tokens_per_second for turn in own] for name, own in turns.items()}
    bases = ", then to ".join(f"'{name}'" + (f" over {divisor}" if divisor != 1 else "") for name, divisor in baselines)
    print(f"{load}: tokens/s, and the ratio to {bases}; the processors' seconds; micro-batches")
    for name, speeds in values.items():
        shown = [spread([speed / other / divisor for speed, other in zip(speeds, values[baseline])], 3)
                 if name != baseline else "" for baseline, divisor in baselines]
        print(f"  {name:24} {spread(speeds, 0):28}" + "".join(f" {each:22}" for each in shown),
              f"{statistics.median(turn.processor_s for turn in turns[name]):8.1f}",
              f"{statistics.median(turn.micro_batches for turn in turns[name]):6.0f}", flush=True)


def bench_partition(options):
    with contextlib.ExitStack() as stack:
        rings = [stack.enter_context(Ring(kind, options, [([], ["--pp-size", options.pp_size, "--threads",
                                                                len(options.cores), "--pp-layer-partition", kind])]))
                 for kind in ["even", *(kind for kind in options.divisions if kind != "even")]]
        for ring in rings:
            chosen = re.search(r"--pp-layer-partition auto.*: .*|layers [0-9,]+: by the sizes .*", ring.text())
            print(f"  {ring.name:24} {chosen.group(0)}")
        one_core = Ring("pp 1, one core", options, [(["taskset", "-c", options.cores[0]], ["--pp-size", 1, "--threads", 1])])
        stack.enter_context(one_core)
        for load in options.loads or ["mixed", "decode"]:
            before = {ring.name: busy_seconds(ring) for ring in rings}
            compute = {ring.name: ring.compute_s() for ring in [*rings, one_core]}
            report(load, measure(options, [*rings, one_core], load), ("even", 1), (one_core.name, 1))
            used = {ring.name: [late - compute[ring.name].get(thread, 0) for thread, late in ring.compute_s().items()]
                    for ring in [*rings, one_core]}
            for ring in rings:
                busy = [late - early for early, late in zip(before[ring.name], busy_seconds(ring))]
                shares = ", ".join(f"{share / max(busy):.2f}" for share in busy)
                print(f"  {ring.name:24} stages' busy time over the slowest one's {shares}; "
                      f"mean {statistics.mean(busy) / max(busy):.3f}; processor seconds of compute threads "
                      f"{', '.join(f'{seconds:.2f}' for seconds in used[ring.name])}; "
                      f"one core's over the most {sum(used[one_core.name]) / max(used[ring.name]):.2f}")


def bench_scaling(options):
    both = ",".join(options.cores)
    with contextlib.ExitStack() as stack:
        singles = [Ring(name, options, [(["taskset", "-c", core], ["--pp-size", 1, "--threads", 1])])
                   for name, core in zip(("pp 1, one core", "pp 1, the other core"), options.cores)]
        rings = [singles[0],
                 Ring("pp 2, one process", options,
                      [(["taskset", "-c", both], ["--pp-size", 2, "--threads", 2, "--pin-threads"])]),
                 two_nodes("pp 2, TCP on loopback", options, "127.0.0.1", [[], []])]
        if options.unpinned:
            rings += [Ring("pp 2, one process, not pinned", options,
                           [(["taskset", "-c", both], ["--pp-size", 2, "--threads", 2])]),
                      two_nodes("pp 2, TCP, not pinned", options, "127.0.0.1", [[], []], cores=[both, both])]
        if os.geteuid() == 0 and not options.no_namespaces:
            prefixes, network = stack.enter_context(two_namespaces(options.network, options.build))
            rings.append(two_nodes(f"pp 2, {network}", options, "10.79.0.1", prefixes, prefixes[0]))
        for ring in [*rings, singles[1]]:
            stack.enter_context(ring)
        for load in options.loads or ["prefill", "decode"]:
            halves = Control("2 x pp 1, half each", singles, 2)
            whole = [Control("2 x pp 1, all each", singles, 1)] if load == "decode" else []
            report(load, measure(options, [*rings, halves, *whole], load), (singles[0].name, 2), (halves.name, 1))


def bench_flags(options):
    plain = ["--pp-size", options.pp_size, "--threads", len(options.cores)]
    with contextlib.ExitStack() as stack:
        rings = [stack.enter_context(Ring(more or "plain", options, [([], [*plain, *more.split()])]))
                 for more in ["", *options.more]]
        for load in options.loads or ["prefill", "decode"]:
            report(load, measure(options, rings, load), ("plain", 1))


def add_start_patience(parser):
    parser.add_argument("--start-patience", type=float, default=300, metavar="S",
                        help="a server may take so long to start; published chunking times 128 prompts")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["partition", "scaling", "flags"])
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "books-4m",
                        help="folder of the model; tools/make_random_checkpoint.py makes ones of real shapes")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="build folder (millrace and bench/load)")
    parser.add_argument("--prompts", type=positive, default=16, help="of the load prefill")
    parser.add_argument("--prompt-len", type=positive, default=1000,
                        help="tokens of a prompt; longer ones, where the model takes them, fill the ring for longer")
    parser.add_argument("--rounds", type=positive, default=5)
    add_seed(parser)
    add_start_patience(parser)
    parser.add_argument("--divisions", nargs="+", metavar="HOW", default=["auto"],
                        help="partition: values of --pp-layer-partition besides even")
    parser.add_argument("--pp-size", type=positive, default=2, help="partition and flags only")
    parser.add_argument("--with", dest="more", metavar="FLAGS", action="append", default=[],
                        help="flags: of the other server, in one string; several servers by several of them")
    parser.add_argument("--cores", type=lambda text: text.split(","), default=["0", "1"], help="CPUs of the stages")
    parser.add_argument("--loads", nargs="+", choices=LOADS, help="other loads than the usual ones")
    parser.add_argument("--no-namespaces", action="store_true", help="scaling without the slow network")
    parser.add_argument("--unpinned", action="store_true",
                        help="scaling: also with a thread per stage on whichever core, in one process and over TCP")
    parser.add_argument("--network", choices=["auto", *NETWORKS], default="auto",
                        help="between the namespaces: netem, relay (bench/slow_link), or the rate without the delay")
    parser.add_argument("--serve-flags", type=str.split, default=[], help="more flags for every server, in one string")
    options = parser.parse_args()
    for program in (options.build / "millrace", options.build / "bench" / "load", options.build / "bench" / "slow_link"):
        if not program.exists():
            parser.error(f"{program} is not built")
    if options.what == "scaling" and len(options.cores) != 2:
        parser.error(f"--cores {','.join(options.cores)}: scaling is between two")
    machine_load.print_load_at_exit()
    draw_seed(options)
    {"partition": bench_partition, "scaling": bench_scaling, "flags": bench_flags}[options.what](options)


if __name__ == "__main__":
    main()
