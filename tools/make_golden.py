#!/usr/bin/env python3
"""Makes the reference outputs under tests/golden: tiny checkpoints per family, sampling distributions, the small model."""

import argparse
import json
import tempfile
from pathlib import Path

import torch
import transformers

import golden_compressed
import golden_gguf
from golden_dense import DENSE_FAMILIES
from golden_families import FAMILIES, make_family
from golden_latent import LATENT_FAMILIES
from golden_hybrids import HYBRIDS
from golden_mixtures import MIXTURES
from golden_pooling import MODELS, make_pooling_model
from golden_sampling import make_sampling
from golden_sigmoid import SIGMOID_MIXTURES
from golden_small_model import make_small_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="usually tests/golden")
    parser.add_argument("--small-model", type=Path, help="folder of the shipped model; without it, its file is left alone")
    parser.add_argument("--only", nargs="*", help="family names, 'qwen2-compressed', 'gguf', 'sampling'; all when absent")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.disable_progress_bar()

    def wanted(name: str) -> bool:
        return args.only is None or name in args.only

    args.out.mkdir(parents=True, exist_ok=True)
    for family in [*FAMILIES, *DENSE_FAMILIES, *MIXTURES, *LATENT_FAMILIES, *HYBRIDS, *SIGMOID_MIXTURES]:
        if wanted(family.name):
            print(family.name, make_family(args.out / family.name, family), flush=True)
    for model in MODELS:
        if wanted(model.name):
            make_pooling_model(args.out / "pooling" / model.name, model)
    if wanted(golden_compressed.NAME):
        golden_compressed.make_compressed(args.out)
    if wanted("gguf"):
        with tempfile.TemporaryDirectory() as work:
            golden_gguf.make_gguf(args.out, Path(work))
    if wanted("sampling"):
        (args.out / "sampling.json").write_text(json.dumps(make_sampling(), separators=(",", ":")) + "\n")
    if args.small_model:
        golden = json.dumps(make_small_model(args.small_model), indent=1)
        (args.out / f"{args.small_model.name}.json").write_text(golden + "\n")


if __name__ == "__main__":
    main()
