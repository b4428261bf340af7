#!/usr/bin/env python3
"""Trains the small language model that ships with millrace and writes it as a Hugging Face folder.

The schedule follows a budget, of time (`--minutes`) or of tokens (`--tokens`, which can be repeated exactly): however fast the
machine is, the learning rate ends at zero. The context grows in phases, as short ones cost less per token.
"""

import argparse
import json
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor

from corpus import read_corpus, split_held_out
from llama import Llama, Shape
from model_card import write_card
from muon import Muon

EOS = "<|endoftext|>"
EOS_ID = 0
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['content'] is string %}{{ message['content'] | trim }}"
    "{% elif message['content'] %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] | trim }}{% endif %}{% endfor %}"
    "{% endif %}"
    "{% if not loop.last %}{{ '\\n\\n' }}{% endif %}"
    "{% endfor %}"
)

MUON_LR = 0.015
ADAM_LR = 0.003
MOMENTUM = 0.95
WEIGHT_DECAY = 0.03
WARMUP_STEPS = 100
DECAY_FROM = 0.35
PHASES = ((0.0, 256), (0.5, 512), (0.85, 1024))
BATCH_TOKENS = 4096
CHECKPOINT_S = 300.0


@dataclass
class Budget:
    """How far the training has come, from 0 to 1, by time or by tokens; at least one of the two is given."""

    minutes: float | None
    tokens: int | None

    def progress(self, elapsed_s: float, tokens_seen: int) -> float:
        by_time = elapsed_s / (60 * self.minutes) if self.minutes else 0.0
        by_tokens = tokens_seen / self.tokens if self.tokens else 0.0
        return max(by_time, by_tokens)


