#!/usr/bin/env python3
"""Checks the small model through transformers and writes its model card, README.md, from what it measures."""

import argparse
import json
import math
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

from corpus import read_corpus, split_held_out

SAMPLE_PROMPTS = (
    "It was a dark night, and",
    "Sherlock Holmes lit his pipe and",
    "The princess looked at Pierre, and",
)
SAMPLE_TOKENS = 120

CARD = """\
# books-4m

A small language model that ships with millrace, so that the server can be tried and tested without a download. It continues
text in the manner of nineteenth-century novels. It knows nothing and follows no instructions.

| | |
|---|---|
| architecture | Llama (`LlamaForCausalLM`): hidden {hidden_size}, {num_hidden_layers} layers, {num_attention_heads} heads, \
{num_key_value_heads} KV heads, head_dim {head_dim}, feed-forward {intermediate_size}, tied embeddings |
| parameters | {parameters:,}, stored in bf16 ({size_mb:.1f} MB) |
| context | {max_position_embeddings} tokens |
| tokenizer | byte-level BPE, vocabulary {vocab_size}, about {bytes_per_token:.2f} bytes a token; `<|endoftext|>` (id 0) begins and ends a text |
| held-out loss | **{loss:.3f} nats per token** ({bits_per_byte:.3f} bits per byte, perplexity {perplexity:.1f}) |

## Data
Five books of Project Gutenberg, all in the public domain in the United States: *The Adventures of Sherlock Holmes* (Doyle),
*Pride and Prejudice* (Austen), *Moby Dick* (Melville), *Les Misérables* (Hugo, translated by Hapgood) and *War and Peace*
(Tolstoy, translated by Maude). Licence texts, tables of contents and end notes are removed, hard-wrapped lines joined,
typographic quotes and `_italics_` marks made plain. A text is a chapter.

The last {held_out_percent:.0f} % of every book is held out: {held_out_tokens:,} tokens, against {train_tokens:,} for
training. Neither the model nor the tokenizer has seen them. The loss is the mean over all of them, in windows of {window}
tokens, each after one `<|endoftext|>`, with the bf16 weights as stored, computed in f32 by transformers. The ends of the
books include the essay that closes *War and Peace*, which is harder than the stories.

## Training
```
python tools/train_small_model.py --corpus CORPUS --out models/books-4m {budget}
```
{tokens_seen_m:.1f} M tokens ({epochs:.1f} passes over the data) in {minutes:.0f} minutes on {threads} CPU thread, with Muon
for the matrices and AdamW for the rest, in batches of 4096 tokens; context 256, then 512, then 1024; bf16 autocast. The
schedule follows the clock, so that a second run gives a similar model, not the same one (`--tokens` gives a repeatable
schedule).

## Use
A prompt is continued. The chat template joins the contents of all messages as paragraphs after `<|endoftext|>` and adds no
marks of roles, so that a chat completion, too, continues the last message's text. `generation_config.json` suggests
temperature 0.8, top_p 0.95.

Samples (those settings, seed 1; the prompt in bold):
{samples}

## Limits
Grammar mostly holds, sense does not last a paragraph; people change places and names. English only; other scripts cost a
token for each byte and end in noise. The texts are of their time and hold views to match. Not for any use but showing and
testing the server.

## Licence
The texts are in the public domain. The weights and the tokenizer carry the licence of this repository.
"""


@torch.no_grad()
def held_out_loss(model, tokenizer, texts: list[str]) -> float:
    """Mean nats per token of all texts end to end, each text and each window of context - 1 tokens after one EOS."""
    context = model.config.max_position_embeddings
    eos = tokenizer.eos_token_id
    ids = torch.tensor([i for text in texts for i in tokenizer(text)["input_ids"]])
    total = 0.0
    for begin in range(0, len(ids), context - 1):
        target = ids[begin : begin + context - 1]
        source = torch.cat((torch.tensor([eos]), target[:-1]))
        logprobs = model(source[None]).logits[0].log_softmax(-1)
        total -= logprobs.gather(1, target[:, None]).double().sum().item()
    return total / len(ids)


def sample(model, tokenizer, prompt: str) -> str:
    """A continuation of SAMPLE_TOKENS tokens with the model's own sampling defaults."""
    set_seed(1)
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    output = model.generate(**inputs, max_new_tokens=SAMPLE_TOKENS, pad_token_id=tokenizer.eos_token_id)
    return tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def quote(prompt: str, continuation: str) -> str:
    return "\n".join("> " + line if line else ">" for line in f"**{prompt}**{continuation}…".split("\n"))


def write_card(folder: Path, corpus: Path) -> float:
    """Measures the held-out loss, writes README.md, and returns the loss. Needs the folder's training.json."""
    facts = json.loads((folder / "training.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    _, held_out = split_held_out(read_corpus(corpus), facts["held_out_fraction"])
    loss = held_out_loss(model, tokenizer, held_out)
    held_out_bytes = sum(len(text.encode()) for text in held_out)
    samples = [quote(prompt, sample(model, tokenizer, prompt)) for prompt in SAMPLE_PROMPTS]
    card = CARD.format(
        **json.loads((folder / "config.json").read_text()),
        **facts,
        loss=loss,
        perplexity=math.exp(loss),
        bits_per_byte=loss * facts["held_out_tokens"] / math.log(2) / held_out_bytes,
        bytes_per_token=held_out_bytes / facts["held_out_tokens"],
        window=model.config.max_position_embeddings - 1,
        size_mb=(folder / "model.safetensors").stat().st_size / 1e6,
        held_out_percent=100 * facts["held_out_fraction"],
        tokens_seen_m=facts["tokens_seen"] / 1e6,
        epochs=facts["tokens_seen"] / facts["train_tokens"],
        minutes=facts["seconds"] / 60,
        samples="\n\n".join(samples),
    )
    (folder / "README.md").write_text(card)
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder that train_small_model.py has written")
    parser.add_argument("--corpus", type=Path, required=True, help="the folder of books that it was trained on")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"held-out loss by transformers: {write_card(args.model, args.corpus):.4f} nats per token")


if __name__ == "__main__":
    main()
