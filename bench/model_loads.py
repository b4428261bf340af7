"""The loads of build/bench/model_speed for other servers' programs: the same flags, the same table, and how it is read."""

import re
import shlex
import statistics
import subprocess
import sys

#: Rows of the table: decode steps or a prompt, and the median of tokens per second.
DECODE = re.compile(r"^\| decode, (\d+) sequences[^|]*\| ([\d.]+)", re.MULTILINE)
PROMPT = re.compile(r"^\| prompt of (\d+) tokens[^|]*\| ([\d.]+)", re.MULTILINE)


def spread(values, decimals):
    return f"{statistics.median(values):.{decimals}f} [{min(values):.{decimals}f}, {max(values):.{decimals}f}]"


def add_load_flags(parser, decode, prefill):
    parser.add_argument("--decode", type=int, nargs="*", default=decode, metavar="SEQUENCES", help="0: none")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--prefill", type=int, nargs="*", default=prefill, metavar="TOKENS", help="0: none")
    parser.add_argument("--rounds", type=int, default=5)


def print_rates(title, model, options):
    """Prints the table of a model with decode_rates(sequences) and prompt_rates(tokens), tokens per second of each round."""
    print(f"{title}\n\n| load | tokens/s |\n|---|---|", flush=True)
    for sequences in filter(None, options.decode):
        print(f"| decode, {sequences} sequences of {options.context} tokens | "
              f"{spread(model.decode_rates(sequences), 1)} |", flush=True)
    for tokens in filter(None, options.prefill):
        print(f"| prompt of {tokens} tokens | {spread(model.prompt_rates(tokens), 1)} |", flush=True)


def output_of(command, folder=None):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)} ended with code {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr  # some builds print their table to the latter


def rates_in(output):
    """Tokens per second by load, of a program that printed the table."""
    rates = {("decode", int(count)): float(rate) for count, rate in DECODE.findall(output)}
    rates.update({("prompt", int(count)): float(rate) for count, rate in PROMPT.findall(output)})
    return rates


def print_ratios(peer, other_rates, own_rates):
    """Prints both programs' rates of each load, one entry per turn, and the ratio of each turn."""
    print(f"\n| load | {peer}, tokens/s | millrace, tokens/s | ratio, by turn |\n|---|---|---|---|")
    for load in own_rates[0]:
        own, other = ([rates[load] for rates in turns] for turns in (own_rates, other_rates))
        name = f"decode, {load[1]} sequences" if load[0] == "decode" else f"prompt of {load[1]} tokens"
        ratios = [a / b for a, b in zip(own, other)]
        print(f"| {name} | {spread(other, 1)} | {spread(own, 1)} | {spread(ratios, 2)} |", flush=True)
