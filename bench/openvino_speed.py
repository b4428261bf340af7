#!/usr/bin/env python3
"""The loads of build/bench/model_speed, computed by OpenVINO on a processor: a checkpoint's decode steps of several
sequences at one context, and prompts, for the same table.

Needs the Python packages openvino and numpy, and a model that optimum-intel has exported:

  optimum-cli export openvino --model DIR --task text-generation-with-past --weight-format int4 --group-size 32 --sym OUT

The model keeps its KV cache as a state, in the precision that OpenVINO chooses (--kv-cache sets another). Prompts are
random and computed in one piece, tokens are drawn greedily, and neither a tokenizer nor a server takes part.

  bench/openvino_speed.py --model-path OUT --threads 2 [--decode 1 8 32] [--context 1024] [--prefill 512 2048]"""

import argparse
import time
from pathlib import Path

import numpy
import openvino

from model_loads import add_load_flags, print_rates


class Model:
    def __init__(self, options):
        self.options = options
        config = {"INFERENCE_NUM_THREADS": options.threads, "PERFORMANCE_HINT": "LATENCY"}
        if options.kv_cache:
            config["KV_CACHE_PRECISION"] = options.kv_cache
        compiled = openvino.Core().compile_model(Path(options.model_path) / "openvino_model.xml", "CPU", config)
        self.request = compiled.create_infer_request()
        self.names = {name for each in compiled.inputs for name in each.get_names()}
        computed, kept = (compiled.get_property(name).to_string()
                          for name in ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION"))
        self.precisions = f"{computed}, KV cache {kept}"
        self.draw = numpy.random.default_rng(1)

    def random_ids(self, sequences, tokens):
        return self.draw.integers(0, self.options.vocab, (sequences, tokens), dtype=numpy.int64)

    def compute(self, ids, before):
        """The next token of each sequence, after `before` tokens of each and these."""
        sequences, tokens = ids.shape
        inputs = {"input_ids": ids,
                  "attention_mask": numpy.ones((sequences, before + tokens), numpy.int64),
                  "position_ids": numpy.tile(numpy.arange(before, before + tokens, dtype=numpy.int64), (sequences, 1)),
                  "beam_idx": numpy.arange(sequences, dtype=numpy.int32)}
        logits = self.request.infer({name: value for name, value in inputs.items() if name in self.names})[0]
        return logits[:, -1:].argmax(-1).astype(numpy.int64)

    def decode_rates(self, sequences):
        """Tokens per second of each round; all begin with the same context."""
        options = self.options
        ids = self.random_ids(sequences, options.context)
        rates = []
        for _ in range(options.rounds + 1):
            self.request.reset_state()
            token = self.compute(ids, 0)
            begin = time.perf_counter()
            for step in range(options.output_len):
                token = self.compute(token, options.context + step)
            rates.append(sequences * options.output_len / (time.perf_counter() - begin))
        return rates[1:]

    def prompt_rates(self, tokens):
        rates = []
        for _ in range(self.options.rounds + 1):
            ids = self.random_ids(1, tokens)
            self.request.reset_state()
            begin = time.perf_counter()
            self.compute(ids, 0)
            rates.append(tokens / (time.perf_counter() - begin))
        return rates[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", required=True, help="folder of openvino_model.xml")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--kv-cache", help="bf16, f16, f32, u8; default: as OpenVINO chooses")
    parser.add_argument("--vocab", type=int, default=32000, help="tokens are drawn below it")
    add_load_flags(parser, [1, 8, 32], [512, 2048])
    options = parser.parse_args()
    model = Model(options)
    print_rates(f"openvino {openvino.__version__}, {options.threads} threads, {model.precisions}", model, options)


if __name__ == "__main__":
    main()
