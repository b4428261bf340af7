#include "sched/scheduler/chunker.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <tuple>

using namespace millrace;
using namespace millrace::sched;

namespace {

constexpr CostCoefficients kStage = {9000, 12, 2.5e-4, 100, 0.01};
constexpr uint32_t kPrompt = 131072;

Chunker chunker_of(const ChunkingOptions& options, const CostCoefficients& stage_cost = kStage) {
  Chunker chunker(options);
  const uint32_t stage_count = options.stage_count;
  for (uint32_t stage = 0; stage < stage_count; ++stage) {
    for (uint32_t i = 1; i <= 16; ++i) {
      BatchShape shape;
      shape.add_prefill(i % 4 == 3 ? 1024 * i : 0, 1000 * i);
      if (i % 5 == 4) shape.add_decode(500 * i);
      if (i % 5 == 2) shape.add_decode(90 * i);
      chunker.observe(StageId(stage), shape, stage_cost.predict_us(shape));
    }
  }
  chunker.finish_profile();
  return chunker;
}

Chunker chunker_of(Chunking mode, double smoothing = 0.75, uint32_t stage_count = 8) {
  return chunker_of({mode, 16384, smoothing, 64, stage_count});
}

/// Returns the chunks of a prompt that has every micro-batch for itself, with `others` like it in the backlog.
std::vector<uint32_t> chunks_of(Chunker& chunker, uint32_t length, size_t others) {
  std::vector<uint32_t> chunks;
  Chunker::Prompt prompt{0, length, 0};
  while (prompt.left > 0) {
    chunker.begin({}, std::vector<uint32_t>(others + 1, length));
    const uint32_t chunk = chunker.chunk_tokens(prompt);
    REQUIRE(chunk > 0);
    const double target_us = chunker.target_us(prompt);
    chunker.add_chunk(prompt, chunk);
    chunks.push_back(chunk);
    prompt = {prompt.prefix + chunk, prompt.left - chunk, target_us};
  }
  return chunks;
}

double time_of(uint32_t prefix, uint32_t chunk, const CostCoefficients& stage_cost = kStage) {
  BatchShape shape;
  shape.add_prefill(prefix, chunk);
  return stage_cost.predict_us(shape);
}

/// Returns the ratio of the longest to the shortest chunk time, without the last chunk.
double spread(const std::vector<uint32_t>& chunks, const CostCoefficients& stage_cost = kStage) {
  double shortest = 1e30;
  double longest = 0;
  uint32_t prefix = 0;
  for (size_t i = 0; i + 1 < chunks.size(); ++i) {
    shortest = std::min(shortest, time_of(prefix, chunks[i], stage_cost));
    longest = std::max(longest, time_of(prefix, chunks[i], stage_cost));
    prefix += chunks[i];
  }
  return longest / shortest;
}

}  // namespace

TEST_CASE("fixed chunks are all the size but the last") {
  Chunker chunker = chunker_of(Chunking::kFixed);
  REQUIRE(chunks_of(chunker, 40000, 0) == std::vector<uint32_t>{16384, 16384, 7232});
}

TEST_CASE("a prompt that may not be cut waits until it fits") {
  Chunker chunker({.size = 128, .cuts_prompts = false});
  chunker.begin({}, {});
  const Chunker::Prompt first{.left = 100};
  REQUIRE(chunker.chunk_tokens(first) == 100);
  chunker.add_chunk(first, 100);
  REQUIRE(chunker.chunk_tokens({.left = 29}) == 0);
  REQUIRE(chunker.chunk_tokens({.left = 28}) == 28);
  chunker.begin({}, {});
  REQUIRE(chunker.chunk_tokens({.left = 128}) == 128);
}

TEST_CASE("balanced chunks shrink as the prefix grows") {
  Chunker balanced = chunker_of(Chunking::kBalanced);
  const auto chunks = chunks_of(balanced, kPrompt, 15);
  REQUIRE(chunks.front() == 16384);
  REQUIRE(std::is_sorted(chunks.rbegin(), chunks.rend()));
  for (size_t i = 0; i + 1 < chunks.size(); ++i) {
    REQUIRE(chunks[i] % 64 == 0);
  }
  REQUIRE(chunks[chunks.size() - 2] < chunks.front() / 4);  // what a quarter would take is no equal cost
  REQUIRE(spread(chunks) < 1.2);
  Chunker published = chunker_of(Chunking::kPublished);
  REQUIRE(spread(chunks_of(published, kPrompt, 15)) > 1.25);
}

