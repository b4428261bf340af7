// Models whose experts are stored in several formats, on the CUDA backend, which has one for all experts of a layer:
// they load, and their logits have the bits of the same model in f32.

#include <catch2/catch.hpp>
#include <random>

#include "cuda/cuda_backend.h"
#include "cuda_backend/tested_gemm.h"
#include "model/checkpoint_files.h"
#include "model/plain_model.h"
#include "model/random_model.h"
#include "model/tensor_list.h"
#include "model/test_pipeline.h"
#include "model/weight_packer.h"
#include "weights/stored_weight.h"

using namespace millrace;
using namespace millrace::model;
using test::bytes_of;
using test::RawTensorToWrite;

namespace {

constexpr int64_t kGroup = 32;

enum class Mix : uint8_t { kScaleTypes, kScaleValues, kZeroPoints, kNvfp4 };

ModelConfig test_config() {
  ModelConfig config = test::plain_model({.architecture = "Qwen3MoeForCausalLM",
                                          .vocab_size = 64,
                                          .hidden_size = 128,
                                          .intermediate_size = 256,
                                          .layer_count = 2,
                                          .head_count = 8,
                                          .kv_head_count = 4,
                                          .head_dim = 32,
                                          .max_position = 64});
  test::set_experts(config, {.expert_count = 8, .experts_per_token = 2, .intermediate_size = 96}, {false, true});
  return config;
}

weights::WeightFormat format_of(Mix mix) {
  if (mix == Mix::kNvfp4) return {.method = weights::QuantMethod::kModelOpt};
  return {.method = weights::QuantMethod::kCompressedTensors, .bits = 4, .group_size = kGroup};
}

/// A model whose experts with odd numbers differ from the others in their format, and the same values in f32.
class Twins {
 public:
  Twins(const ModelConfig& config, Mix mix) : mix_(mix) {
    std::vector<RawTensorToWrite> in_f32;
    std::vector<std::string> coded;
    const auto specs = stage_tensors(config, {.layers = {0, config.layer_count()}});
    for (const test::TensorToWrite& tensor : test::RandomModel(config, 7).tensors()) {
      in_f32.push_back({tensor.name, "F32", tensor.shape, bytes_of(tensor.values)});
      const auto spec = std::ranges::find(specs, tensor.name, &TensorSpec::name);
      const bool is_odd = spec->expert % 2 != 0;
      if (spec->expert < 0 || (mix == Mix::kNvfp4 && is_odd)) {
        file_.push_back(in_f32.back());
        continue;
      }
      coded.push_back(tensor.name);
      const std::string prefix = tensor.name.substr(0, tensor.name.rfind('.'));
      if (mix == Mix::kNvfp4)
        add_nvfp4(prefix, tensor.shape[0], tensor.shape[1]);
      else
        add_integers(prefix, tensor.shape[0], tensor.shape[1], is_odd);
    }
    stored.write("model.safetensors", test::raw_safetensors_text(file_));
    const auto checkpoint = Checkpoint::open(stored.path()).value();
    for (RawTensorToWrite& raw : in_f32) {
      if (std::ranges::find(coded, raw.name) == coded.end()) continue;
      const auto weight =
          checkpoint->find_weight(raw.name, {raw.shape[0], raw.shape[1]}, format_of(mix)).value().value();
      std::vector<float> values(static_cast<size_t>(raw.shape[0] * raw.shape[1]));
      weights::decode_rows(weight, 0, raw.shape[0], values.data());
      raw.bytes = bytes_of(values);
    }
    plain.write("model.safetensors", test::raw_safetensors_text(in_f32));
  }

  test::TemporaryFolder stored;
  test::TemporaryFolder plain;

 private:
  std::vector<uint8_t> random_bytes(int64_t count, uint8_t first, uint8_t last) {
    std::vector<uint8_t> bytes(static_cast<size_t>(count));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(first + (engine_() >> 5) % (last - first + 1u));
    return bytes;
  }

  void add_nvfp4(const std::string& prefix, int64_t rows, int64_t cols) {
    file_.push_back({prefix + ".weight", "U8", {rows, cols / 2}, bytes_of(random_bytes(rows * cols / 2, 0, 255))});
    file_.push_back(
        {prefix + ".weight_scale", "F8_E4M3", {rows, cols / 16}, bytes_of(random_bytes(rows * cols / 16, 1, 0x47))});
    file_.push_back({prefix + ".weight_scale_2", "F32", {}, bytes_of(std::vector<float>{0.013f})});
  }

