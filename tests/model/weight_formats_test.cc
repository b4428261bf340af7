#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <random>

#include "cpu/cpu_backend.h"
#include "model/checkpoint_files.h"
#include "model/plain_model.h"
#include "model/random_model.h"
#include "model/tensor_list.h"
#include "model/test_pipeline.h"
#include "weights/stored_weight.h"

using namespace millrace;
using namespace millrace::model;
using test::bytes_of;
using test::RawTensorToWrite;
using test::TestPipeline;

namespace {

using Bytes = std::vector<std::byte>;

/// Draws the parts of weights: codes of any value, and scales that keep the model's numbers small.
class Draw {
 public:
  explicit Draw(uint32_t seed) : engine_(seed) {}

  Bytes bytes(int64_t count, const std::function<bool(uint8_t)>& allowed = {}) {
    Bytes drawn;
    while (static_cast<int64_t>(drawn.size()) < count) {
      const auto each = static_cast<uint8_t>(engine_());
      if (!allowed || allowed(each)) drawn.push_back(static_cast<std::byte>(each));
    }
    return drawn;
  }
  std::vector<float> scales(int64_t count, float largest) {
    std::uniform_real_distribution<float> any(largest / 2, largest);
    std::vector<float> drawn;
    for (int64_t i = 0; i < count; ++i) drawn.push_back(any(engine_));
    return drawn;
  }
  Bytes bf16_scales(int64_t count, float largest) {
    std::vector<tensor::BFloat16> rounded;
    for (const float each : scales(count, largest)) rounded.push_back(tensor::BFloat16::from_float(each));
    return bytes_of(rounded);
  }
  std::mt19937& engine() { return engine_; }

 private:
  std::mt19937 engine_;
};

/// Writes the tensors that store P.weight [rows, cols].
using WriteWeight =
    std::function<std::vector<RawTensorToWrite>(Draw&, const std::string& prefix, int64_t rows, int64_t cols)>;

struct Format {
  const char* name;
  weights::WeightFormat format;
  WriteWeight write;
};

bool is_finite_e4m3(uint8_t code) {
  return (code & 0x7F) != 0x7F && (code & 0x78) < 0x48;
}

constexpr int64_t kGroup = 16;

std::vector<RawTensorToWrite> write_transposed(Draw& draw, const std::string& p, int64_t rows, int64_t cols, bool awq) {
  const int64_t groups = cols / kGroup;
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
  std::vector<int32_t> order;
  for (int64_t k = 0; k < cols; ++k) order.push_back(static_cast<int32_t>(k / kGroup));
  std::shuffle(order.begin(), order.end(), draw.engine());
  parts.push_back({p + ".g_idx", "I32", {cols}, bytes_of(order)});
  return parts;
}

std::vector<RawTensorToWrite> write_awq_gemv(Draw& draw, const std::string& p, int64_t rows, int64_t cols) {
  const int64_t words = (cols / 32 + 31) / 32 * 4;
  return {{p + ".qweight", "I32", {rows, cols / 8}, draw.bytes(rows * cols / 2)},
          {p + ".qzeros", "I32", {rows, words}, draw.bytes(rows * words * 4)},
          {p + ".scales", "BF16", {rows, words * 8}, draw.bf16_scales(rows * words * 8, 0.01f)}};
}

std::vector<Format> formats() {
  using weights::QuantMethod;
  std::vector<Format> all;
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
  all.push_back(
      {"W4A16",
       {.method = QuantMethod::kCompressedTensors, .bits = 4, .group_size = kGroup},
       [](Draw& draw, const std::string& p, int64_t rows, int64_t cols) {
         return std::vector<RawTensorToWrite>{
             {p + ".weight_packed", "I32", {rows, cols / 8}, draw.bytes(rows * cols / 2)},
             {p + ".weight_scale", "BF16", {rows, cols / kGroup}, draw.bf16_scales(rows * cols / kGroup, 0.01f)},
             {p + ".weight_shape", "I64", {2}, bytes_of(std::vector<int64_t>{rows, cols})}};
       }});
  all.push_back({"GPTQ",
                 {.method = QuantMethod::kGptq, .bits = 4, .group_size = kGroup},
                 [](Draw& draw, const std::string& p, int64_t rows, int64_t cols) {
                   return write_transposed(draw, p, rows, cols, false);
                 }});
  all.push_back({"AWQ",
                 {.method = QuantMethod::kAwq, .bits = 4, .group_size = kGroup},
                 [](Draw& draw, const std::string& p, int64_t rows, int64_t cols) {
                   return write_transposed(draw, p, rows, cols, true);
                 }});
  all.push_back(
      {"AWQ gemv", {.method = QuantMethod::kAwq, .bits = 4, .group_size = 32, .is_awq_gemv = true}, write_awq_gemv});
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
  return all;
}

enum class Kind : uint8_t { kDense, kSparse, kLatent };

ModelConfig test_config(Kind kind) {
  const bool sparse = kind == Kind::kSparse;
  ModelConfig config = test::plain_model({.architecture = sparse ? "Qwen3MoeForCausalLM" : "LlamaForCausalLM",
                                          .vocab_size = 64,
                                          .hidden_size = 64,
                                          .intermediate_size = 128,
                                          .layer_count = 2,
                                          .head_count = 4,
                                          .kv_head_count = 2,
                                          .head_dim = 16,
                                          .max_position = 128});
  if (sparse) {
    test::set_experts(config, {.expert_count = 8, .experts_per_token = 2, .intermediate_size = 32}, {false, true});
  }
  if (kind == Kind::kLatent) {
    config.ropes[0].rotary_dim = 8;
    config.ropes[0].interleaved = true;
    test::for_layers(config, [](LayerConfig& layer) {
      layer.attention.kv_head_count = 1;
      layer.attention.latent = {.query_rank = 32, .latent_dim = 32, .nope_dim = 8, .rope_dim = 8};
    });
  }
  return config;
}

/// A model in one format, and the same values as plain f32.
struct Twins {
  test::TemporaryFolder stored;
  test::TemporaryFolder plain;