TEST_CASE("a short backlog is cut finer to fill the pipeline sooner") {
  Chunker chunker = chunker_of(Chunking::kBalanced);
  const size_t alone = chunks_of(chunker, kPrompt, 0).size();
  REQUIRE(alone > chunks_of(chunker, kPrompt, 15).size());
  Chunker single = chunker_of(Chunking::kBalanced, 0.75, 1);
  REQUIRE(chunks_of(single, 16000, 0).size() == 1);
}

TEST_CASE("stages that share processors are filled by fewer chunks") {
  const auto first_target = [](uint32_t stage_count, double at_once) {
    Chunker chunker = chunker_of({Chunking::kBalanced, 16384, 0.75, 64, stage_count, at_once});
    chunker.begin({}, {kPrompt / 4});
    return chunker.target_us({0, kPrompt / 4, 0});
  };
  const double all = first_target(8, 8);
  REQUIRE(all == first_target(8, 100));
  REQUIRE(all < first_target(8, 4));
  // (a − 1)·a/P is 7 for 8 of 8 and 0.25 for 2 of 8: the part above the fixed one is √28 times as long.
  REQUIRE(first_target(8, 2) - kStage.fixed_us == Approx(std::sqrt(28.0) * (all - kStage.fixed_us)).epsilon(1e-3));
  // One stage at a time: filling costs nothing with any number of stages.
  REQUIRE(first_target(8, 1) == Approx(time_of(0, 16384)));
  REQUIRE(first_target(8, 0.5) == Approx(time_of(0, 16384)));
}

TEST_CASE("the target does not fall while prompts wait") {
  Chunker chunker = chunker_of(Chunking::kBalanced);
  const auto first_chunk = [&](size_t prompts, double last_target_us) {
    chunker.begin({}, std::vector<uint32_t>(prompts, kPrompt));
    return chunker.chunk_tokens({0, kPrompt, last_target_us});
  };
  const uint32_t alone = first_chunk(1, 0);
  const uint32_t many = first_chunk(16, 0);
  REQUIRE(alone < many);
  REQUIRE(first_chunk(1, 0) == many);
  const double target_us = chunker.target_us({0, kPrompt, 0});
  chunker.begin({}, {});
  REQUIRE(first_chunk(1, 0) == alone);
  const double fallen_us = chunker.target_us({0, kPrompt, target_us});
  REQUIRE(fallen_us == Approx(0.25 * target_us + 0.75 * chunker.target_us({0, kPrompt, 0})));
  REQUIRE(first_chunk(1, target_us) > alone);
}

TEST_CASE("chunks with large fixed costs take longer within bounds") {
  constexpr uint32_t kSmall = 1024;
  Chunker chunker({Chunking::kBalanced, kSmall, 0.75, 64, 8});
  for (uint32_t i = 1; i <= 16; ++i) {
    BatchShape shape;
    shape.add_prefill(i % 4 == 3 ? 1024 * i : 0, 1000 * i);
    if (i % 5 == 4) shape.add_decode(500 * i);
    for (uint32_t stage = 0; stage < 8; ++stage) chunker.observe(StageId(stage), shape, kStage.predict_us(shape));
  }
  chunker.finish_profile();
  const auto chunks = chunks_of(chunker, kPrompt, 15);
  const double first_us = time_of(0, kSmall);
  REQUIRE(chunks.front() == kSmall);
  uint32_t prefix = 0;
  double longest_us = 0;
  for (const uint32_t chunk : chunks) {
    REQUIRE(chunk <= kSmall);
    longest_us = std::max(longest_us, time_of(prefix, chunk));
    prefix += chunk;
  }
  REQUIRE(longest_us > 1.5 * first_us);
  REQUIRE(longest_us < 4.1 * first_us);
}

TEST_CASE("without fixed costs chunks are still several alignments") {
  constexpr CostCoefficients kFree = {0, 1500, 0.3, 1400, 3};
  Chunker chunker = chunker_of({Chunking::kBalanced, 512, 0.75, 64, 2}, kFree);
  auto chunks = chunks_of(chunker, 2000, 5);
  REQUIRE(chunks.front() == 192);
  chunks.pop_back();
  REQUIRE(chunks.back() == 112);  // 109 would take as long as the first
  REQUIRE(std::is_sorted(chunks.rbegin(), chunks.rend()));
  REQUIRE(spread(chunks, kFree) < 1.13);
}