  void add_integers(const std::string& prefix, int64_t rows, int64_t cols, bool is_odd) {
    const int64_t groups = cols / kGroup;
    file_.push_back(
        {prefix + ".weight_packed", "I32", {rows, cols / 8}, bytes_of(random_bytes(rows * cols / 2, 0, 255))});
    file_.push_back({prefix + ".weight_shape", "I64", {2}, bytes_of(std::vector<int64_t>{rows, cols})});
    std::vector<float> scales(static_cast<size_t>(rows * groups));
    std::vector<tensor::BFloat16> in_bf16;
    std::vector<tensor::Float16> in_f16;
    for (float& scale : scales) {
      scale = 0.02f + 1e-6f * static_cast<float>(engine_() % 10007);
      in_bf16.push_back(tensor::BFloat16::from_float(scale));
      in_f16.push_back({.bits = static_cast<uint16_t>(0x2400 + engine_() % 1024)});  // 1/64 to 1/32
      if (is_odd) scale = in_bf16.back().to_float();
    }
    const std::string name = prefix + ".weight_scale";
    if (mix_ == Mix::kScaleValues)
      file_.push_back({name, "F32", {rows, groups}, bytes_of(scales)});
    else if (mix_ == Mix::kScaleTypes && is_odd)
      file_.push_back({name, "F16", {rows, groups}, bytes_of(in_f16)});
    else
      file_.push_back({name, "BF16", {rows, groups}, bytes_of(in_bf16)});
    if (mix_ == Mix::kZeroPoints && is_odd)
      file_.push_back({prefix + ".weight_zero_point",
                       "I32",
                       {rows / 8, groups},
                       bytes_of(random_bytes(rows * groups / 2, 0, 255))});
  }

  Mix mix_;
  std::minstd_rand engine_{5};
  std::vector<RawTensorToWrite> file_;
};

std::vector<float> logits_of(const test::TemporaryFolder& folder, const ModelConfig& config) {
  const auto checkpoint = Checkpoint::open(folder.path()).value();
  const auto backend = cuda::make_backend({.products = test::tested_gemm()});
  test::TestPipeline pipeline(*checkpoint, config, {backend.get()}, {.stage_count = 2});
  pipeline.start({12}, 1);
  test::Piece piece;
  for (TokenId token = 0; token < 12; ++token) piece.tokens.push_back(token * 3 % config.vocab_size);
  return pipeline.run({piece});
}

/// Returns the bits of two experts' downs.
PackedBits bits_of_downs(const test::TemporaryFolder& folder, const ModelConfig& config) {
  const auto checkpoint = Checkpoint::open(folder.path()).value();
  const auto backend = cuda::make_backend({.products = test::tested_gemm()});
  const LoadOptions options;
  WeightPacker packer(*checkpoint, *backend, config, options);
  REQUIRE(packer.resolve(stage_tensors(config, {.layers = {0, config.layer_count()}})).has_value());
  std::vector<std::string> names;
  for (const int32_t expert : {0, 1}) names.push_back(expert_tensor_name(config, 1, expert, ExpertPart::kDown));
  return packer.packed_bits(names, PackedTogether::kPaired);
}

}  // namespace

TEST_CASE("experts in several formats on a GPU equal their values") {
  const Mix mix = GENERATE(Mix::kScaleTypes, Mix::kScaleValues, Mix::kZeroPoints, Mix::kNvfp4);
  CAPTURE(static_cast<int>(mix));
  ModelConfig plain = test_config();
  const Twins twins(plain, mix);
  ModelConfig stored = plain;
  stored.weight_format = format_of(mix);
  // Experts whose formats are equal up to the values of scales keep their codes; others are decoded.
  REQUIRE(bits_of_downs(twins.stored, stored) == (mix == Mix::kScaleValues ? PackedBits::k4 : PackedBits::kCompute));
  const std::vector<float> wanted = logits_of(twins.plain, plain);
  REQUIRE(std::ranges::all_of(wanted, [](float logit) { return std::isfinite(logit); }));
  REQUIRE(logits_of(twins.stored, stored) == wanted);
  if (mix == Mix::kScaleValues) return;
  // All experts are quantized where not all can keep their codes.
  plain.quantization = stored.quantization = Quantization::kW4;
  REQUIRE(logits_of(twins.stored, stored) == logits_of(twins.plain, plain));
}
