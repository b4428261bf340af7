#!/usr/bin/env python3
"""Writes tests/text/tokenizer_cases.json: small tokenizers that use every component, and what Hugging Face's tokenizers
gives for texts, pairs of texts and lists of ids. Needs `pip install tokenizers==0.23.3 sentencepiece protobuf`."""
import base64
import json
import pathlib
import random
import tempfile

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2

TEXTS = [
    "", " ", "  ", "a", "hello world", " hello  world ", "Hello, World! 123 4567", "it's IT'S we'll WE'LL", "a\nb\r\n\n c\t\td",
    "é e\u0301 ﬁ Å", "日本語 text", "🦙🦙 x", "<s>hello</s>", "a<s> b <s>c", "<mask> x<mask>", "x <mask> y", "foo<w>bar <w> baz<w>",
    "\u2581x \u2581", "x\u00a0y\u2003z", "12ab34", "!?...", "hello<|sp|>world", "\x00\x01", "   leading", "trailing   ",
    "<n>abc a<n>b", "A<N>B", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "_a_b", "x-y_z", "\u017f 's '\u017f",
]
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
TEKKEN = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPM = "\u2581"


def byte_chars():
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, extra = {}, 256
    for b in range(256):
        table[b] = chr(b) if b in own else chr(extra)
        extra += b not in own
    return table


def grow(pieces, words, merges_wanted):
    """A vocabulary of `pieces` with merges learnt from `words` (lists of pieces)."""
    vocab, merges = list(dict.fromkeys(pieces)), []
    while len(merges) < merges_wanted:
        pairs = {}
        for word in words:
            for pair in zip(word, word[1:]):
                pairs[pair] = pairs.get(pair, 0) + 1
        if not pairs:
            break
        best = max(sorted(pairs), key=lambda pair: pairs[pair])
        merges.append(list(best))
        if "".join(best) not in vocab:
            vocab.append("".join(best))
        for word in words:
            i = 0
            while i + 1 < len(word):
                if (word[i], word[i + 1]) == best:
                    word[i:i + 2] = ["".join(best)]
                i += 1
    return vocab, merges


def byte_level_model(**options):
    table = byte_chars()
    texts = [t for t in TEXTS if "<" not in t]  # added tokens are not to become words of the model
    words = [[table[b] for b in (" " + w).encode()] for t in texts for w in t.split() for _ in range(2)]
    words += [[table[b] for b in w.encode()] for t in texts for w in t.split(" ")]
    vocab, merges = grow(list(table.values()), words, 120)
    return {"type": "BPE", "vocab": {t: i for i, t in enumerate(vocab)}, "merges": merges, **options}


def sentence_piece_model(byte_fallback=True, **options):
    chars = [SPM] + sorted({c for t in TEXTS for c in t if c.isascii() and c not in " \x00\x01\n\r\t"})
    words = [[SPM, *w] for t in TEXTS for w in t.split() if w.isascii() and w.isprintable() and "<" not in w] + [[SPM, SPM]] * 3
    vocab, merges = grow(["<unk>"] + (["<0x%02X>" % b for b in range(256)] if byte_fallback else []) + chars, words, 80)
    return {"type": "BPE", "vocab": {t: i for i, t in enumerate(vocab)}, "merges": merges, "unk_token": "<unk>",
            "byte_fallback": byte_fallback, **options}


def added(first, *tokens):
    base = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [{"id": first + i, **base, **t} for i, t in enumerate(tokens)]


def split(pattern, behavior="Isolated", kind="Regex", invert=False):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def byte_level(**options):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False, **options}


def sequence(key, *items):
    return {"type": "Sequence", key: list(items)}


def replace(a, b, kind="String"):
    return {"type": "Replace", "pattern": {kind: a}, "content": b}


def bos_template(token, id):
    return {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": token, "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}}}


