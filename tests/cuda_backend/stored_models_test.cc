// Whole models in the formats of quantized checkpoints and GGUF files, over the ops themselves, emulated or on a GPU.
// Their logits have the bits of the same values in f32, however stages, ranks, chunks, batches and graphs cut the work.

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>

#include "cuda/cuda_backend.h"
#include "cuda_backend/decode_rig.h"
#include "cuda_backend/same_draws.h"
#include "cuda_backend/tested_gemm.h"
#include "golden_test/feeding.h"
#include "model/families/read_config.h"
#include "model/gguf_twins.h"
#include "model/plain_model.h"
#include "model/stored_twins.h"
#include "model/tensor_list.h"
#include "model/tensor_names.h"
#include "model/weight_packer.h"
#include "support/effort.h"

using namespace millrace;
using namespace millrace::model;
using test::GgufTwins;
using test::ModelKind;
using test::StoredFormat;
using test::Twins;

namespace {

constexpr int64_t kGroup = 32;  // codes of which stay codes
constexpr int32_t kVocab = 512;

/// A model and how it is read.
struct Source {
  std::filesystem::path path;
  ModelConfig config;
};

/// Returns a model whose ranks' parts of sums are whole groups.
ModelConfig test_config(ModelKind kind) {
  return test::small_model(kind, 2, kVocab);
}

/// Returns the bits of weights in a format in the memory of a GPU.
PackedBits wanted_bits(std::string_view name) {
  if (name == "FP8 in wide blocks" || name == "FP8 per row" || name == "W4AFP8") return PackedBits::kFp8;
  return name == "FP8 in blocks" || name == "GPTQ" ? PackedBits::kCompute : PackedBits::k4;
}

/// Returns the bits of q, k and v together. NVFP4 stays in codes where all are NVFP4, and Q2_K nowhere.
PackedBits wanted_bits(const test::GgufMix& mix) {
  const std::array types = {mix.query, mix.key, mix.value};
  if (std::ranges::count(types, test::BlockType::kQ2K) > 0) return PackedBits::kCompute;
  const auto count = std::ranges::count(types, test::BlockType::kNvfp4);
  return count == 0 || count == std::ssize(types) ? PackedBits::k4 : PackedBits::kCompute;
}

/// Returns the bits of weights that are packed one above the other.
PackedBits bits_of(const Source& model, const std::vector<std::string>& names) {
  const auto checkpoint = Checkpoint::open(model.path).value();
  const auto backend = cuda::make_backend({.products = test::tested_gemm()});
  const LoadOptions options;
  WeightPacker packer(*checkpoint, *backend, model.config, options);
  REQUIRE(packer.resolve(stage_tensors(model.config, {.layers = {0, model.config.layer_count()}})).has_value());
  return packer.packed_bits(names);
}

test::Sequences sequences() {
  test::Sequences all;
  for (const size_t count : {21, 9}) all.push_back(test::spread_tokens(count, kVocab));
  return all;
}

std::unique_ptr<tensor::Backend> make_backend(cuda::Fp8Products fp8 = cuda::Fp8Products::kOff) {
  return cuda::make_backend(
      {.products = test::tested_gemm(), .fp8_products = fp8, .rank_exchange = cuda::RankExchange::kCopies});
}

test::Logits logits_of(const Source& model, tensor::Backend& backend) {
  const auto checkpoint = Checkpoint::open(model.path).value();
  test::TestPipeline whole(*checkpoint, model.config, backend, {.stage_count = 1});
  return run_alone(whole, sequences(), SIZE_MAX / 2, 1);
}

/// Fails unless stages with chunks and a batch, and ranks, give these logits.
void check_cuts(const Source& model, const test::Logits& wanted, cuda::Fp8Products fp8 = cuda::Fp8Products::kOff) {
  const auto checkpoint = Checkpoint::open(model.path).value();
  const std::array backends = {make_backend(fp8), make_backend(fp8)};
  test::TestPipeline stages(*checkpoint, model.config, *backends[0],
                            {.stage_count = 2, .page_size = 5, .page_count = 160});
  REQUIRE(test::same_bits(run_batched(stages, sequences(), 7, 2), wanted));
  test::TestPipeline ranks(*checkpoint, model.config, {backends[0].get(), backends[1].get()}, {.stage_count = 1});
  REQUIRE(test::same_bits(run_alone(ranks, sequences(), SIZE_MAX / 2, 3), wanted));
}

/// Fails unless a stored model has the bits of its values.
void check_twins(const Source& stored, const Source& plain) {
  const auto backend = make_backend();
  const test::Logits wanted = logits_of(plain, *backend);
  for (const std::vector<float>& logits : wanted)
    REQUIRE(std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); }));
  REQUIRE(test::same_bits(logits_of(stored, *backend), wanted));
  check_cuts(stored, wanted);
}

