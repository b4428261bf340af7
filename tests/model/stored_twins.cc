#include "model/stored_twins.h"

#include <algorithm>
#include <tuple>

#include "model/checkpoint.h"
#include "model/plain_model.h"
#include "model/random_model.h"
#include "model/tensor_list.h"
#include "weights/stored_weight.h"

namespace millrace::test {
namespace {

using weights::QuantMethod;

bool is_finite_e4m3(uint8_t code) {
  return (code & 0x7F) != 0x7F && (code & 0x78) < 0x48;
}

enum class Transposed : uint8_t { kAwq, kGptq, kGptqInOrder };

std::vector<RawTensorToWrite> write_transposed(Draw& draw, const std::string& p, int64_t rows, int64_t cols,
                                               int64_t group, Transposed order) {
  const bool awq = order == Transposed::kAwq;
  const int64_t groups = cols / group;
  std::vector<RawTensorToWrite> parts;
  const std::vector<int64_t> words = awq ? std::vector{cols, rows / 8} : std::vector{cols / 8, rows};
  parts.push_back({p + ".qweight", "I32", words, draw.bytes(cols * rows / 2)});
  const auto no_fifteen = [](uint8_t each) { return (each & 15) != 15 && each >> 4 != 15; };
  parts.push_back({p + ".qzeros", "I32", {groups, rows / 8}, draw.bytes(groups * rows / 2, no_fifteen)});
  parts.push_back({p + ".scales", "BF16", {groups, rows}, draw.bf16_scales(groups * rows, 0.01f)});
  if (awq) return parts;
  std::vector<int32_t> groups_of;
  for (int64_t k = 0; k < cols; ++k) groups_of.push_back(static_cast<int32_t>(k / group));
  if (order == Transposed::kGptq) std::shuffle(groups_of.begin(), groups_of.end(), draw.engine());
  parts.push_back({p + ".g_idx", "I32", {cols}, bytes_of(groups_of)});
  return parts;
}

std::vector<RawTensorToWrite> write_awq_gemv(Draw& draw, const std::string& p, int64_t rows, int64_t cols) {
  const int64_t words = (cols / 32 + 31) / 32 * 4;
  return {{p + ".qweight", "I32", {rows, cols / 8}, draw.bytes(rows * cols / 2)},
          {p + ".qzeros", "I32", {rows, words}, draw.bytes(rows * words * 4)},
          {p + ".scales", "BF16", {rows, words * 8}, draw.bf16_scales(rows * words * 8, 0.01f)}};
}

/// Returns FP8 with a scale per row, and a scale of inputs, which changes no weight.
StoredFormat fp8_rows() {
  return {"FP8 per row",
          {.method = QuantMethod::kCompressedTensors},
          [](Draw& draw, const std::string& p, int64_t rows, int64_t cols) {
            return std::vector<RawTensorToWrite>{
                {p + ".weight", "F8_E4M3", {rows, cols}, draw.bytes(rows * cols, is_finite_e4m3)},
                {p + ".weight_scale", "F32", {rows, 1}, bytes_of(draw.scales(rows, 0.1f))},
                {p + ".input_scale", "F32", {1}, bytes_of(draw.scales(1, 1))}};
          }};
}

/// Adds int8 with a scale per row, and per block of 8 rows.
void add_bytes(std::vector<StoredFormat>& all, int64_t group) {
  all.push_back({"INT8 per row",
                 {.method = QuantMethod::kQuark, .bits = 8},
                 [](Draw& draw, const std::string& p, int64_t rows, int64_t cols) {
                   return std::vector<RawTensorToWrite>{
                       {p + ".weight", "I8", {rows, cols}, draw.bytes(rows * cols)},
                       {p + ".weight_scale", "F32", {rows, 1}, bytes_of(draw.scales(rows, 0.001f))}};
                 }});
  all.push_back(
      {"INT8 in groups",
       {.method = QuantMethod::kCompressedTensors, .bits = 8, .group_size = group},
       [group](Draw& draw, const std::string& p, int64_t rows, int64_t cols) {
         return std::vector<RawTensorToWrite>{
             {p + ".weight", "I8", {rows, cols}, draw.bytes(rows * cols)},
             {p + ".weight_scale", "BF16", {rows, cols / group}, draw.bf16_scales(rows * cols / group, 0.001f)},
             {p + ".input_scale", "F32", {1}, bytes_of(draw.scales(1, 1))},
             {p + ".input_zero_point", "I8", {1}, draw.bytes(1)}};
       }});
  all.push_back({"INT8 in blocks",
                 {.method = QuantMethod::kInt8Blocks, .bits = 8, .block_rows = 8, .block_cols = group},
                 [group](Draw& draw, const std::string& p, int64_t rows, int64_t cols) {
                   const int64_t row_blocks = (rows + 7) / 8;
                   const int64_t col_blocks = (cols + group - 1) / group;
                   return std::vector<RawTensorToWrite>{{p + ".weight", "I8", {rows, cols}, draw.bytes(rows * cols)},
                                                        {p + ".weight_scale_inv",
                                                         "F32",
                                                         {row_blocks, col_blocks},
                                                         bytes_of(draw.scales(row_blocks * col_blocks, 0.001f))}};
                 }});
}

void add_groups(std::vector<StoredFormat>& all, int64_t group) {
  const auto group_size = static_cast<int32_t>(group);
  all.push_back(
      {"W4A16",
       {.method = QuantMethod::kCompressedTensors, .bits = 4, .group_size = group_size},
       [group](Draw& draw, const std::string& p, int64_t rows, int64_t cols) {
         return std::vector<RawTensorToWrite>{
             {p + ".weight_packed", "I32", {rows, cols / 8}, draw.bytes(rows * cols / 2)},
             {p + ".weight_scale", "BF16", {rows, cols / group}, draw.bf16_scales(rows * cols / group, 0.01f)},
             {p + ".weight_shape", "I64", {2}, bytes_of(std::vector<int64_t>{rows, cols})}};
       }});
  all.push_back(
      {"W8A16 with zero points",
       {.method = QuantMethod::kCompressedTensors, .bits = 8, .group_size = group_size},
       [group](Draw& draw, const std::string& p, int64_t rows, int64_t cols) {
         return std::vector<RawTensorToWrite>{
             {p + ".weight_packed", "I32", {rows, cols / 4}, draw.bytes(rows * cols)},
             {p + ".weight_scale", "BF16", {rows, cols / group}, draw.bf16_scales(rows * cols / group, 0.001f)},
             {p + ".weight_zero_point", "I32", {rows / 4, cols / group}, draw.bytes(rows * cols / group)},
             {p + ".weight_shape", "I64", {2}, bytes_of(std::vector<int64_t>{rows, cols})}};
       }});
  for (const auto& [name, method, order] : {std::tuple{"GPTQ", QuantMethod::kGptq, Transposed::kGptq},
                                            {"GPTQ in order", QuantMethod::kGptq, Transposed::kGptqInOrder},
                                            {"AWQ", QuantMethod::kAwq, Transposed::kAwq}}) {
    all.push_back({name,
                   {.method = method, .bits = 4, .group_size = group_size},
                   [group, order](Draw& draw, const std::string& p, int64_t rows, int64_t cols) {
                     return write_transposed(draw, p, rows, cols, group, order);
                   }});
  }
  add_bytes(all, group);
  all.push_back({"AWQ gemv",
                 {.method = QuantMethod::kAwq, .bits = 4, .group_size = 32, .awq_version = weights::AwqVersion::kGemv},
                 write_awq_gemv});
}

void add_fp4(std::vector<StoredFormat>& all) {
  all.push_back({"MXFP4",
                 {.method = QuantMethod::kCompressedTensors, .bits = 4, .group_size = 32},
                 [](Draw& draw, const std::string& p, int64_t rows, int64_t cols) {
                   const auto small = [](uint8_t each) { return each > 118 && each < 125; };
                   return std::vector<RawTensorToWrite>{
                       {p + ".weight_packed", "U8", {rows, cols / 2}, draw.bytes(rows * cols / 2)},
                       {p + ".weight_scale", "U8", {rows, cols / 32}, draw.bytes(rows * cols / 32, small)}};
                 }});
  all.push_back(
      {"NVFP4", {.method = QuantMethod::kModelOpt}, [](Draw& draw, const std::string& p, int64_t rows, int64_t cols) {
         return std::vector<RawTensorToWrite>{
             {p + ".weight", "U8", {rows, cols / 2}, draw.bytes(rows * cols / 2)},
             {p + ".weight_scale",
              "F8_E4M3",
              {rows, cols / 16},
              draw.bytes(rows * cols / 16, [](uint8_t each) { return each > 0 && each < 0x48; })},
             {p + ".weight_scale_2", "F32", {}, bytes_of(draw.scales(1, 0.05f))}};
       }});
}

}  // namespace

model::ModelConfig small_model(ModelKind kind, int32_t scale, int32_t vocab_size) {
  const bool is_sparse = kind == ModelKind::kSparse;
  model::ModelConfig config = plain_model({.architecture = is_sparse ? "Qwen3MoeForCausalLM" : "LlamaForCausalLM",
                                           .vocab_size = vocab_size,
                                           .hidden_size = 64 * scale,
                                           .intermediate_size = 128 * scale,
                                           .layer_count = 2,
                                           .head_count = 4 * scale,
                                           .kv_head_count = 2 * scale,
                                           .head_dim = 16 * scale,
                                           .max_position = 512});
  if (is_sparse) {
    set_experts(config, {.expert_count = 8, .experts_per_token = 2, .intermediate_size = 32 * scale}, {false, true});
  }
  if (kind == ModelKind::kLatent) {
    const int32_t half_head = 8 * scale;
    config.ropes[0].rotary_dim = half_head;
    config.ropes[0].interleaved = true;
    for_layers(config, [&](model::LayerConfig& layer) {
      layer.attention.kv_head_count = 1;
      layer.attention.latent = {
          .query_rank = 32 * scale, .latent_dim = 32 * scale, .nope_dim = half_head, .rope_dim = half_head};
    });
  }
  return config;
}

StoredFormat fp8_blocks(const char* name, int32_t block_rows, int32_t block_cols) {
  return {name,
          {.method = QuantMethod::kFp8, .block_rows = block_rows, .block_cols = block_cols},
          [=](Draw& draw, const std::string& p, int64_t rows, int64_t cols) {
            const int64_t row_blocks = (rows + block_rows - 1) / block_rows;
            const int64_t col_blocks = (cols + block_cols - 1) / block_cols;
            return std::vector<RawTensorToWrite>{
                {p + ".weight", "F8_E4M3", {rows, cols}, draw.bytes(rows * cols, is_finite_e4m3)},
                {p + ".weight_scale_inv",
                 "F32",
                 {row_blocks, col_blocks},
                 bytes_of(draw.scales(row_blocks * col_blocks, 0.1f))}};
          }};
}

StoredFormat ignoring(StoredFormat format, const std::string& part) {
  format.write = [part, write = format.write](Draw& draw, const std::string& p, int64_t rows, int64_t cols) {
    if (p.find(part) == std::string::npos) return write(draw, p, rows, cols);
    return std::vector<RawTensorToWrite>{{p + ".weight", "BF16", {rows, cols}, draw.bf16_scales(rows * cols, 0.05f)}};
  };
  return format;
}

/// Returns SGLang's w4afp8: experts in integers of 4 bits, other weights in FP8, and scales of inputs, which change
/// nothing.
StoredFormat int4_beside_fp8(int64_t group) {
  const StoredFormat fp8 = fp8_blocks("", 8, static_cast<int32_t>(group));
  return {
      "W4AFP8",
      {.method = QuantMethod::kInt4Fp8, .bits = 4, .group_size = group, .block_rows = 8, .block_cols = group},
      [write = fp8.write, group](Draw& draw, const std::string& p, int64_t rows, int64_t cols) {
        if (p.find(".experts.") == std::string::npos) return write(draw, p, rows, cols);
        return std::vector<RawTensorToWrite>{
            {p + ".weight", "I8", {rows, cols / 2}, draw.bytes(rows * cols / 2)},
            {p + ".weight_scale_inv", "F32", {rows, cols / group}, bytes_of(draw.scales(rows * cols / group, 0.01f))},
            {p + ".input_scale", "F32", {1}, bytes_of(draw.scales(1, 1))}};
      }};
}

std::vector<StoredFormat> stored_formats(int64_t group) {
  std::vector<StoredFormat> all{fp8_blocks("FP8 in blocks", 8, 16), fp8_blocks("FP8 in wide blocks", 8, 32),
                                fp8_rows()};
  add_groups(all, group);
  add_fp4(all);
  all.push_back(int4_beside_fp8(group));
  return all;
}

void write_values(const TemporaryFolder& stored, const weights::WeightFormat& format,
                  const std::vector<std::string>& coded, std::vector<RawTensorToWrite> tensors,
                  const TemporaryFolder& plain) {
  const auto checkpoint = model::Checkpoint::open(stored.path()).value();
  for (RawTensorToWrite& tensor : tensors) {
    if (std::ranges::find(coded, tensor.name) == coded.end()) continue;
    const tensor::Shape shape = {tensor.shape[0], tensor.shape[1]};
    std::vector<float> values(static_cast<size_t>(shape.elements()));
    if (const auto weight = checkpoint->find_weight(tensor.name, shape, format).value()) {
      weights::decode_rows(*weight, 0, weight->rows, values.data());
    } else {  // one that the format ignores
      tensor::read_floats(checkpoint->find(tensor.name, shape).value(), 0, shape.elements(), values.data());
    }
    tensor.bytes = bytes_of(values);
  }
  plain.write("model.safetensors", raw_safetensors_text(tensors));
}

Twins::Twins(const model::ModelConfig& config, const StoredFormat& format, uint32_t seed, bool has_coded_embedding) {
  Draw draw(seed);
  std::vector<RawTensorToWrite> in_format;
  std::vector<RawTensorToWrite> in_f32;
  const auto projections = model::stage_tensors(config, {.layers = {0, config.layer_count()}});
  for (const TensorToWrite& tensor : RandomModel(config, seed).tensors()) {
    RawTensorToWrite raw{tensor.name, "F32", tensor.shape, bytes_of(tensor.values)};
    const auto spec = std::ranges::find(projections, tensor.name, &model::TensorSpec::name);
    // Quantizers may have taken the router along.
    const bool is_router = spec->layer >= 0 && spec->shape.rank() == 2;
    const bool is_table = spec->name == config.names.embedding || spec->name == config.names.position_embedding ||
                          spec->name == config.names.type_embedding;
    if (spec->projection || is_router || (is_table && has_coded_embedding)) {
      const std::string prefix = tensor.name.substr(0, tensor.name.rfind('.'));
      for (RawTensorToWrite& part : format.write(draw, prefix, tensor.shape[0], tensor.shape[1]))
        in_format.push_back(std::move(part));
      quantized.push_back(tensor.name);
    } else {
      in_format.push_back(raw);
    }
    in_f32.push_back(std::move(raw));
  }
  stored.write("model.safetensors", raw_safetensors_text(in_format));
  write_values(stored, format.format, quantized, std::move(in_f32), plain);
}

}  // namespace millrace::test
