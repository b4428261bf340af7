#!/usr/bin/env python3
"""build/bench/model_speed and llama.cpp's llama-batched-bench take turns with one GGUF file, or with two forms of a model.

Each turn starts both programs, which compute the same loads: decode steps of several sequences at one context, and
prompts. Which one begins is drawn. Prints the tokens per second of each, as the median with the least and the most of all
turns, and the ratio of each turn (above 1: millrace is faster). Neither a tokenizer nor a server takes part.

  bench/llama_speed.py --batched-bench LLAMA.CPP/build/bin/llama-batched-bench --gguf MODEL.gguf --threads 2
  bench/llama_speed.py … --gguf MODEL-Q8_0.gguf --model-path DIR --quantization w8a8_int8

The program of ik_llama.cpp works, too; --bench-flags=-rtr lets it repack its weights when it loads them."""

import argparse
import re
import sys
import tempfile
from pathlib import Path

from model_loads import output_of, print_ratios, rates_in
from runs import add_seed, draw_seed, order_of, positive

ROOT = Path(__file__).resolve().parent.parent
#: A row of the table of llama-batched-bench: PP, TG, B, N_KV, T_PP, S_PP, T_TG, S_TG.
BATCHED_BENCH = re.compile(r"^\|(?: *\d+ \|){4} *[\d.]+ \| *([\d.]+) \| *[\d.]+ \| *([\d.]+) \|", re.MULTILINE)


def output_in_a_folder(command):
    command = [str(part.resolve() if isinstance(part, Path) else part) for part in command]
    with tempfile.TemporaryDirectory() as folder:  # some builds write logs to where they run
        return output_of(command, folder)


def millrace_rates(options):
    """Tokens per second by load."""
    decode = options.decode or [0]
    prefill = options.prefill or [0]
    output = output_in_a_folder([
        options.model_speed, "--model-path", options.model_path or options.gguf, "--device", "cpu", "--threads",
        options.threads, "--quantization", options.quantization, "--decode", *decode, "--context", options.context,
        "--output-len", options.output_len, "--prefill", *prefill, "--rounds", 1])
    return rates_in(output)


def llama_rates(options):
    base = [options.batched_bench, "-m", options.gguf, "-t", options.threads, "-tb", options.threads, "-b", 2048, "-ub",
            options.ubatch, "-fa", options.flash_attention, *options.bench_flags.split()]
    rates = {}

    def run(prompt, output, sequences):
        context = sequences * (prompt + output) + 256
        table = output_in_a_folder([*base, "-c", context, "-npp", prompt, "-ntg", output, "-npl", sequences])
        row = BATCHED_BENCH.search(table)
        if not row:
            sys.exit(f"{options.batched_bench} printed no row of its table:\n{table}")
        return {"prompt": float(row[1]), "decode": float(row[2])}

    for sequences in options.decode:
        rates["decode", sequences] = run(options.context, options.output_len, sequences)["decode"]
    for tokens in options.prefill:
        rates["prompt", tokens] = run(tokens, 1, 1)["prompt"]
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batched-bench", type=Path, required=True, help="the program llama-batched-bench")
    parser.add_argument("--model-speed", type=Path, default=ROOT / "build/bench/model_speed", help="default: %(default)s")
    parser.add_argument("--gguf", type=Path, required=True, help="what llama.cpp computes")
    parser.add_argument("--model-path", type=Path, help="what millrace computes (default: the GGUF file)")
    parser.add_argument("--quantization", default="none", help="of millrace's weights, as serve has it")
    parser.add_argument("--threads", type=positive, required=True)
    parser.add_argument("--decode", type=int, nargs="*", default=[1, 16], metavar="SEQUENCES")
    parser.add_argument("--context", type=positive, default=128)
    parser.add_argument("--output-len", type=positive, default=32)
    parser.add_argument("--prefill", type=int, nargs="*", default=[512], metavar="TOKENS")
    parser.add_argument("--ubatch", type=positive, default=512, help="tokens of a physical batch of llama.cpp")
    parser.add_argument("--flash-attention", choices=("auto", "on", "off"), default="auto", help="of llama.cpp")
    parser.add_argument("--bench-flags", default="", help="further flags of llama-batched-bench, in one argument")
    parser.add_argument("--turns", type=positive, default=3)
    add_seed(parser)
    options = parser.parse_args()
    draw_seed(options)
    contenders = {"millrace": millrace_rates, "llama.cpp": llama_rates}
    results = {name: [] for name in contenders}
    for turn in range(1, options.turns + 1):
        for name in order_of(contenders, options.seed, turn):
            results[name].append(contenders[name](options))
    print_ratios("llama.cpp", results["llama.cpp"], results["millrace"])


if __name__ == "__main__":
    main()
