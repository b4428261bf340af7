"""Tiny random-weight models that embed texts or score pairs, and what sentence-transformers computes with them."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from golden_families import INIT_STD, NORM_STD, generator_versions, significant, write_json

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>")
MERGES = (("y", "e"), ("ye", "s"), ("n", "o"), ("t", "h"), ("th", "e"))
VOCAB = 288

TEXTS = (
    "a",
    "The old sailor walked slowly down to the sea.",
    "Instruct: Given a web search query, retrieve relevant passages\nQuery:what is a harpoon",
    "naïve café — 😀 and a text that is long enough for several pages of sixteen tokens, and for chunks that end in the "
    "middle of one; it says nothing that anybody would ever look for.",
)
QUERY = "what is a harpoon?"
DOCUMENTS = (
    "A harpoon is a long spear.",
    "The lamps of the harbour were reflected in the water.",
    "no",
    "Yes: sailors throw harpoons at whales, and pull them in on a rope that is as long as the ship itself, or longer.",
)
QWEN3_START = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
QWEN3_END = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
QWEN3_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"

_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "eos_token_id": 261,
}
_QWEN3 = {
    **_COMMON,
    "model_type": "qwen3",
    "head_dim": 32,
    "attention_bias": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 4,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
}
_ENCODER = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 258,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "dtype": "bfloat16",
}
_ONE_LABEL = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
CLASSIFIERS = ("score-head", "score-bert", "score-xlm-roberta")
_TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}


@dataclass
class PoolingModel:
    """One checkpoint: its folder, its config.json, and the modules after the transformer."""

    name: str
    seed: int
    config: dict
    first_tokens: tuple[str, ...] = ()  # that the tokenizer adds to a text
    last_tokens: tuple[str, ...] = ()
    pair: str = ""  # what the tokenizer makes of two texts; without it, each becomes what it is alone
    modules: tuple[tuple[str, dict], ...] = field(default=())


MODELS = (
    # As Qwen3-Embedding: the files of a model without its head, though the architecture has one.
    PoolingModel(
        "embed-last",
        seed=201,
        config={**_QWEN3, "architectures": ["Qwen3ForCausalLM"]},
        last_tokens=("<|endoftext|>",),
        modules=(("Pooling", {"embedding_dimension": 64, "pooling_mode": "lasttoken", "include_prompt": True}), ("Normalize", {})),
    ),
    PoolingModel(
        "embed-mean",
        seed=202,
        config={**_COMMON, "model_type": "llama", "architectures": ["LlamaModel"], "rope_theta": 10000.0, "mlp_bias": False},
        first_tokens=("<s>",),
        modules=(
            (
                "Pooling",
                {"word_embedding_dimension": 64, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True},
            ),
            (
                "Dense",
                {"in_features": 64, "out_features": 48, "bias": True, "activation_function": "torch.nn.modules.activation.Tanh"},
            ),
            (
                "Dense",
                {"in_features": 48, "out_features": 40, "bias": False, "activation_function": "torch.nn.modules.linear.Identity"},
            ),
            ("Normalize", {}),
        ),
    ),
    PoolingModel(
        "embed-cls",
        seed=203,
        config={
            **_COMMON,
            "model_type": "mistral",
            "architectures": ["MistralModel"],
            "sliding_window": None,
            "rope_theta": 10000.0,
            "matryoshka_dimensions": [16, 32, 64],
        },
        modules=(("Pooling", {"word_embedding_dimension": 64, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}),),
    ),
    # Encoders, with the pooler that their checkpoints have and nobody computes.
    PoolingModel(
        "embed-bert",
        seed=206,
        config={**_ENCODER, "model_type": "bert", "architectures": ["BertModel"], "type_vocab_size": 2},
        first_tokens=("<s>",),
        last_tokens=("</s>",),
        modules=(("Pooling", {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True}), ("Normalize", {})),
    ),
    PoolingModel(
        "embed-xlm-roberta",
        seed=207,
        config={
            **_ENCODER,
            "model_type": "xlm-roberta",
            "architectures": ["XLMRobertaModel"],
            "type_vocab_size": 1,
            "pad_token_id": 1,
            "layer_norm_eps": 1e-5,
        },
        first_tokens=("<s>",),
        last_tokens=("</s>",),
        modules=(
            ("Pooling", {"word_embedding_dimension": 64, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}),
            ("Normalize", {}),
        ),
    ),
    PoolingModel(
        "score-head",
        seed=204,
        config={
            **_COMMON,
            "model_type": "qwen2",
            "architectures": ["Qwen2ForSequenceClassification"],
            "id2label": {"0": "LABEL_0"},
            "label2id": {"LABEL_0": 0},
            "pad_token_id": 261,
            "use_sliding_window": False,
            "rope_theta": 10000.0,
        },
    ),
    # Cross-encoders: the pooler of BERT or the head of RoBERTa, then one number.
    PoolingModel(
        "score-bert",
        seed=208,
        config={**_ENCODER, **_ONE_LABEL, "model_type": "bert", "architectures": ["BertForSequenceClassification"], "type_vocab_size": 2},
        first_tokens=("<s>",),
        last_tokens=("</s>",),
        pair="<s> $A </s> $B:1 </s>:1",
    ),
    PoolingModel(
        "score-xlm-roberta",
        seed=209,
        config={
            **_ENCODER,
            **_ONE_LABEL,
            "model_type": "xlm-roberta",
            "architectures": ["XLMRobertaForSequenceClassification"],
            "type_vocab_size": 1,
            "pad_token_id": 1,
            "layer_norm_eps": 1e-5,
            "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
        },
        first_tokens=("<s>",),
        last_tokens=("</s>",),
        pair="<s> $A </s> </s> $B </s>",
    ),
    PoolingModel(
        "score-tokens",
        seed=205,
        config={**_QWEN3, "architectures": ["Qwen3ForCausalLM"], "classifier_from_token": ["no", "yes"]},
    ),
)


def make_tokenizer(model: PoolingModel) -> Tokenizer:
    """Bytes, a few merges and special tokens; the ids of special tokens follow those of the vocabulary."""
    vocab = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for left, right in MERGES:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    single = " ".join((*model.first_tokens, "$A", *model.last_tokens))
    if single != "$A":
        added = {*model.first_tokens, *model.last_tokens}
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single,
            pair=model.pair or f"{single} {single.replace('$A', '$B')}",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in added],
        )
    return tokenizer


def write_tokenizer(folder: Path, model: PoolingModel) -> None:
    tokenizer = make_tokenizer(model)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    if ":1" in model.pair:
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    write_json(folder / "tokenizer_config.json", config)


def random_tensor(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> torch.Tensor:
    noise = torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))
    values = 1 + NORM_STD * noise if "norm" in name.lower() and name.endswith("weight") else INIT_STD * noise
    return values.to(torch.bfloat16)


def write_weights(folder: Path, model: PoolingModel, rng: np.random.Generator) -> None:
    config = AutoConfig.for_model(**model.config)
    if model.name in CLASSIFIERS:
        factory = AutoModelForSequenceClassification
    else:
        factory = AutoModelForCausalLM if model.name == "score-tokens" else AutoModel
    with torch.device("meta"):
        made = factory.from_config(config)
    weights = {name: random_tensor(name, tuple(p.shape), rng) for name, p in made.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def write_modules(folder: Path, model: PoolingModel, rng: np.random.Generator) -> None:
    if not model.modules:
        return
    entries = [_TRANSFORMER]
    for index, (kind, config) in enumerate(model.modules, start=1):
        path = f"{index}_{kind}"
        entries.append({"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"})
        (folder / path).mkdir(exist_ok=True)
        if config:
            write_json(folder / path / "config.json", config)
        if kind == "Dense":
            shape = (config["out_features"], config["in_features"])
            tensors = {"linear.weight": torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)) * 0.2}
            if config["bias"]:
                tensors["linear.bias"] = torch.from_numpy(rng.standard_normal(shape[:1], dtype=np.float32)) * 0.2
            save_file(tensors, folder / path / "model.safetensors")
    write_json(folder / "modules.json", entries)


def golden_vectors(folder: Path) -> dict:
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    texts = []
    for text in TEXTS:
        ids = model.tokenizer(text)["input_ids"]
        texts.append({"text": text, "ids": ids, "vector": significant(model.encode(text).tolist())})
    return {"texts": texts}


def golden_head_scores(folder: Path) -> dict:
    """The tokenizer joins a pair; the score is the sigmoid of the logit, or the logit as it is."""
    model = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    scores = [float(model.predict([(QUERY, document)])[0]) for document in DOCUMENTS]
    pairs = [model.tokenizer(QUERY, document) for document in DOCUMENTS]
    encoded = [
        {"ids": pair["input_ids"]} | ({"types": pair["token_type_ids"]} if "token_type_ids" in pair else {})
        for pair in pairs
    ]
    return {"query": QUERY, "documents": DOCUMENTS, "scores": significant(scores), "pairs": encoded}


@torch.no_grad()
def golden_token_scores(folder: Path, tokenizer: Tokenizer) -> dict:
    """As Qwen3-Reranker's model card: p(yes) of yes and no after a fixed chat."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    yes, no = tokenizer.token_to_id("yes"), tokenizer.token_to_id("no")
    scores, prompts = [], []
    for document in DOCUMENTS:
        body = f"<Instruct>: {QWEN3_INSTRUCTION}\n<Query>: {QUERY}\n<Document>: {document}"
        ids = [i for part in (QWEN3_START, body, QWEN3_END) for i in tokenizer.encode(part, add_special_tokens=False).ids]
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1].double()
        scores.append(torch.softmax(logits[[no, yes]], 0)[1].item())
        prompts.append(ids)
    return {"query": QUERY, "documents": DOCUMENTS, "scores": significant(scores), "prompts": prompts}


def make_pooling_model(folder: Path, model: PoolingModel) -> None:
    """Writes one model's folder with its golden.json."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(model.seed)
    write_json(folder / "config.json", model.config)
    write_tokenizer(folder, model)
    write_weights(folder, model, rng)
    write_modules(folder, model, rng)
    if model.name in CLASSIFIERS:
        golden = golden_head_scores(folder)
    elif model.name == "score-tokens":
        golden = golden_token_scores(folder, make_tokenizer(model))
    else:
        golden = golden_vectors(folder)
    golden = {"generator": generator_versions(), **golden}
    (folder / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
