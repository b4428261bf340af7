"""A tiny checkpoint in 8 bits that the library compressed-tensors makes, and what its arithmetic gives."""

import json
from pathlib import Path

import numpy as np
import torch
from compressed_tensors import __version__ as compressed_tensors_version
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
)
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file
from torch import Tensor

from golden_families import TOLERANCE, generator_versions, golden_prompt, load, random_prompt

NAME = "qwen2-compressed"
SOURCE = "qwen2"
SEED = 2104
PROMPT_LENGTHS = (7, 33, 100)
WEIGHTS = QuantizationArgs(num_bits=8, type="int", strategy="channel", symmetric=True, dynamic=False)
INPUTS = QuantizationArgs(num_bits=8, type="int", strategy="token", symmetric=True, dynamic=True)


class ChannelLinear(torch.nn.Module):
    """A layer as servers compute it: whole numbers of weights times inputs that are rounded by a scale per row, largest
    / 127, the sums scaled by both; exact but for the rounding of inputs, which is done in f32."""

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None):
        super().__init__()
        self.weight, self.scale, self.bias = weight.double(), scale.double(), bias

    def forward(self, x: Tensor) -> Tensor:
        largest = x.abs().amax(-1, keepdim=True)
        whole = torch.round(x * (127.0 / largest)).double()
        out = (whole @ self.weight.T) * self.scale.T * (largest / 127.0).double()
        return (out if self.bias is None else out + self.bias).float()


def compress(source: Path, folder: Path) -> None:
    """Writes the model of `source` as compressed-tensors has it: weights by channel, inputs by token, but for the head."""
    model = load(source, torch.bfloat16)
    scheme = QuantizationScheme(targets=["Linear"], weights=WEIGHTS, input_activations=INPUTS)
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"], format="int-quantized")
    apply_quantization_config(model, config)
    for module in model.modules():
        if hasattr(module, "weight_scale"):
            ends = (end(1, keepdim=True) for end in (module.weight.amin, module.weight.amax))
            module.weight_scale.data.copy_(calculate_qparams(*ends, WEIGHTS)[0])
    compressor = ModelCompressor(quantization_config=config)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(folder)


def make_compressed(out: Path) -> None:
    """Writes `out`/qwen2-compressed from `out`/qwen2."""
    folder = out / NAME
    folder.mkdir(parents=True, exist_ok=True)
    compress(out / SOURCE, folder)
    stored = load_file(folder / "model.safetensors")
    model = load(out / SOURCE, torch.float32)
    for name, module in list(model.named_modules()):
        if f"{name}.weight_scale" in stored:
            layer = ChannelLinear(stored[f"{name}.weight"], stored[f"{name}.weight_scale"], module.bias)
            model.set_submodule(name, layer)
    rng = np.random.default_rng(SEED)
    prompts = [random_prompt(model, length, rng) for length in PROMPT_LENGTHS]
    golden = {
        "family": NAME,
        "generator": {**generator_versions(), "compressed_tensors": compressed_tensors_version},
        # An input that lies at the edge of its rounding brings 1/127 of a row's largest, times a weight.
        "tolerance": {**{key: 2 * value for key, value in TOLERANCE.items()}, "f32_max": 0.01},
        "prompts": [golden_prompt(model, ids) for ids in prompts],
    }
    (folder / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