def tokenizers_to_try():
    tokens = ({"content": "<s>"}, {"content": "</s>"}, {"content": "<mask>", "lstrip": True}, {"content": "<|sp|>", "rstrip": True},
              {"content": "<w>", "single_word": True, "special": False}, {"content": "<n>", "normalized": True, "special": False})
    bl, sp = byte_level_model(), sentence_piece_model(fuse_unk=True)
    nb, ns = len(bl["vocab"]), len(sp["vocab"])
    spm_decoder = sequence("decoders", replace(SPM, " "), {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0})
    legacy = sequence("normalizers", {"type": "Prepend", "prepend": SPM}, replace(" ", SPM))

    def make(model, first, normalizer=None, pre=None, post=None, decoder=None):
        return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added(first, *tokens), "normalizer": normalizer,
                "pre_tokenizer": pre, "post_processor": post, "decoder": decoder, "model": model}

    def byte(pre, normalizer=None, post=byte_level(), model=bl):
        return make(model, nb, normalizer, pre, post, byte_level())

    def meta(scheme, split=False):
        return {"type": "Metaspace", "replacement": SPM, "prepend_scheme": scheme, "split": split}

    yield "llama3", byte(sequence("pretokenizers", split(LLAMA3), byte_level()), None, sequence("processors", byte_level(), bos_template("<s>", nb)))
    yield "ignore_merges", byte(sequence("pretokenizers", split(LLAMA3), byte_level()), model={**bl, "ignore_merges": True, "merges": bl["merges"][:20]})
    yield "qwen", byte(sequence("pretokenizers", split(LLAMA3.replace("{1,3}", "")), byte_level()), {"type": "NFC"})
    yield "deepseek", byte(sequence("pretokenizers", *[split(p) for p in DEEPSEEK], byte_level()), sequence("normalizers"))
    yield "tekken", byte(sequence("pretokenizers", split(TEKKEN), byte_level()))
    yield "gpt2", byte(byte_level(use_regex=True))
    yield "gpt2_prefix", byte(byte_level(use_regex=True, add_prefix_space=True))
    yield "digits", byte(sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, byte_level(use_regex=True)), {"type": "NFKC"})
    yield "digit_runs", byte(sequence("pretokenizers", {"type": "Digits", "individual_digits": False}, byte_level()), {"type": "NFD"})
    yield "punctuation", byte(sequence("pretokenizers", {"type": "Punctuation", "behavior": "Contiguous"}, byte_level()), {"type": "Lowercase"})
    yield "whitespace", byte(sequence("pretokenizers", {"type": "Whitespace"}, byte_level()), {"type": "Strip", "strip_left": True, "strip_right": True})
    yield "whitespace_split", byte(sequence("pretokenizers", {"type": "WhitespaceSplit"}, byte_level()), {"type": "NFKD"})
    for behavior in ("Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        yield "split_" + behavior, byte(sequence("pretokenizers", split("[ab]", behavior), byte_level()), replace("o+", "0", "Regex"))
        yield "inverted_" + behavior, byte(sequence("pretokenizers", split(r"\w", behavior, invert=True), byte_level()))
    yield "llama2", make(sp, ns, legacy, None, bos_template("<s>", ns), spm_decoder)
    yield "llama2_unk", make(sentence_piece_model(False, fuse_unk=True), len(sentence_piece_model(False)["vocab"]), legacy, None, None, spm_decoder)
    yield "llama2_unk_each", make(sentence_piece_model(False, fuse_unk=False), len(sentence_piece_model(False)["vocab"]), legacy, None, None, spm_decoder)
    yield "mistral_v3", make(sp, ns, None, meta("first"), None, spm_decoder)
    yield "metaspace_always", make(sp, ns, None, meta("always", True), None, meta("always", True))
    yield "metaspace_never", make(sp, ns, None, meta("never", True), None, meta("never", True))
    yield "gemma", make(sp, ns, replace(" ", SPM), split(" ", "MergedWithPrevious", "String"), bos_template("<s>", ns),
                        sequence("decoders", replace(SPM, " "), {"type": "ByteFallback"}, {"type": "Fuse"}))
    yield "no_decoder", make(sp, ns, None, {"type": "WhitespaceSplit"})


# Characters whose properties changed lately, that normalizers change, and that the libraries' tables disagree about.
UNUSUAL = [
    "\u1c89\u0897 \U00010d50x", "\ua7cb\u00b2\u00bd 1\u00b2", "\u4e00\u3007\u30fc\u30ab\u3042 a", "\U000323b0\u31f0\u2e80", "a\u200db\u200cc",
    "\u0130I\u0307 \u1e9e\u00df", "\u01c5\u10d0\u1c90", "e\u0301\u0323 \u0f73\u0301", "\u32ff\u1df6\u0334a", "\ufdfa\u338f\uff76\uff9e",
    "x\u00ady\ufeffz\ufffd", "a\u0085b\u000bc\u001cd\u007f", "\u2028\u3000 \u180e", "\u0e44\u0e17\u0e22 \u0915\u094d\u0937", "\u0600\u0661 \u0662",
    "$5+3=8<9>|~^`", "(a)[b]{c}\u00ab\u2018\u2e52", "caf\u00e9 CAF\u00c9", "1234567 12 1", "aaaabbbb ab abab", "\U0001f468\u200d\U0001f469 \U0001f1e9\U0001f1ea",
    "U.S.A. don't! isn't", "\u221a2 \u2460 \u2167 \U0001d7d8", "\u1100\u1161\uac00", "-a-b--c-",
]
KIMI = "|".join([
    r"[\p{Han}]+", r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*", r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
PATTERNS = [
    r"\p{N}{1,3}+", r"a{2}?", r"a{2}+b", r"(?:ab){1,2}+", r"a{,2}b", r"a{2}{2}", r"a?{2}b", r"a*+b", r"a+?", r"\w+", r"\W+", r"[\w&&[^a]]+", r"[[:word:]]+",
    r"[[:punct:]]+", r"[^[:alpha:]]+", r"[[ab][cx]]+", r"[^[^ab]]+", r"[a-c&&b-z&&[^x]]+", r"\h+", r"\p{^L}+", r"[\P{L}a]+", r"\p{Lu}\p{Ll}*", r"\p{Cn}+", r"\b",
    r"(?i)[b-c]+", r"(?i)caf\u00e9", r"a(?i)B|c", r"\p{Garay}+|\p{Han}+", r"\p{Katakana}+", r"[]a]+", r"[a-]+", r"\s{2,}|\d{2}+", r"\p{M}+", r"\p{S}+|\p{P}+",
]


def word_level(pre=None, normalizer=None, texts=()):
    """A model of whole words that knows every word of `texts`, so that its ids tell how a text was cut."""
    model = {"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"}
    data = {"version": "1.0", "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": pre, "post_processor": None, "decoder": None, "model": model}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(data))
    for text in texts:
        text = tokenizer.normalizer.normalize_str(text) if normalizer else text
        words = [w for w, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] if pre else [text]
        for word in words:
            model["vocab"].setdefault(word, len(model["vocab"]))
    return data


def whole_words():
    """Every pre-tokenizer, pattern and normalizer alone."""
    pretokenizers = {
        "Bert": {"type": "BertPreTokenizer"}, "Whitespace": {"type": "Whitespace"}, "Punctuation": {"type": "Punctuation", "behavior": "MergedWithPrevious"},
        "UnicodeScripts": {"type": "UnicodeScripts"}, "FixedLength": {"type": "FixedLength", "length": 3}, "CharDelimiterSplit": {"type": "CharDelimiterSplit", "delimiter": "-"},
        "Digits": {"type": "Digits", "individual_digits": True}, "kimi": split(KIMI),
        "falcon": sequence("pretokenizers", {"type": "Punctuation", "behavior": "Contiguous"}, byte_level(use_regex=True),
                           {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]")),
        "two ByteLevels": sequence("pretokenizers", byte_level(), byte_level(add_prefix_space=True))}
    pretokenizers |= {f"pattern {pattern}": split(pattern) for pattern in PATTERNS}
    bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    normalizers = {
        "Bert normalizer": bert, "Bert accents only": {**bert, "clean_text": False, "handle_chinese_chars": False, "strip_accents": True, "lowercase": False},
        "StripAccents": {"type": "StripAccents"}, "Nmt": {"type": "Nmt"}, "byte-level text": {"type": "ByteLevel"}, "lower": {"type": "Lowercase"}}
    normalizers |= {form: {"type": form} for form in ("NFC", "NFD", "NFKC", "NFKD")}
    for name, pre in pretokenizers.items():
        yield name, word_level(pre=pre, texts=UNUSUAL)
    for name, normalizer in normalizers.items():
        yield name, word_level(normalizer=normalizer, texts=UNUSUAL)


def character_map():
    """A small map in SentencePiece's format."""
    rules = ["FB01\t66 69", "41\t61", "43\t", "E9\t65", "65 301\t45", "41 30A\tE5", "2003\t20", "3042\t30A2 30A2", "338F\t6B 67"]
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "rules.tsv").write_text("\n".join(rules) + "\n")
        (pathlib.Path(folder) / "text.txt").write_text("some words to learn from\n" * 20)
        sentencepiece.SentencePieceTrainer.train(
            input=f"{folder}/text.txt", model_prefix=f"{folder}/m", vocab_size=20, minloglevel=2, hard_vocab_limit=False,
            normalization_rule_tsv=f"{folder}/rules.tsv")
        model = sentencepiece_model_pb2.ModelProto()
        model.ParseFromString((pathlib.Path(folder) / "m.model").read_bytes())
    return base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()


def models():
    """The models beside BPE, BPE with affixes, and what surrounds them."""
    tokens = ({"content": "[CLS]"}, {"content": "[SEP]"}, {"content": "<mask>", "lstrip": True}, {"content": "<w>", "single_word": True, "special": False})

    def make(model, first, **parts):
        return {"version": "1.0", "added_tokens": added(first, *tokens), "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": model, **parts}

    def named(kind, first):
        extra = {"trim_offsets": True, "add_prefix_space": False} if kind == "RobertaProcessing" else {}
        return {"type": kind, "sep": ["[SEP]", first + 1], "cls": ["[CLS]", first], **extra}

    letters = "abcdefghijklmnopqrstuvwxyz0123456789.!'"
    pieces = ["[UNK]", *letters, *("##" + c for c in letters), "hello", "##lo", "wor", "##ld", "cafe", "do", "##n't", "lead", "##ing"]
    word_piece = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 12, "vocab": {t: i for i, t in enumerate(pieces)}}
    for kind in ("BertProcessing", "RobertaProcessing"):
        yield kind, make(word_piece, len(pieces), post_processor=named(kind, len(pieces)), pre_tokenizer={"type": "BertPreTokenizer"},
                         normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
                         decoder={"type": "WordPiece", "prefix": "##", "cleanup": kind == "BertProcessing"})
    for prefix, suffix in (("", "</w>"), ("##", ""), ("##", "</w>")):
        kinds = [c + s for c in letters for s in {"", suffix}] + [prefix + c + s for c in letters for s in {"", suffix} if prefix]
        vocab, merges = ["[UNK]", *dict.fromkeys(kinds)], []
        for left, right in (("l", "l"), ("h", "e"), ("l", "o"), ("ll", "o"), ("a", "b"), ("he", "llo")):
            left = prefix + left if left not in ("h", "he", "a") else left
            right = prefix + right + (suffix if right in ("o", "llo", "b") else "")
            merges.append([left, right])
            vocab.append(left + right[len(prefix):])
        vocab = list(dict.fromkeys(vocab))
        model = {"type": "BPE", "unk_token": "[UNK]", "fuse_unk": not prefix, "vocab": {t: i for i, t in enumerate(vocab)}, "merges": merges}
        model |= {"continuing_subword_prefix": prefix or None, "end_of_word_suffix": suffix or None}
        decoder = {"type": "BPEDecoder", "suffix": suffix} if suffix else {"type": "WordPiece", "prefix": prefix, "cleanup": False}
        yield f"BPE {prefix} {suffix}", make(model, len(vocab), pre_tokenizer={"type": "Whitespace"}, decoder=decoder, post_processor=named("BertProcessing", len(vocab)))
    scored = [("<unk>", 0.0)] + [("<0x%02X>" % b, -9.0) for b in range(256)] + [(c, -4.0 - i / 8) for i, c in enumerate(SPM + letters)]
    scored += [(SPM + "hello", -6.5), ("llo", -5.0), ("he", -4.5), (SPM + "a", -4.0), ("ab", -8.2), ("abab", -16.0), ("kg", -7.0)]
    for fallback in (True, False):
        kept = [entry for entry in scored if fallback or not entry[0].startswith("<0x")]
        for scheme in ("first", "always"):
            meta = {"type": "Metaspace", "replacement": SPM, "prepend_scheme": scheme, "split": fallback}
            yield f"Unigram {fallback} {scheme}", make(
                {"type": "Unigram", "unk_id": 0, "vocab": kept, "byte_fallback": fallback}, len(kept), pre_tokenizer=meta,
                normalizer=sequence("normalizers", {"type": "Precompiled", "precompiled_charsmap": character_map()}, {"type": "Nmt"}, replace(" {2,}", " ", "Regex")),
                decoder=sequence("decoders", {"type": "ByteFallback"}, meta), post_processor=bos_template("[CLS]", len(kept)))


def row(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=True).ids
    return {"text": text, "ids": ids, "plain": tokenizer.encode(text, add_special_tokens=False).ids,
            "decoded": tokenizer.decode(ids, skip_special_tokens=False), "shown": tokenizer.decode(ids, skip_special_tokens=True)}


def decode_rows(tokenizer, random):
    """Lists of ids as no text gives them: runs of bytes that are no character, special tokens anywhere."""
    bytes_ = [i for i in range(tokenizer.get_vocab_size()) if (tokenizer.id_to_token(i) or "").startswith("<0x")]
    rows = []
    for _ in range(24 if bytes_ else 6):
        some = lambda: random.choice(bytes_) if bytes_ and random.random() < 0.6 else random.randrange(tokenizer.get_vocab_size())
        ids = [some() for _ in range(random.randrange(1, 9))]
        if bytes_ and random.random() < 0.5:
            ids[1:1] = [tokenizer.token_to_id("<0x%02X>" % b) for b in "\u65e5\U0001f999".encode()[:random.randrange(1, 8)]]
        rows.append({"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False), "shown": tokenizer.decode(ids, skip_special_tokens=True)})
    return rows


def pair_rows(tokenizer):
    rows = []
    for first, second in (("hello world", "abab"), ("", "hello"), ("caf\u00e9 <mask>", "don't"), (" a", " b")):
        for special in (True, False):
            encoding = tokenizer.encode(first, second, add_special_tokens=special)
            rows.append({"first": first, "second": second, "special": special, "ids": encoding.ids, "type_ids": encoding.type_ids})
    return rows


def main():
    cases = []
    random.seed(1)
    for name, data in tokenizers_to_try():
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(data))
        texts = TEXTS + ["".join(random.choices([t for t in TEXTS if t], k=2)) for _ in range(20)]
        cases.append({"name": name, "tokenizer": json.dumps(data, ensure_ascii=False), "cases": [row(tokenizer, text) for text in texts],
                      "decodes": decode_rows(tokenizer, random), "pairs": []})
    for name, data in whole_words():
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(data))
        cases.append({"name": name, "tokenizer": json.dumps(data, ensure_ascii=False), "cases": [row(tokenizer, text) for text in UNUSUAL],
                      "decodes": [], "pairs": []})
    for name, data in models():
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(data))
        cases.append({"name": name, "tokenizer": json.dumps(data, ensure_ascii=False), "cases": [row(tokenizer, text) for text in TEXTS + UNUSUAL],
                      "decodes": decode_rows(tokenizer, random), "pairs": pair_rows(tokenizer)})
    path = pathlib.Path(__file__).parent.parent / "tests/text/tokenizer_cases.json"
    path.write_text(json.dumps(cases, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(sum(len(c["cases"]) + len(c["decodes"]) + len(c["pairs"]) for c in cases), "cases,", path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
