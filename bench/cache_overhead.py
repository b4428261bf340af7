"""What the tree costs when nothing is ever found: the part of cache_bench.py that looks for one percent.

A machine's speed wanders by far more than that, but little within a few milliseconds. So servers that are equal but for
the tree get the same prompts one after another, in an order drawn anew for each turn; all but one are idle. A second
server without a tree shows what two equal ones differ by, and all are started several times, since a process may be
faster than its equal for as long as it lives (where its memory lies). A turn's figures are the time of the whole request
and the CPU time of the process, to the nanosecond, from before the request until the server is idle again."""

import contextlib
import http.client
import json
import random
import statistics
import sys
import time

STATES = ("plain", "device", "plain again")
RESAMPLES = 1000


class Subject:
    """A server that is idle but for the requests sent here, one by one."""

    def __init__(self, server, state, options):
        self.server, self.state, self.options = server, state, options
        self.connection = http.client.HTTPConnection(server.host, server.port, timeout=600)

    def cpu_s(self):
        return self.server.cpu_s()

    def answer(self, prompts):
        """Seconds, and seconds of CPU time, that one request takes."""
        body = json.dumps({"prompt": prompts, "max_tokens": self.options.output_len, "temperature": 0,
                           "ignore_eos": True})
        cpu_s, begin = self.cpu_s(), time.perf_counter()
        self.connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        text = answer.read()
        seconds = time.perf_counter() - begin
        if answer.status != 200:
            sys.exit(f"status {answer.status}: {text.decode()}")
        time.sleep(1e-3 * self.options.settle_ms)
        return seconds, self.cpu_s() - cpu_s

    def pages(self):
        engine = json.loads(self.server.request("GET", "/server_info")[1])["engine"]
        return engine["cached_pages"], engine["total_pages"]

    def evicted(self):
        return self.server.metric("kv_cache_evicted_pages_total")


class Prompts:
    """Token ids that never begin alike for as long as a page."""

    def __init__(self, options):
        self.options, self.draw = options, random.Random(options.seed)

    def next(self):
        return [[self.draw.randrange(3, self.options.vocab_size) for _ in range(self.options.prompt_len)]
                for _ in range(self.options.batch)]


def idle_share(subjects):
    """CPU seconds per second of the busiest while nobody asks anything."""
    before, begin = [each.cpu_s() for each in subjects], time.perf_counter()
    time.sleep(1)
    return max(each.cpu_s() - cpu_s for each, cpu_s in zip(subjects, before)) / (time.perf_counter() - begin)


def prepare(subjects, prompts, options):
    """What does not count: the first requests; and, for a full pool, as many as it takes to fill it."""
    tree = subjects[1]
    for _ in range(options.warm_up):
        batch = prompts.next()
        for subject in subjects:
            subject.answer(batch)
    while options.pool == "full" and tree.evicted() == 0:
        batch = prompts.next()
        for subject in subjects:
            subject.answer(batch)


def make_room(subjects, options):
    """Forgets what the tree knows before the pool is full, where it shall not be."""
    cached, total = subjects[1].pages()
    if options.pool == "roomy" and cached > 0.8 * total:
        for subject in subjects:
            status, text = subject.server.request("POST", "/flush_cache", {"timeout": 60})
            if status != 200:
                sys.exit(f"/flush_cache: {status}: {text}")


def one_round(subjects, prompts, options):
    """Per turn and state (seconds, CPU seconds); and how many pages the tree gave up per turn."""
    prepare(subjects, prompts, options)
    evicted = subjects[1].evicted()
    turns = []
    for number in range(options.turns_of_round):
        if number % 8 == 0:
            make_room(subjects, options)
        batch = prompts.next()
        turn = {}
        for subject in prompts.draw.sample(subjects, len(subjects)):
            turn[subject.state] = subject.answer(batch)
        turns.append(turn)
    return turns, (subjects[1].evicted() - evicted) / len(turns)


def median_ratio(turns, state, figure):
    return statistics.median(turn[state][figure] / turn["plain"][figure] for turn in turns)


def total_ratio(turns, state, figure):
    return sum(turn[state][figure] for turn in turns) / sum(turn["plain"][figure] for turn in turns)


def interval(rounds, estimate):
    """95 % of what `estimate` gives for rounds drawn from these, and turns drawn from theirs."""
    draw = random.Random(0)
    found = sorted(estimate([turn for turns in draw.choices(rounds, k=len(rounds))
                             for turn in draw.choices(turns, k=len(turns))]) for _ in range(RESAMPLES))
    return found[int(0.025 * RESAMPLES)], found[int(0.975 * RESAMPLES) - 1]


def report(rounds):
    every = [turn for turns in rounds for turn in turns]
    for figure, title in ((1, "CPU time of the server"), (0, "time of the request")):
        plain_ms = 1e3 * statistics.median(turn["plain"][figure] for turn in every)
        print(f"{title}: {plain_ms:.3f} ms without the tree (median); ratios to it, with 95 % intervals")
        for state in STATES[1:]:
            shown = []
            for name, ratio in (("median of turns", median_ratio), ("of the sums", total_ratio)):
                low, high = interval(rounds, lambda turns: ratio(turns, state, figure))
                shown.append(f"{name} {ratio(every, state, figure):.4f} [{low:.4f}, {high:.4f}]")
            by_round = " ".join(f"{median_ratio(turns, state, figure):.4f}" for turns in rounds)
            print(f"  {state:>11}: {', '.join(shown)}; medians by round {by_round}", flush=True)


def run(options, start):
    """`start(state)` makes the context manager of a server."""
    prompts, rounds, evicted, idle = Prompts(options), [], [], []
    for _ in range(options.rounds):
        with contextlib.ExitStack() as stack:
            subjects = [Subject(stack.enter_context(start("plain" if state == "plain again" else state)), state, options)
                        for state in STATES]
            idle.append(idle_share(subjects))
            turns, pages = one_round(subjects, prompts, options)
            rounds.append(turns)
            evicted.append(pages)
    print(f"{options.rounds} rounds of {options.turns_of_round} turns of {options.batch} prompts of {options.prompt_len} tokens, "
          f"{options.output_len} drawn for each; pages given up per turn {statistics.mean(evicted):.1f}; "
          f"idle CPU {100 * max(idle):.2f} %")
    report(rounds)
