#!/usr/bin/env python3
"""build/bench/model_speed and another server's program take turns with the same loads.

Each turn starts both; which one begins is drawn. The peer is a command that prints the table of model_speed and knows its
flags --decode, --context, --output-len, --prefill and --rounds, as openvino_speed.py, vllm_speed.py and
transformers_speed.py do. Prints the tokens per second of each, as the median with the least and the most of all turns,
and the ratio of each turn (above 1: millrace is faster).

  bench/peer_turns.py --name OpenVINO --peer 'bench/openvino_speed.py --model-path OUT --threads 2' \\
      --millrace 'build/bench/model_speed --model-path DIR --device cpu --threads 2 --quantization w4'"""

import argparse
import shlex
import sys

from model_loads import add_load_flags, output_of, print_ratios, rates_in
from runs import add_seed, draw_seed, order_of, positive


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=shlex.split, required=True, help="the peer's command, in one argument")
    parser.add_argument("--millrace", type=shlex.split, required=True, help="the command of model_speed, in one argument")
    parser.add_argument("--name", default="peer", help="of the peer in the table")
    parser.add_argument("--turns", type=positive, default=3)
    add_load_flags(parser, [1, 8, 32], [512, 2048])
    add_seed(parser)
    options = parser.parse_args()
    draw_seed(options)
    loads = ["--decode", *(options.decode or [0]), "--context", options.context, "--output-len", options.output_len,
             "--prefill", *(options.prefill or [0]), "--rounds", options.rounds]
    contenders = {"millrace": options.millrace, "peer": options.peer}
    results = {name: [] for name in contenders}
    for turn in range(1, options.turns + 1):
        for name in order_of(contenders, options.seed, turn):
            output = output_of([*contenders[name], *map(str, loads)])
            results[name].append(rates_in(output))
            if not results[name][-1]:
                sys.exit(f"{shlex.join(contenders[name])} printed no row of the table:\n{output}")
    print_ratios(options.name, results["peer"], results["millrace"])


if __name__ == "__main__":
    main()