def train_tokenizer(texts: list[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE whose id 0 is the end-of-text mark, which is also put before every encoded text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{EOS} $A", pair=f"{EOS} $A {EOS} $B", special_tokens=[(EOS, EOS_ID)]
    )
    assert tokenizer.token_to_id(EOS) == EOS_ID
    return tokenizer


def encode_stream(tokenizer: Tokenizer, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """All texts, each preceded by EOS, as one array of ids, and the ascending indices at which a paragraph starts."""
    newline = tokenizer.token_to_id("Ċ")
    ids = np.concatenate([tokenizer.encode(text).ids for text in texts]).astype(np.int64)
    is_break = (ids == newline) | (ids == EOS_ID)
    starts = np.flatnonzero(is_break[:-1] & ~is_break[1:]) + 1
    return ids, starts


def training_windows(ids: np.ndarray, starts: np.ndarray, length: int, rng: random.Random) -> Iterator[np.ndarray]:
    """Endless windows [length + 1]: EOS, then text from the start of a paragraph.

    An epoch lays windows end to end from a random offset, moves each to the nearest paragraph, and shuffles them.
    """
    while True:
        nominal = np.arange(rng.randrange(length), len(ids) - 2 * length, length)
        begins = starts[np.searchsorted(starts, nominal).clip(max=len(starts) - 1)]
        order = list(begins[begins <= len(ids) - length])
        rng.shuffle(order)
        for begin in order:
            yield np.concatenate(([EOS_ID], ids[begin : begin + length]))


def batches(ids: np.ndarray, starts: np.ndarray, length: int, rng: random.Random) -> Iterator[tuple[Tensor, Tensor]]:
    """(inputs, targets), each [BATCH_TOKENS / length, length]."""
    windows = training_windows(ids, starts, length, rng)
    while True:
        batch = torch.from_numpy(np.stack([next(windows) for _ in range(BATCH_TOKENS // length)]))
        yield batch[:, :-1], batch[:, 1:]


@torch.no_grad()
def held_out_loss(model: Llama, ids: np.ndarray, context: int) -> float:
    """Mean nats per token over all of `ids`, in f32, in windows of context - 1 tokens, each after one EOS."""
    total, count = 0.0, 0
    for begin in range(0, len(ids), context - 1):
        target = torch.from_numpy(ids[begin : begin + context - 1])[None]
        source = torch.cat((torch.tensor([[EOS_ID]]), target[:, :-1]), dim=1)
        total += model(source, target).item() * target.numel()
        count += target.numel()
    return total / count


def save_model(out: Path, model: Llama, shape: Shape, tokenizer: Tokenizer) -> None:
    """Writes everything but the model card. Weights become bf16."""
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: p.detach().to(torch.bfloat16).contiguous() for name, p in model.named_parameters()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(out / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": EOS,
        "eos_token": EOS,
        "model_max_length": shape.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    generation_config = {
        "bos_token_id": EOS_ID,
        "eos_token_id": EOS_ID,
        "do_sample": True,
        "temperature": 0.8,
        "top_p": 0.95,
    }
    for name, content in (
        ("config.json", shape.config(EOS_ID)),
        ("tokenizer_config.json", tokenizer_config),
        ("generation_config.json", generation_config),
    ):
        (out / name).write_text(json.dumps(content, indent=2) + "\n")


def learning_rate_scale(step: int, progress: float) -> float:
    """Warm-up by steps, a plateau, then a straight line to zero at progress 1."""
    warmup = min(1.0, (step + 1) / WARMUP_STEPS)
    decay = min(1.0, max(0.0, 1 - progress) / (1 - DECAY_FROM))
    return warmup * decay


def train(
    model: Llama,
    ids: np.ndarray,
    starts: np.ndarray,
    held_out: np.ndarray,
    args: argparse.Namespace,
    save: Callable[[], None],
) -> tuple[int, float]:
    """Trains in place; returns (tokens seen, seconds). `save` writes the model as it stands."""
    shape: Shape = args.shape
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    muon = Muon(matrices, MOMENTUM, WEIGHT_DECAY)
    adam = torch.optim.AdamW(others, lr=ADAM_LR, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    forward = torch.compile(model, dynamic=False) if args.compile else model
    budget = Budget(args.minutes, args.tokens)
    rng = random.Random(args.seed)
    sources = {length: batches(ids, starts, length, rng) for _, length in PHASES}

    began = last_saved = time.monotonic()
    tokens = step = 0
    recent: list[float] = []
    while (progress := budget.progress(time.monotonic() - began, tokens)) < 1:
        length = max(length for start, length in PHASES if progress >= start)
        inputs, targets = next(sources[length])
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            loss = forward(inputs, targets)
        loss.backward()
        scale = learning_rate_scale(step, progress)
        muon.step(MUON_LR * scale)
        for group in adam.param_groups:
            group["lr"] = ADAM_LR * scale
        adam.step()
        model.zero_grad()
        tokens += inputs.numel()
        step += 1
        recent.append(loss.item())
        if step % 50 == 0:
            seconds = time.monotonic() - began
            mean, rate = sum(recent) / len(recent), tokens / seconds
            print(f"step {step} {progress:.1%} tokens {tokens / 1e6:.2f}M {rate:.0f}/s loss {mean:.4f}", flush=True)
            recent.clear()
        if time.monotonic() - last_saved > CHECKPOINT_S:
            save()
            part = held_out_loss(model, held_out[:32768], shape.max_position_embeddings)
            print(f"saved at step {step}; held-out {part:.4f} (part)", flush=True)
            last_saved = time.monotonic()
    return tokens, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="folder of Project Gutenberg *.txt books")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--minutes", type=float, help="time budget")
    parser.add_argument("--tokens", type=int, help="token budget")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--held-out", type=float, default=0.03, help="fraction of every book, from its end")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="torch.compile")
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True, help="autocast to bf16")
    args = parser.parse_args()
    if not args.minutes and not args.tokens:
        parser.error("give --minutes or --tokens")
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    train_texts, held_out_texts = split_held_out(read_corpus(args.corpus), args.held_out)
    args.shape = Shape()
    tokenizer = train_tokenizer(train_texts, args.shape.vocab_size)
    ids, starts = encode_stream(tokenizer, train_texts)
    held_out, _ = encode_stream(tokenizer, held_out_texts)
    model = Llama(args.shape, args.seed)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters} parameters; {len(ids)} training tokens, {len(held_out)} held out", flush=True)

    tokens, seconds = train(
        model, ids, starts, held_out, args, lambda: save_model(args.out, model, args.shape, tokenizer)
    )
    save_model(args.out, model, args.shape, tokenizer)
    rounded = {name: w.float() for name, w in load_file(args.out / "model.safetensors").items()}
    model.load_state_dict(rounded)
    loss = held_out_loss(model, held_out, args.shape.max_position_embeddings)
    facts = {
        "budget": f"--minutes {args.minutes:g}" if args.minutes else f"--tokens {args.tokens}",
        "threads": args.threads,
        "seed": args.seed,
        "parameters": parameters,
        "train_tokens": len(ids),
        "held_out_fraction": args.held_out,
        "held_out_tokens": len(held_out),
        "tokens_seen": tokens,
        "seconds": round(seconds),
    }
    (args.out / "training.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(f"held-out loss {loss:.4f} here, {write_card(args.out, args.corpus):.4f} by transformers")


if __name__ == "__main__":
    main()
