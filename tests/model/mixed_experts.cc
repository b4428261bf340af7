#include "model/mixed_experts.h"

#include <algorithm>
#include <stdexcept>

#include "model/plain_model.h"
#include "model/random_model.h"
#include "model/stored_twins.h"

namespace millrace::test {
namespace {

constexpr int64_t kGroup = 32;

model::ModelConfig mixture() {
  model::ModelConfig config = plain_model({.architecture = "Qwen3MoeForCausalLM",
                                           .vocab_size = 64,
                                           .hidden_size = 128,
                                           .intermediate_size = 256,
                                           .layer_count = MixedExperts::kLayers,
                                           .head_count = 8,
                                           .kv_head_count = 4,
                                           .head_dim = 32,
                                           .max_position = 64});
  set_experts(config, {.expert_count = MixedExperts::kExperts, .experts_per_token = 3, .intermediate_size = 96},
              {true, true});
  return config;
}

weights::WeightFormat weight_format() {
  return {.method = weights::QuantMethod::kCompressedTensors,
          .bits = 4,
          .group_size = kGroup,
          .has_exceptions = true,
          .widths = 1 << 4 | 1 << 8,
          .group_sizes = {kGroup},
          .block_rows = 128,
          .block_cols = 32};
}

}  // namespace

MixedExperts::MixedExperts(const StorageOf& storage_of) {
  const model::ModelConfig config = mixture();
  const auto specs = model::stage_tensors(config, {.layers = {0, kLayers}});
  std::vector<RawTensorToWrite> in_f32;
  std::vector<std::string> coded;
  for (const TensorToWrite& tensor : RandomModel(config, 7).tensors()) {
    in_f32.push_back({tensor.name, "F32", tensor.shape, bytes_of(tensor.values)});
    const auto spec = std::ranges::find(specs, tensor.name, &model::TensorSpec::name);
    const auto part = tensor.name.ends_with("gate_proj.weight") ? model::ExpertPart::kGate
                      : tensor.name.ends_with("up_proj.weight") ? model::ExpertPart::kUp
                                                                : model::ExpertPart::kDown;
    const StoredAs storage = spec->expert < 0 ? StoredAs::kF32 : storage_of(spec->expert, part);
    has_w8_ = has_w8_ || storage == StoredAs::kW8;
    if (storage != StoredAs::kF32) coded.push_back(tensor.name);
    add(storage, tensor);
  }
  stored.write("model.safetensors", raw_safetensors_text(file_));
  if (has_w8_) return;
  write_values(stored, weight_format(), coded, std::move(in_f32), plain);
}

model::ModelConfig MixedExperts::plain_config(model::Quantization quantization) const {
  model::ModelConfig config = mixture();
  config.quantization = quantization;
  return config;
}

model::ModelConfig MixedExperts::stored_config(model::Quantization quantization) const {
  model::ModelConfig config = plain_config(quantization);
  if (has_w8_) {
    config.quantization = model::Quantization::kW8A8Int8;
    config.keeps_unquantized_projections = true;
  } else {
    config.weight_format = weight_format();
  }
  return config;
}

std::vector<std::string> MixedExperts::names(int32_t layer, int32_t begin, int32_t end) const {
  const model::ModelConfig config = mixture();
  std::vector<std::string> names;
  for (int32_t expert = begin; expert < end; ++expert) {
    for (const model::ExpertPart part : model::expert_parts(config.layer(layer).feed_forward))
      names.push_back(model::expert_tensor_name(config, layer, expert, part));
  }
  return names;
}

std::vector<std::byte> MixedExperts::random_bytes(int64_t count, uint8_t first, uint8_t last) {
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(first + (engine_() >> 5) % (last - first + 1u));
  return bytes;
}

std::vector<float> MixedExperts::random_scales(int64_t count) {
  std::vector<float> scales(static_cast<size_t>(count));
  for (float& scale : scales) scale = 0.02f + 1e-6f * static_cast<float>(engine_() % 10007);
  return scales;
}

void MixedExperts::add(StoredAs storage, const TensorToWrite& tensor) {
  const std::string prefix = tensor.name.substr(0, tensor.name.rfind('.'));
  if (storage == StoredAs::kF32) {
    file_.push_back({tensor.name, "F32", tensor.shape, bytes_of(tensor.values)});
    return;
  }
  const int64_t rows = tensor.shape[0];
  const int64_t cols = tensor.shape[1];
  switch (storage) {
    case StoredAs::kFp8:
    case StoredAs::kFp8Blocks: return add_fp8(storage, prefix, rows, cols);
    case StoredAs::kNvfp4: return add_nvfp4(prefix, rows, cols);
    case StoredAs::kW8:
      file_.push_back({tensor.name, "I8", {rows, cols}, random_bytes(rows * cols, 1, 127)});
      file_.push_back({tensor.name + "_scale", "BF16", {rows, 1}, bf16_bytes_of(random_scales(rows))});
      return;
    default: return add_integers(storage, prefix, rows, cols);
  }
}

void MixedExperts::add_fp8(StoredAs storage, const std::string& prefix, int64_t rows, int64_t cols) {
  const bool has_blocks = storage == StoredAs::kFp8Blocks;
  const int64_t row_blocks = has_blocks ? (rows + 127) / 128 : rows;
  const int64_t col_blocks = has_blocks ? cols / kGroup : 1;
  file_.push_back({prefix + ".weight", "F8_E4M3", {rows, cols}, random_bytes(rows * cols, 0, 0x47)});
  file_.push_back(
      {prefix + ".weight_scale", "F32", {row_blocks, col_blocks}, bytes_of(random_scales(row_blocks * col_blocks))});
}

void MixedExperts::add_integers(StoredAs storage, const std::string& prefix, int64_t rows, int64_t cols) {
  const int64_t bits = storage == StoredAs::kInt8 ? 8 : 4;
  const int64_t groups = cols / kGroup;
  file_.push_back(
      {prefix + ".weight_packed", "I32", {rows, cols * bits / 32}, random_bytes(rows * cols * bits / 8, 0, 255)});
  file_.push_back({prefix + ".weight_shape", "I64", {2}, bytes_of(std::vector<int64_t>{rows, cols})});
  add_integer_scales(storage, prefix + ".weight_scale", rows, groups);
  if (storage == StoredAs::kInt4Zeros)
    file_.push_back(
        {prefix + ".weight_zero_point", "I32", {rows / 8, groups}, random_bytes(rows * groups / 2, 0, 255)});
  if (storage != StoredAs::kInt4 && storage != StoredAs::kInt4Scattered) return;
  std::vector<int32_t> index(static_cast<size_t>(cols));
  for (size_t k = 0; k < index.size(); ++k) index[k] = static_cast<int32_t>(k / kGroup);
  if (storage == StoredAs::kInt4Scattered) std::ranges::shuffle(index, engine_);
  file_.push_back({prefix + ".weight_g_idx", "I32", {cols}, bytes_of(index)});
}

void MixedExperts::add_integer_scales(StoredAs storage, const std::string& name, int64_t rows, int64_t groups) {
  const int64_t count = rows * groups;
  std::vector<float> scales = random_scales(count);
  switch (storage) {
    case StoredAs::kInt4F16: {
      std::vector<tensor::Float16> narrow(static_cast<size_t>(count));
      for (tensor::Float16& scale : narrow)
        scale.bits = static_cast<uint16_t>(0x2400 + engine_() % 1024);  // 1/64 to 1/32
      file_.push_back({name, "F16", {rows, groups}, bytes_of(narrow)});
      return;
    }
    case StoredAs::kInt4Narrow:
      for (float& scale : scales) scale = tensor::BFloat16::from_float(scale).to_float();
      [[fallthrough]];
    case StoredAs::kInt4F32: file_.push_back({name, "F32", {rows, groups}, bytes_of(scales)}); return;
    default: break;
  }
  // Integers of 8 bits are as large as those of 4.
  if (storage == StoredAs::kInt8) {
    for (float& scale : scales) scale /= 16;
  }
  file_.push_back({name, "BF16", {rows, groups}, bf16_bytes_of(scales)});
}

void MixedExperts::add_nvfp4(const std::string& prefix, int64_t rows, int64_t cols) {
  file_.push_back({prefix + ".weight_packed", "U8", {rows, cols / 2}, random_bytes(rows * cols / 2, 0, 255)});
  file_.push_back({prefix + ".weight_scale", "F8_E4M3", {rows, cols / 16}, random_bytes(rows * cols / 16, 1, 0x47)});
  file_.push_back({prefix + ".weight_global_scale", "F32", {1}, bytes_of(std::vector<float>{77.0f})});
}

}  // namespace millrace::test
