#!/usr/bin/env python3
"""The loads of build/bench/model_speed, computed by transformers with torch: a checkpoint's decode steps of several
sequences at one context, and prompts, for the same table.

Needs torch and transformers, which nothing else here does. Decode steps write into a cache of fixed size, and with
--compile (on a GPU) they are captured as a graph. Prompts are computed in one piece, or in chunks of
--chunked-prefill-size. Prompts are random, tokens are drawn greedily, and neither the tokenizer nor a server takes
part.

  bench/transformers_speed.py --model-path DIR [--device cuda] [--decode 1 64 256] [--context 1024] [--prefill 2048 8192]"""

import argparse
import time

import torch
import transformers
from transformers import AutoModelForCausalLM, StaticCache

from model_loads import add_load_flags, print_rates


def rewind(cache, tokens):
    """What comes next is written behind the first `tokens`. Before transformers 5 the position of each call says so."""
    for layer in cache.layers:
        if hasattr(layer, "cumulative_length"):
            layer.cumulative_length.fill_(tokens)


class Model:
    def __init__(self, options):
        self.options = options
        self.device = torch.device(options.device)
        self.model = AutoModelForCausalLM.from_pretrained(options.model_path, dtype=torch.bfloat16,
                                                          attn_implementation="sdpa").to(self.device).eval()
        self.draw = torch.Generator().manual_seed(1)
        self.compiled = torch.compile(self.model.forward, mode="reduce-overhead", fullgraph=True) \
            if options.compile else self.model.forward

    def now(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def random_ids(self, sequences, tokens):
        return torch.randint(0, self.model.config.vocab_size, (sequences, tokens), generator=self.draw).to(self.device)

    def cache(self, sequences, tokens):
        return StaticCache(config=self.model.config, max_batch_size=sequences, max_cache_len=tokens,
                           device=self.device, dtype=torch.bfloat16)

    def compute(self, ids, cache, chunk):
        """A prompt of each sequence, `chunk` rows at a time; the token that follows it."""
        for first in range(0, ids.shape[1], chunk):
            piece = ids[:, first : first + chunk]
            at = torch.arange(first, first + piece.shape[1], device=self.device)
            logits = self.model(input_ids=piece, past_key_values=cache, cache_position=at, position_ids=at[None],
                                logits_to_keep=1, use_cache=True).logits
        return logits[:, -1].argmax(-1, keepdim=True)

    def decode_rates(self, sequences):
        """Tokens per second of each round; all begin with the same context."""
        options = self.options
        cache = self.cache(sequences, options.context + options.output_len)
        token = self.compute(self.random_ids(sequences, options.context), cache, max(1, 8192 // sequences))
        rates = []
        for _ in range(options.rounds + 1):
            rewind(cache, options.context)
            begin = self.now()
            for step in range(options.output_len):
                at = torch.tensor([options.context + step], device=self.device)
                logits = self.compiled(input_ids=token, past_key_values=cache, cache_position=at, position_ids=at[None],
                                       use_cache=True).logits
                token = logits[:, -1].argmax(-1, keepdim=True).clone()
            rates.append(sequences * options.output_len / (self.now() - begin))
        return rates[1:]

    def prompt_rates(self, tokens):
        rates = []
        for _ in range(self.options.rounds + 1):
            ids, cache = self.random_ids(1, tokens), self.cache(1, tokens)
            begin = self.now()
            self.compute(ids, cache, self.options.chunked_prefill_size or tokens)
            rates.append(tokens / (self.now() - begin))
        return rates[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="of a processor")
    add_load_flags(parser, [1, 64, 256], [2048, 8192, 32768])
    parser.add_argument("--chunked-prefill-size", type=int, default=0, help="0: a prompt in one piece")
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    transformers.utils.logging.disable_progress_bar()
    where = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    with torch.inference_mode():
        print_rates(f"transformers {transformers.__version__}, torch {torch.__version__} on {where}", Model(options), options)


if __name__ == "__main__":
    main()
