#include <catch2/catch.hpp>

#include "cpu/cpu_backend.h"
#include "model/kept_bytes.h"
#include "model/plain_model.h"
#include "model/stored_twins.h"
#include "model/families/read_config.h"
#include "model/tensor_list.h"
#include "model/test_pipeline.h"
#include "model/weight_memory.h"
#include "model/weights.h"
#include "support/paths.h"

using namespace millrace;
using namespace millrace::model;
using test::ModelKind;
using test::StoredFormat;
using test::TestPipeline;
using test::Twins;

namespace {

constexpr int64_t kGroup = 16;  // codes of which are decoded

ModelConfig test_config(ModelKind kind) {
  return test::small_model(kind, 1, 64);
}

std::vector<float> logits_of(const std::filesystem::path& folder, const ModelConfig& config, tensor::DType dtype,
                             size_t rank_count) {
  std::vector<std::unique_ptr<tensor::Backend>> ranks;
  for (size_t i = 0; i < rank_count; ++i) ranks.push_back(cpu::make_backend({.threads = 1, .compute_dtype = dtype}));
  return test::prompt_logits(folder, config, ranks, 2, 20);
}

TEST_CASE("A model in any format equals the same values in f32") {
  for (const ModelKind kind : {ModelKind::kDense, ModelKind::kSparse, ModelKind::kLatent}) {
    for (const StoredFormat& format : test::stored_formats(kGroup)) {
      CAPTURE(format.name, static_cast<int>(kind));
      const ModelConfig plain = test_config(kind);
      ModelConfig stored = plain;
      stored.weight_format = format.format;
      const Twins twins(plain, format, 7);
      for (const tensor::DType dtype : {tensor::DType::kF32, tensor::DType::kBF16}) {
        // In bf16 weights that fit keep codes, whose inputs are rounded, or FP8, which is not rounded to bf16 on most
        // processors.
        const std::string_view name = format.name;
        const bool keeps_codes = dtype == tensor::DType::kBF16 &&
                                 (name == "MXFP4" || name == "NVFP4" || name == "AWQ gemv" || name == "INT8 per row");
        const bool keeps_fp8 = dtype == tensor::DType::kBF16 && (name == "FP8 in wide blocks" || name == "FP8 per row");
        const auto exact = logits_of(twins.plain.path(), plain, dtype, 1);
        const auto wanted = keeps_codes || keeps_fp8 ? logits_of(twins.stored.path(), stored, dtype, 1) : exact;
        CHECK(logits_of(twins.stored.path(), stored, dtype, 1) == wanted);
        if (!keeps_fp8) CHECK((wanted != exact) == keeps_codes);
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
  for (const StoredFormat& format : test::stored_formats(kGroup)) {
    CAPTURE(format.name);
    const ModelConfig plain = test_config(ModelKind::kDense);
    ModelConfig stored = plain;
    stored.weight_format = format.format;
    const Twins twins(plain, format, 17, true);
    CHECK(logits_of(twins.stored.path(), stored, tensor::DType::kF32, 1) ==
          logits_of(twins.plain.path(), plain, tensor::DType::kF32, 1));
  }
}

/// Returns the sums of the rows of the tables of an encoder, of which each has two rows at least.
std::vector<float> rows_of_tables(const std::filesystem::path& folder, const ModelConfig& config) {
  const auto checkpoint = Checkpoint::open(folder).value();
  const auto backend = cpu::make_backend({.threads = 1, .compute_dtype = tensor::DType::kF32});
  const StageSpan span{.layers = {0, config.layer_count()}, .first = true, .last = true};
  const StageWeights loaded = load_weights(*checkpoint, config, span, *backend, {}).value();
  const std::vector<int32_t> indices = {1, 0};
  std::vector<float> rows(indices.size() * static_cast<size_t>(config.hidden_size));
  tensor::Matrix sums;
  sums.data = reinterpret_cast<std::byte*>(rows.data());
  sums.dtype = tensor::DType::kF32;
  sums.rows = static_cast<int64_t>(indices.size());
  sums.cols = config.hidden_size;
  backend->run_and_wait([&] {
    const auto uploaded = backend->upload(indices);
    backend->embed(*loaded.embedding, uploaded, sums);
    backend->add_embedding(*loaded.positions, uploaded, sums);
    backend->add_embedding(*loaded.types, uploaded, sums);
  });
  return rows;
}

TEST_CASE("The tables of an encoder in FP8 equal the same values in f32") {
  const ModelConfig plain = read_config(test::source_dir() / "tests/golden/pooling/embed-bert").value();
  const auto all = test::stored_formats(kGroup);
  for (const std::string_view name : {"FP8 in blocks", "FP8 per row"}) {
    CAPTURE(name);
    const StoredFormat& format = *std::ranges::find(all, name, &StoredFormat::name);
    ModelConfig stored = plain;
    stored.weight_format = format.format;
    const Twins twins(plain, format, 23, true);
    CHECK(rows_of_tables(twins.stored.path(), stored) == rows_of_tables(twins.plain.path(), plain));
  }
}

TEST_CASE("A head in FP8 that ranks divide unevenly has equal bits") {
  const auto all = test::stored_formats(kGroup);
  for (const std::string_view name : {"FP8 in wide blocks", "FP8 per row"}) {
    for (const int32_t vocab_size : {67, 5}) {  // 5: the last of four ranks has no row
      CAPTURE(name, vocab_size);
      const StoredFormat& format = *std::ranges::find(all, name, &StoredFormat::name);
      ModelConfig config = test_config(ModelKind::kDense);
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
double packed_bits(const ModelConfig& config, const StoredFormat& format) {
  double weights = 0;
  for (const TensorSpec& spec : stage_tensors(config, {.layers = {0, config.layer_count()}})) {
    if (spec.projection) weights += static_cast<double>(spec.shape.elements());
  }
  return 8 * test::kept_bytes(config, format) / weights;
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
                                            .layer_count = 2,
                                            .head_count = 8,
                                            .kv_head_count = 4,
                                            .head_dim = 64,
                                            .max_position = 128});
    if (sparse)
      test::set_experts(config, {.expert_count = 8, .experts_per_token = 2, .intermediate_size = 128}, {false, true});
    const std::vector<StoredFormat> all = test::stored_formats(kGroup);
    // Scales of FP8 take up to one bit of these small shards.
    for (const auto& [name, bits] :
         {Kept{"FP8 in wide blocks", 9}, Kept{"FP8 per row", 8.5}, Kept{"MXFP4", 4.5}, Kept{"NVFP4", 4.75}}) {
      CAPTURE(sparse, name);
      const auto format = std::ranges::find(all, name, &StoredFormat::name);
      const double kept = packed_bits(config, *format);
      CHECK(kept > bits - 0.5);
      CHECK(kept < bits + 0.3);
    }
  }
}

TEST_CASE("Integers of Quark beside FP8 count 8 bits") {
  ModelConfig config = test_config(ModelKind::kDense);
  config.weight_format = {.method = weights::QuantMethod::kQuark, .bits = 4, .group_size = 32};
  const auto bits = [&config] {
    const auto specs = stage_tensors(config, {.layers = {0, config.layer_count()}});
    return bits_in_memory(config, *std::ranges::find_if(specs, &TensorSpec::projection), 8);
  };
  CHECK((knows_stored_bits(config) && bits() > 4 && bits() < 6));
  config.weight_format.has_wider = true;
  CHECK(bits() >= 8);
  CHECK_FALSE(knows_stored_bits(config));
}

TEST_CASE("Experts of w4afp8 count 4 bits beside FP8") {
  ModelConfig config = test_config(ModelKind::kSparse);
  config.weight_format = {.method = weights::QuantMethod::kInt4Fp8, .bits = 4, .group_size = 128};
  CHECK(knows_stored_bits(config));
  for (const TensorSpec& spec : stage_tensors(config, {.layers = {0, config.layer_count()}})) {
    if (!spec.projection || spec.layer < 0) continue;
    CAPTURE(spec.name);
    CHECK(bits_in_memory(config, spec, 8) == (spec.expert >= 0 ? 4.125 : 8.25));
  }
}

TEST_CASE("A quantized tensor that no config announces is refused") {
  const StoredFormat format = test::stored_formats(kGroup)[3];
  const ModelConfig config = test_config(ModelKind::kDense);
  const Twins twins(config, format, 3);
  const auto checkpoint = Checkpoint::open(twins.stored.path()).value();
  const auto backend = cpu::make_backend({.threads = 1, .compute_dtype = tensor::DType::kF32});
  CHECK_THROWS_AS(TestPipeline(*checkpoint, config, *backend, {}), ErrorException);
}

}  // namespace
