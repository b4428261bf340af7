#!/usr/bin/env python3
"""Compares the vectors of a running server with those of sentence-transformers, for one model folder.

    millrace serve --model-path DIR --port 30000
    tools/compare_embeddings.py DIR http://127.0.0.1:30000

Prints the smallest cosine and the largest difference of a component. The exit status is 1 where the cosine is below --min-cosine.
"""

import argparse
import json
import sys
import urllib.request

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

TEXTS = (
    "a",
    "The old sailor walked slowly down to the sea.",
    "A harpoon is a long spear that is thrown at whales.",
    "what is a harpoon?",
    "def main() -> None:\n    print('Hello, world!')",
    "Grüße aus München — naïve café, 東京, 😀",
    "3.14159 and 2,718 are numbers; e-mail: someone@example.org",
    " ".join(f"Sentence {i} of a longer text is about the harbour and its lamps." for i in range(12)),
)


def served(url: str, texts: list[str]) -> np.ndarray:
    body = json.dumps({"input": texts, "truncate_prompt_tokens": -1}).encode()
    request = urllib.request.Request(f"{url}/v1/embeddings", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        data = json.load(response)["data"]
    return np.array([entry["embedding"] for entry in sorted(data, key=lambda entry: entry["index"])])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("url")
    parser.add_argument("--min-cosine", type=float, default=0.999)
    args = parser.parse_args()
    model = SentenceTransformer(args.folder, device="cpu", model_kwargs={"dtype": torch.float32})
    wanted = model.encode(list(TEXTS))
    found = served(args.url, list(TEXTS))
    lengths = np.linalg.norm(wanted, axis=1) * np.linalg.norm(found, axis=1)
    cosines = (wanted * found).sum(axis=1) / lengths
    print(f"{len(TEXTS)} texts, vectors of {wanted.shape[1]}: smallest cosine {cosines.min():.7f}, "
          f"largest difference {np.abs(wanted - found).max():.2e}")
    return 0 if cosines.min() >= args.min_cosine else 1


if __name__ == "__main__":
    sys.exit(main())