test::DecodeRig::Drawn draws_of(const Source& model, int stages, bool graphs) {
  std::vector<std::unique_ptr<tensor::Backend>> backends;
  std::vector<std::string> warnings;
  for (int s = 0; s < stages; ++s) {
    backends.push_back(cuda::make_backend({.products = test::tested_gemm(),
                                           .graphs = graphs,
                                           .warn = [&](const std::string& what) { warnings.push_back(what); }}));
  }
  test::DecodeRig rig(std::move(backends),
                      {.folder = model.path, .config = model.config, .sequence_count = 3, .prompt_growth = 5});
  rig.prefill();
  for (const size_t count : {3, 3, 3, 2, 3}) rig.decode(count);
  REQUIRE((rig.graph_stats()[static_cast<size_t>(tensor::GraphOutcome::kReplayed)] > 0) == graphs);
  REQUIRE(warnings == std::vector<std::string>{});
  return rig.drawn();
}

/// Fails unless decode steps of a stored model, as graphs too, draw what those of its values draw.
void check_steps(const Source& stored, const Source& plain) {
  const test::DecodeRig::Drawn wanted = draws_of(plain, 1, false);
  for (const auto& [stages, graphs] : {std::pair{1, true}, std::pair{2, true}}) {
    CAPTURE(stages);
    test::require_same(draws_of(stored, stages, graphs), wanted);
  }
}

Source plain_source(const Twins& twins, ModelKind kind) {
  return {twins.plain.path(), test_config(kind)};
}
Source stored_source(const Twins& twins, ModelKind kind, const StoredFormat& format) {
  Source source{twins.stored.path(), test_config(kind)};
  source.config.weight_format = format.format;
  return source;
}
Source source_of(const std::filesystem::path& file) {
  return {file, read_config(file).value()};
}

/// Returns some of all pairs of a kind and a format.
template <class Other>
std::vector<std::pair<ModelKind, Other>> drawn_pairs(const std::vector<ModelKind>& kinds,
                                                     const std::vector<Other>& others) {
  std::vector<std::pair<ModelKind, Other>> pairs;
  for (const ModelKind kind : kinds)
    for (const Other& other : others) pairs.emplace_back(kind, other);
  return test::drawn_from(pairs);
}

}  // namespace

TEST_CASE("models in stored formats have the bits of their values") {
  for (const auto& [kind, format] : drawn_pairs<StoredFormat>(
           {ModelKind::kDense, ModelKind::kSparse, ModelKind::kLatent}, test::stored_formats(kGroup))) {
    CAPTURE(static_cast<int>(kind), format.name);
    const Twins twins(test_config(kind), format, 7);
    const Source stored = stored_source(twins, kind, format);
    const std::string down = layer_tensor_name(0, "mlp.down_proj.weight");
    REQUIRE(bits_of(stored, {down}) == wanted_bits(format.name));
    check_twins(stored, plain_source(twins, kind));
  }
}

TEST_CASE("GGUF models of several kinds have the bits of their values") {
  for (const auto& [kind, mix] :
       drawn_pairs<test::GgufMix>({ModelKind::kDense, ModelKind::kSparse}, test::gguf_mixes())) {
    CAPTURE(static_cast<int>(kind), mix.name);
    const GgufTwins twins(mix, kind == ModelKind::kSparse, 5);
    const Source stored = source_of(twins.stored());
    const std::string layer = "model.layers.1.self_attn.";
    const std::vector<std::string> attention = {layer + "q_proj.weight", layer + "k_proj.weight",
                                                layer + "v_proj.weight"};
    REQUIRE(bits_of(stored, attention) == wanted_bits(mix));
    check_twins(stored, source_of(twins.plain()));
  }
}

TEST_CASE("graphs of models in codes draw what their values do") {
  for (const auto& [kind, format] :
       drawn_pairs<StoredFormat>({ModelKind::kDense, ModelKind::kSparse}, test::stored_formats(kGroup))) {
    if (wanted_bits(format.name) == PackedBits::kCompute) continue;
    CAPTURE(static_cast<int>(kind), format.name);
    const Twins twins(test_config(kind), format, 11);
    check_steps(stored_source(twins, kind, format), plain_source(twins, kind));
  }
  for (const auto& [kind, mix] :
       drawn_pairs<test::GgufMix>({ModelKind::kDense, ModelKind::kSparse}, test::gguf_mixes())) {
    CAPTURE(static_cast<int>(kind), mix.name);
    const GgufTwins twins(mix, kind == ModelKind::kSparse, 13);
    check_steps(source_of(twins.stored()), source_of(twins.plain()));
  }
}

TEST_CASE("products in FP8 of whole models have equal bits") {
  const ModelKind kind = GENERATE(ModelKind::kDense, ModelKind::kSparse);
  const std::vector<StoredFormat> formats = test::stored_formats(kGroup);
  const StoredFormat& format = *std::ranges::find(formats, std::string_view("FP8 per row"), &StoredFormat::name);
  const Twins twins(test_config(kind), format, 17);
  const Source stored = stored_source(twins, kind, format);
  const auto backend = make_backend(cuda::Fp8Products::kAuto);
  const test::Logits wanted = logits_of(stored, *backend);
  check_cuts(stored, wanted, cuda::Fp8Products::kAuto);
}
