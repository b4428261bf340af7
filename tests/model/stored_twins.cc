#include "model/stored_twins.h"

#include <algorithm>
#include <tuple>

#include "model/checkpoint.h"
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
  if (awq) {
    parts.push_back({p + ".qweight", "I32", {cols, rows / 8}, draw.bytes(cols * rows / 2)});
  } else {
    parts.push_back({p + ".qweight", "I32", {cols / 8, rows}, draw.bytes(cols * rows / 2)});
  }
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

void add_fp8(std::vector<StoredFormat>& all) {
  all.push_back(
      {"FP8 in blocks",
       {.method = QuantMethod::kFp8, .block_rows = 8, .block_cols = 16},
       [](Draw& draw, const std::string& p, int64_t rows, int64_t cols) {
         const int64_t blocks = (rows + 7) / 8 * ((cols + 15) / 16);
         return std::vector<RawTensorToWrite>{
             {p + ".weight", "F8_E4M3", {rows, cols}, draw.bytes(rows * cols, is_finite_e4m3)},
             {p + ".weight_scale_inv", "F32", {(rows + 7) / 8, (cols + 15) / 16}, bytes_of(draw.scales(blocks, 0.1f))}};
       }});
  all.push_back(
      {"FP8 in wide blocks",
       {.method = QuantMethod::kFp8, .block_rows = 8, .block_cols = 32},
       [](Draw& draw, const std::string& p, int64_t rows, int64_t cols) {
         const int64_t blocks = (rows + 7) / 8 * ((cols + 31) / 32);
         return std::vector<RawTensorToWrite>{
             {p + ".weight", "F8_E4M3", {rows, cols}, draw.bytes(rows * cols, is_finite_e4m3)},
             {p + ".weight_scale_inv", "F32", {(rows + 7) / 8, (cols + 31) / 32}, bytes_of(draw.scales(blocks, 0.1f))}};
       }});
  all.push_back({"FP8 per row",
                 {.method = QuantMethod::kCompressedTensors},
                 [](Draw& draw, const std::string& p, int64_t rows, int64_t cols) {
                   return std::vector<RawTensorToWrite>{
                       {p + ".weight", "F8_E4M3", {rows, cols}, draw.bytes(rows * cols, is_finite_e4m3)},
                       {p + ".weight_scale", "F32", {rows, 1}, bytes_of(draw.scales(rows, 0.1f))},
                       {p + ".input_scale", "F32", {1}, bytes_of(draw.scales(1, 1))}};
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
  all.push_back(
      {"AWQ gemv", {.method = QuantMethod::kAwq, .bits = 4, .group_size = 32, .is_awq_gemv = true}, write_awq_gemv});
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

std::vector<StoredFormat> stored_formats(int64_t group) {
  std::vector<StoredFormat> all;
  add_fp8(all);
  add_groups(all, group);
  add_fp4(all);
  return all;
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
    const bool is_embedding = has_coded_embedding && is_table;
    if (spec->projection || is_router || is_embedding) {
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
  const auto checkpoint = model::Checkpoint::open(stored.path()).value();
  for (RawTensorToWrite& raw : in_f32) {
    if (std::ranges::find(quantized, raw.name) == quantized.end()) continue;
    const auto weight = checkpoint->find_weight(raw.name, {raw.shape[0], raw.shape[1]}, format.format).value().value();
    std::vector<float> values(static_cast<size_t>(raw.shape[0] * raw.shape[1]));
    weights::decode_rows(weight, 0, raw.shape[0], values.data());
    raw.bytes = bytes_of(values);
  }
  plain.write("model.safetensors", raw_safetensors_text(in_f32));
}

}  // namespace millrace::test
