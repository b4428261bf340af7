#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "cpu/cpu_backend.h"
#include "golden_test/golden_file.h"
#include "model/test_pipeline.h"

using namespace millrace;
using model::Quantization;
using test::GoldenFamily;
using test::Piece;
using test::TestPipeline;

namespace {

using Sequences = std::vector<std::vector<TokenId>>;
/// Of each sequence, f32 [tokens, vocab].
using Logits = std::vector<std::vector<float>>;

Logits run_alone(TestPipeline& pipeline, const Sequences& sequences, size_t chunk, uint32_t seed) {
  Logits logits;
  for (const std::vector<TokenId>& tokens : sequences) {
    pipeline.start({static_cast<int32_t>(tokens.size())}, seed);
    std::vector<float>& own = logits.emplace_back();
    for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
      const size_t end = std::min(begin + chunk, tokens.size());
      const auto part = pipeline.run({{.tokens = {tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                                                  tokens.begin() + static_cast<std::ptrdiff_t>(end)},
                                       .prefix = static_cast<int32_t>(begin)}});
      own.insert(own.end(), part.begin(), part.end());
    }
  }
  return logits;
}

/// All sequences at once; three join each turn, and the chunks of sequence s are chunk + s tokens, so that chunks of
/// several lengths and prefixes meet.
Logits run_together(TestPipeline& pipeline, const Sequences& sequences, size_t chunk, uint32_t seed) {
  std::vector<int32_t> room;
  for (const auto& tokens : sequences) room.push_back(static_cast<int32_t>(tokens.size()));
  pipeline.start(room, seed);
  const auto vocab = static_cast<size_t>(pipeline.stage(0).config().vocab_size);
  Logits logits(sequences.size());
  std::vector<size_t> done(sequences.size());
  for (size_t turn = 0;; ++turn) {
    std::vector<Piece> pieces;
    for (size_t s = 0; s < sequences.size() && s / 3 <= turn; ++s) {
      const auto begin = sequences[s].begin() + static_cast<std::ptrdiff_t>(done[s]);
      const size_t count = std::min(chunk + s, sequences[s].size() - done[s]);
      if (count == 0) continue;
      pieces.push_back({.tokens = {begin, begin + static_cast<std::ptrdiff_t>(count)},
                        .prefix = static_cast<int32_t>(done[s]),
                        .sequence = s});
      done[s] += count;
    }
    if (pieces.empty()) return logits;
    const std::vector<float> rows = pipeline.run(pieces);
    auto from = rows.begin();
    for (const Piece& piece : pieces) {
      const auto to = from + static_cast<std::ptrdiff_t>(piece.tokens.size() * vocab);
      logits[piece.sequence].insert(logits[piece.sequence].end(), from, to);
      from = to;
    }
  }
}

bool same_bits(const Logits& left, const Logits& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(), [](const auto& a, const auto& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  });
}

Sequences sequences_of(const GoldenFamily& family) {
  Sequences sequences;
  for (const test::GoldenPrompt& prompt : family.prompts) sequences.push_back(prompt.sequence());
  return sequences;
}

}  // namespace

TEST_CASE("logits have the same bits whatever the stages, the chunks, the pages and the company") {
  const GoldenFamily family = test::read_golden_family(GENERATE(from_range(test::golden_family_names())));
  const tensor::DType dtype = GENERATE(tensor::DType::kF32, tensor::DType::kBF16);
  const auto checkpoint = model::Checkpoint::open(family.folder).value();
  model::ModelConfig config = model::read_config(family.folder).value();
  // One family of each kind of head, and one with experts, is enough for 8 bits.
  const bool w8_too = family.name == "qwen2" || family.name == "qwen3" || family.name == "qwen3moe-raw";
  if (w8_too) config.quantization = GENERATE(Quantization::kNone, Quantization::kW8, Quantization::kW8A8);
  const auto backend = cpu::make_backend({.threads = 2, .compute_dtype = dtype});
  const Sequences sequences = sequences_of(family);
  TestPipeline whole(*checkpoint, config, *backend, {.stage_count = 1});
  const Logits wanted = run_alone(whole, sequences, SIZE_MAX / 2, 1);
  const std::string label = family.name + " " + std::string(tensor::to_string(dtype));
  for (const int32_t stages : {1, 2, 4}) {
    TestPipeline pipeline(*checkpoint, config, *backend, {.stage_count = stages, .page_size = stages == 2 ? 5 : 16,
                                                          .page_count = stages == 2 ? 160 : 64});
    for (const size_t chunk : {SIZE_MAX / 2, size_t{64}, size_t{7}, size_t{1}}) {
      CAPTURE(label, stages, chunk);
      REQUIRE(same_bits(run_alone(pipeline, sequences, chunk, 2), wanted));
      REQUIRE(same_bits(run_together(pipeline, sequences, chunk, 3), wanted));
    }
  }
}

TEST_CASE("logits have the same bits whatever the count of threads") {
  const GoldenFamily family = test::read_golden_family(GENERATE(as<std::string>{}, "qwen3", "qwen3moe"));
  const tensor::DType dtype = GENERATE(tensor::DType::kF32, tensor::DType::kBF16);
  const auto checkpoint = model::Checkpoint::open(family.folder).value();
  const model::ModelConfig config = model::read_config(family.folder).value();
  const Sequences sequences = sequences_of(family);
  Logits first;
  for (const int threads : {1, 2, 3}) {
    const auto backend = cpu::make_backend({.threads = threads, .compute_dtype = dtype});
    TestPipeline pipeline(*checkpoint, config, *backend, {.stage_count = 1});
    Logits logits = run_together(pipeline, sequences, 20, 4);
    if (threads == 1) first = std::move(logits);
    else REQUIRE(same_bits(logits, first));
  }
}
