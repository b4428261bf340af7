"""Reference outputs of the small model that ships with millrace, and of its tokenizer and chat template."""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from golden_families import TOLERANCE, generator_versions, greedy, load, logits_of, prompt_logprobs, significant

TOP = 20

PROMPTS = [
    "",
    "It was",
    "Call me Ishmael. Some years ago",
    '"My dear Watson," said Holmes, "',
    "The prince looked at her in silence, and then, turning to the window, he said",
    "CHAPTER I\n\nIt is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want "
    "of a wife.\n\nHowever little known the feelings or views of such a man may be on his first entering a neighbourhood,",
    "In the year 1815 the old sailor, who had never seen Paris, walked slowly down the Rue de l'Église to the sea. ☃ He "
    "carried a harpoon, a lantern, and a letter for the Bishop. The night was dark; the wind had fallen, and the lamps of "
    "the harbour were reflected in the water. At the corner of the street a soldier stopped him and asked for his papers. "
    "The old man did not answer at once. He put down the lantern, looked for a long time at the soldier's young face, and "
    "at last, with a sigh,",
]

TEXTS = [
    "",
    " ",
    "a",
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "  two spaces before and after  ",
    "tabs\tand\nnewlines\n\nand\r\ncarriage returns",
    "\n\n\n",
    "trailing spaces   \n  next line",
    "don't won't I'll you've they're she'd I'm it's 'twas 'S 'LL",
    "1234567890 3.14159 1,000,000 1815",
    "CAPITALS and MiXeD cAsE",
    "snake_case camelCase kebab-case path/to/file.txt user@example.com",
    "(parentheses) [brackets] {braces} <angles> \"quotes\" 'single'",
    "!!! ??? ... ;;; --- *** ###",
    "for (int i = 0; i < n; ++i) { sum += a[i]; }",
    "Pávlovna Café Éponine naïve façade Æsop œuvre",
    "em\u2014dash \u201ccurly\u201d \u2018quotes\u2019 ellipsis\u2026",
    "e\u0301 combining acute, \u00e9 precomposed",
    "Привет, мир! Война и мир",
    "你好，世界。今天天气很好",
    "こんにちは世界 カタカナ",
    "안녕하세요 세계",
    "مرحبا بالعالم",
    "שלום עולם",
    "नमस्ते दुनिया",
    "emoji 😀 👩‍👩‍👧‍👦 🇫🇷 👍🏽",
    "zero\u200bwidth no\u00a0break ideographic\u3000space",
    "next\u0085line sep\u2028arator mongolian\u180evowel",
    "\u0000null and \u007fdel and \ufffdreplacement",
    "½ ² Ⅷ ① ٣ ५ numbers",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "before<|endoftext|>after <|endoftext|> spaced",
    "<|endoftext|",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0010ffff end",
    "The ship! The hearse!\u2014the second hearse!\" cried Ahab from the boat;\n\"its wood could only be American!\"",
]

CHATS = [
    [{"role": "user", "content": "The old man opened the door and"}],
    [
        {"role": "system", "content": "CHAPTER I"},
        {"role": "user", "content": "  It was a dark night.  "},
        {"role": "assistant", "content": "The wind howled."},
        {"role": "user", "content": "Then"},
    ],
    [{"role": "user", "content": [{"type": "text", "text": "Once upon a time"}]}],
]


def prompt_entry(model, tokenizer: Tokenizer, text: str) -> dict:
    """Ids (with the leading end-of-text mark), last-position logits and a greedy continuation of one prompt."""
    ids = tokenizer.encode(text).ids
    logits = logits_of(model, ids)
    top = logits[-1].topk(TOP)
    tokens, margins = greedy(model, ids)
    return {
        "text": text,
        "ids": ids,
        "top_ids": top.indices.tolist(),
        "top_logits": significant(top.values.tolist()),
        "logsumexp": significant(logits[-1].double().logsumexp(-1).item()),
        "prompt_logprobs": [None] + significant(prompt_logprobs(logits, ids)[1:]),
        "greedy": tokens,
        "margins": significant(margins),
        "greedy_text": tokenizer.decode(tokens, skip_special_tokens=False),
    }


def make_small_model(folder: Path) -> dict:
    """The content of books-4m.json."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    chat_tokenizer = AutoTokenizer.from_pretrained(folder)
    model = load(folder, torch.float32)
    cases = []
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        cases.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)})
    chats = []
    for messages in CHATS:
        rendered = chat_tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer.encode(rendered, add_special_tokens=False).ids
        chats.append({"messages": messages, "text": rendered, "ids": ids})
    return {
        "family": folder.name,
        "generator": generator_versions(),
        "tolerance": TOLERANCE,
        "prompts": [prompt_entry(model, tokenizer, text) for text in PROMPTS],
        "tokenizer": cases,
        "chat": chats,
    }