  Twins(const ModelConfig& config, const Format& format, uint32_t seed, bool has_coded_embedding = false) {
    Draw draw(seed);
    std::vector<RawTensorToWrite> in_format;
    std::vector<RawTensorToWrite> in_f32;
    const auto projections = stage_tensors(config, {.layers = {0, config.layer_count()}});
    for (const test::TensorToWrite& tensor : test::RandomModel(config, seed).tensors()) {
      RawTensorToWrite raw{tensor.name, "F32", tensor.shape, bytes_of(tensor.values)};
      const auto spec = std::ranges::find(projections, tensor.name, &TensorSpec::name);
      // Quantizers may have taken the router along.
      const bool is_router = spec->layer >= 0 && spec->shape.rank() == 2;
      const bool is_embedding = has_coded_embedding && spec->name == config.names.embedding;
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
    stored.write("model.safetensors", test::raw_safetensors_text(in_format));
    const auto checkpoint = Checkpoint::open(stored.path()).value();
    for (RawTensorToWrite& raw : in_f32) {
      if (std::ranges::find(quantized, raw.name) == quantized.end()) continue;
      const auto weight =
          checkpoint->find_weight(raw.name, {raw.shape[0], raw.shape[1]}, format.format).value().value();
      std::vector<float> values(static_cast<size_t>(raw.shape[0] * raw.shape[1]));
      weights::decode_rows(weight, 0, raw.shape[0], values.data());
      raw.bytes = bytes_of(values);
    }
    plain.write("model.safetensors", test::raw_safetensors_text(in_f32));
  }

  std::vector<std::string> quantized;
};

std::vector<float> logits_of(const std::filesystem::path& folder, const ModelConfig& config, tensor::DType dtype,
                             size_t rank_count) {
  const auto checkpoint = Checkpoint::open(folder).value();
  std::vector<std::unique_ptr<tensor::Backend>> backends;
  std::vector<tensor::Backend*> ranks;
  for (size_t i = 0; i < rank_count; ++i)
    ranks.push_back(backends.emplace_back(cpu::make_backend({.threads = 1, .compute_dtype = dtype})).get());
  TestPipeline pipeline(*checkpoint, config, ranks, {.stage_count = 2});
  pipeline.start({20}, 1);
  test::Piece piece;
  for (TokenId token = 0; token < 20; ++token) piece.tokens.push_back(token * 3 % config.vocab_size);
  return pipeline.run({piece});
}

TEST_CASE("A model in any format equals the same values in f32") {
  for (const Kind kind : {Kind::kDense, Kind::kSparse, Kind::kLatent}) {
    for (const Format& format : formats()) {
      CAPTURE(format.name, static_cast<int>(kind));
      const ModelConfig plain = test_config(kind);
      ModelConfig stored = plain;
      stored.weight_format = format.format;
      const Twins twins(plain, format, 7);
      for (const tensor::DType dtype : {tensor::DType::kF32, tensor::DType::kBF16}) {
        // In bf16 weights that fit keep 4 bits, whose inputs are rounded, or 8, which are not rounded to bf16 on most
        // processors.
        const std::string_view name = format.name;
        const bool keeps_4_bits =
            dtype == tensor::DType::kBF16 && (name == "MXFP4" || name == "NVFP4" || name == "AWQ gemv");
        const bool keeps_8_bits =
            dtype == tensor::DType::kBF16 && (name == "FP8 in wide blocks" || name == "FP8 per row");
        const auto exact = logits_of(twins.plain.path(), plain, dtype, 1);
        const auto wanted = keeps_4_bits || keeps_8_bits ? logits_of(twins.stored.path(), stored, dtype, 1) : exact;
        CHECK(logits_of(twins.stored.path(), stored, dtype, 1) == wanted);
        if (!keeps_8_bits) CHECK((wanted != exact) == keeps_4_bits);
        for (size_t i = 0; i < wanted.size(); ++i) CHECK(wanted[i] == Approx(exact[i]).margin(0.4));
        CHECK(logits_of(twins.stored.path(), stored, dtype, 2) == wanted);
      }
      for (const Quantization quantization : {Quantization::kW8, Quantization::kW8A8Int8}) {
        ModelConfig plain_w8 = plain;
        ModelConfig stored_w8 = stored;
        plain_w8.quantization = stored_w8.quantization = quantization;
        CHECK(logits_of(twins.stored.path(), stored_w8, tensor::DType::kBF16, 1) ==
              logits_of(twins.plain.path(), plain_w8, tensor::DType::kBF16, 1));
      }
    }
  }
}

TEST_CASE("An embedding in any format equals the same values in f32") {
  for (const Format& format : formats()) {
    CAPTURE(format.name);
    const ModelConfig plain = test_config(Kind::kDense);
    ModelConfig stored = plain;
    stored.weight_format = format.format;
    const Twins twins(plain, format, 17, true);
    CHECK(logits_of(twins.stored.path(), stored, tensor::DType::kF32, 1) ==
          logits_of(twins.plain.path(), plain, tensor::DType::kF32, 1));
  }
}

TEST_CASE("A head in FP8 that ranks divide unevenly has equal bits") {
  const auto all = formats();
  for (const std::string_view name : {"FP8 in wide blocks", "FP8 per row"}) {
    for (const int32_t vocab_size : {67, 5}) {  // 5: the last of four ranks has no row
      CAPTURE(name, vocab_size);
      const Format& format = *std::ranges::find(all, name, &Format::name);
      ModelConfig config = test_config(Kind::kDense);
      config.vocab_size = vocab_size;
      const Twins twins(config, format, 13);
      config.weight_format = format.format;
      const auto whole = logits_of(twins.stored.path(), config, tensor::DType::kBF16, 1);
      CHECK(logits_of(twins.stored.path(), config, tensor::DType::kBF16, 2) == whole);
      CHECK(logits_of(twins.stored.path(), config, tensor::DType::kBF16, 4) == whole);
    }
  }
}

/// Returns the bits per weight that a model in a format keeps packed, its router and its head included.
double packed_bits(const ModelConfig& config, const Format& format) {
  ModelConfig stored = config;
  stored.weight_format = format.format;
  const Twins twins(config, format, 11);
  const auto checkpoint = Checkpoint::open(twins.stored.path()).value();
  const auto backend = cpu::make_backend({.threads = 1, .compute_dtype = tensor::DType::kBF16});
  const uint64_t before = cpu::packed_bytes();
  const TestPipeline pipeline(*checkpoint, stored, *backend, {});
  double weights = 0;
  for (const TensorSpec& spec : stage_tensors(config, {.layers = {0, config.layer_count()}})) {
    if (spec.projection) weights += static_cast<double>(spec.shape.elements());
  }
  return 8 * static_cast<double>(cpu::packed_bytes() - before) / weights;
}

TEST_CASE("Weights keep the bits in which a checkpoint stores them") {
  struct Kept {
    std::string_view name;
    double bits = 0;
  };
  for (const bool sparse : {false, true}) {
    ModelConfig config = test::plain_model({.architecture = sparse ? "Qwen3MoeForCausalLM" : "LlamaForCausalLM",
                                            .vocab_size = 64,
                                            .hidden_size = 256,
                                            .intermediate_size = 512,
                                            .layer_count = 1,
                                            .head_count = 8,
                                            .kv_head_count = 4,
                                            .head_dim = 64,
                                            .max_position = 128});
    if (sparse)
      test::set_experts(config, {.expert_count = 8, .experts_per_token = 2, .intermediate_size = 128}, {false, true});
    const std::vector<Format> all = formats();
    // Scales of FP8 take up to one bit of these small shards.
    for (const auto& [name, bits] :
         {Kept{"FP8 in wide blocks", 9}, Kept{"FP8 per row", 8.5}, Kept{"MXFP4", 4.5}, Kept{"NVFP4", 4.75}}) {
      CAPTURE(sparse, name);
      const auto format = std::ranges::find(all, name, &Format::name);
      const double kept = packed_bits(config, *format);
      CHECK(kept > bits - 0.5);
      CHECK(kept < bits + 0.3);
    }
  }
}

TEST_CASE("A quantized tensor that no config announces is refused") {
  const Format format = formats()[3];
  const ModelConfig config = test_config(Kind::kDense);
  const Twins twins(config, format, 3);
  const auto checkpoint = Checkpoint::open(twins.stored.path()).value();
  const auto backend = cpu::make_backend({.threads = 1, .compute_dtype = tensor::DType::kF32});
  CHECK_THROWS_AS(TestPipeline(*checkpoint, config, *backend, {}), ErrorException);
}

}  // namespace
