#!/usr/bin/env python3
"""The loads of build/bench/model_speed, computed by vLLM on a processor: a checkpoint's decode steps of several sequences
at one context, and prompts, for the same table.

Needs the Python package vllm for processors. Prompts are random, tokens are drawn greedily, and neither a tokenizer nor a
server takes part. The time of decode steps is that of a whole batch less that of the same batch with one token each.

  bench/vllm_speed.py --model-path DIR --threads 2 [--decode 1 8 32] [--context 1024] [--prefill 512 2048]"""

import argparse
import os
import random
import time

from model_loads import add_load_flags, print_rates


class Model:
    def __init__(self, options):
        from vllm import LLM  # reads the environment, which main() sets

        self.options = options
        self.draw = random.Random(1)
        length = max([options.context + options.output_len, *options.prefill])
        self.llm = LLM(options.model_path, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=length + 64,
                       max_num_batched_tokens=max(2048, length + 64), enable_prefix_caching=False,
                       enforce_eager=not options.compile, disable_log_stats=True)

    def seconds(self, prompts, tokens):
        from vllm import SamplingParams

        drawn = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        begin = time.perf_counter()
        replies = self.llm.generate(prompts, drawn, use_tqdm=False)
        taken = time.perf_counter() - begin
        assert all(len(reply.outputs[0].token_ids) == tokens for reply in replies)
        return taken

    def prompts(self, sequences, tokens):
        return [{"prompt_token_ids": [self.draw.randrange(self.options.vocab) for _ in range(tokens)]}
                for _ in range(sequences)]

    def decode_rates(self, sequences):
        """Tokens per second of each round."""
        options = self.options
        rates = []
        for _ in range(options.rounds + 1):
            prompts = self.prompts(sequences, options.context)
            first = self.seconds(prompts, 1)
            rates.append(sequences * options.output_len / (self.seconds(prompts, 1 + options.output_len) - first))
        return rates[1:]

    def prompt_rates(self, tokens):
        return [tokens / self.seconds(self.prompts(1, tokens), 1) for _ in range(self.options.rounds + 1)][1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--threads", type=int, required=True, help="bound to the first processors")
    parser.add_argument("--kv-space", type=int, default=2, help="GiB of keys and values")
    parser.add_argument("--vocab", type=int, default=32000, help="tokens are drawn below it")
    parser.add_argument("--compile", action="store_true", help="compile the model with torch, which takes minutes")
    add_load_flags(parser, [1, 8, 32], [512, 2048])
    options = parser.parse_args()
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(options.kv_space)
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{options.threads - 1}"
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    import vllm

    model = Model(options)
    print_rates(f"vllm {vllm.__version__}, {options.threads} threads, {'compiled' if options.compile else 'eager'}",
                model, options)


if __name__ == "__main__":
    main()