TEST_CASE("small balanced chunks are rounded to an eighth of their size") {
  for (const auto& [size, page_size, step] : {std::tuple{512u, 64u, 64u},
                                              {511u, 64u, 32u},
                                              {256u, 64u, 32u},
                                              {255u, 64u, 16u},
                                              {100u, 64u, 16u},
                                              {511u, 128u, 32u}}) {
    CAPTURE(size, page_size);
    Chunker chunker = chunker_of({Chunking::kBalanced, size, 0.75, page_size, 1}, kStage);
    chunker.begin({}, {10000});
    REQUIRE(chunker.chunk_tokens({0, 10000, 0}) == size / step * step);
  }
}

TEST_CASE("a chunk leaves the time that decode steps take") {
  Chunker chunker = chunker_of(Chunking::kBalanced);
  BatchShape decodes;
  for (int i = 0; i < 200; ++i) decodes.add_decode(2000);
  const std::vector<uint32_t> backlog(16, kPrompt);
  chunker.begin({}, backlog);
  const uint32_t alone = chunker.chunk_tokens({kPrompt, kPrompt, 0});
  chunker.begin(decodes, backlog);
  const uint32_t beside = chunker.chunk_tokens({kPrompt, kPrompt, 0});
  REQUIRE(beside < alone);
  REQUIRE(beside >= alone / 4);
  for (int i = 0; i < 5000; ++i) decodes.add_decode(2000);
  chunker.begin(decodes, backlog);
  REQUIRE(chunker.chunk_tokens({kPrompt, kPrompt, 0}) >= alone / 4 / 64 * 64);
}

TEST_CASE("balanced chunks stay aligned after short prompts") {
  Chunker chunker = chunker_of(Chunking::kBalanced);
  chunker.begin({}, std::vector<uint32_t>(16, kPrompt));
  chunker.add_short({0, 100, 0});
  const Chunker::Prompt first{0, 16320, 0};
  const uint32_t chunk = chunker.chunk_tokens(first);
  REQUIRE(chunk > 0);
  REQUIRE(chunk % 64 == 0);
  chunker.add_chunk(first, chunk);
  chunker.begin({}, std::vector<uint32_t>(16, kPrompt));
  chunker.add_chunk({0, 4000, 0}, 4000);
  const uint32_t rest = chunker.chunk_tokens({0, kPrompt, 0});
  REQUIRE(rest > 0);
  REQUIRE(rest % 64 == 0);
}

TEST_CASE("balanced chunks are multiples of 16 for every page size") {
  for (const uint32_t page_size : {100U, 200U}) {
    const CostCoefficients mostly_attention = {100, 1, 0.01, 1, 0};
    Chunker chunker = chunker_of({Chunking::kBalanced, 800, 0.75, page_size, 4}, mostly_attention);
    std::vector<uint32_t> chunks = chunks_of(chunker, 8000, 8);
    chunks.pop_back();
    REQUIRE(std::ranges::min(chunks) < 100);
    REQUIRE(std::ranges::all_of(chunks, [](uint32_t chunk) { return chunk % 25 == 0; }));
  }
}

TEST_CASE("without timings balanced chunks are fixed chunks") {
  Chunker chunker({Chunking::kBalanced, 1000, 0.75, 64, 4});
  chunker.begin({}, {5000});
  REQUIRE(chunker.chunk_tokens({0, 5000, 0}) == 1000);
}

TEST_CASE("the published fit solves its difference equation") {
  std::vector<std::pair<double, double>> samples;
  for (double length = 1000; length <= 20000; length += 1000) {
    samples.emplace_back(length, 3e-4 * length * length + 10 * length + 500);
  }
  const auto fit = QuadraticFit::fit(samples);
  REQUIRE(fit->a == Approx(3e-4));
  REQUIRE(fit->b == Approx(10));
  const auto f = [&](double l) { return fit->a * l * l + fit->b * l; };
  const double chunk = fit->chunk_for(50000, 16384);
  REQUIRE(f(50000 + chunk) - f(50000) == Approx(f(16384)));
  REQUIRE_FALSE(QuadraticFit::fit({{1, 1}, {2, 2}}).has_value());
}
