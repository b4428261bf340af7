#include "cuda_backend/sharing_rings.h"

#include <algorithm>
#include <thread>

#include "cuda_backend/tested_gemm.h"
#include "golden_test/golden_file.h"
#include "model/families/read_config.h"

namespace millrace::test {

SharedFamily::SharedFamily(const std::string& name, size_t prompts) {
  constexpr size_t kMaxTokens = 24;
  const GoldenFamily family = read_golden_family(name);
  checkpoint = model::Checkpoint::open(family.folder).value();
  config = model::read_config(family.folder).value();
  for (size_t i = 0; i < prompts; ++i) {
    std::vector<TokenId>& tokens = sequences.emplace_back(family.prompts.at(i).sequence());
    tokens.resize(std::min(tokens.size(), kMaxTokens));
  }
}

Logits SharedFamily::wanted() const {
  const auto backend = cuda::make_backend({.products = tested_gemm()});
  TestPipeline whole(*checkpoint, config, *backend, {.stage_count = 1});
  return run_alone(whole, sequences, SIZE_MAX / 2, 1);
}

std::string failure_text(const std::exception_ptr& failure) {
  if (!failure) return "no failure";
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  }
}

SharingRings::SharingRings(const model::Checkpoint& checkpoint, const model::ModelConfig& config, const Shape& shape)
    : shape_(shape) {
  for (int32_t ring = 0; ring < shape.ring_count; ++ring) {
    std::vector<tensor::Backend*> ranks;
    for (int32_t rank = 0; rank < shape.rank_count; ++rank) {
      const auto exchange = shape.rank_count > 1 ? cuda::RankExchange::kCopies : cuda::RankExchange::kNccl;
      backends_.push_back(
          cuda::make_backend({.products = tested_gemm(), .rank_exchange = exchange, .waits_for_rings = true}));
      ranks.push_back(backends_.back().get());
    }
    TestPipeline::Options options{.stage_count = shape.stage_count};
    options.limits = {.max_batch_tokens = 64, .max_logit_rows = 37};
    options.ring = ring;
    options.ring_count = shape.ring_count;
    rings_.push_back(std::make_unique<TestPipeline>(checkpoint, config, ranks, options));
  }
  (void)share();
}

std::shared_ptr<comm::SharedExperts> SharingRings::share() {
  auto experts = std::make_shared<comm::SharedExperts>(comm::SharedExperts::Shape{
      .ring_count = shape_.ring_count, .rank_count = shape_.rank_count, .stage_count = shape_.stage_count});
  for (const auto& ring : rings_) ring->share(experts);
  return experts;
}

SharingRings::Outcome SharingRings::run(const Sequences& sequences, size_t chunk) {
  size_t steps = 0;
  for (size_t ring = 0; ring < sequences.size(); ++ring)
    steps = std::max(steps, (sequences[ring].size() + chunk + ring - 1) / (chunk + ring));
  Outcome outcome{.logits = Logits(rings_.size()), .failures = std::vector<std::exception_ptr>(rings_.size())};
  const auto run_ring = [&](size_t number) {
    TestPipeline& pipeline = *rings_[number];
    const std::vector<TokenId> tokens = number < sequences.size() ? sequences[number] : std::vector<TokenId>();
    pipeline.start({static_cast<int32_t>(tokens.size())}, static_cast<uint32_t>(number));
    size_t done = 0;
    for (size_t step = 0; step < steps; ++step) {
      const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(done);
      const auto count = static_cast<std::ptrdiff_t>(std::min(chunk + number, tokens.size() - done));
      if (count == 0) {
        pipeline.step_without_rows();
        continue;
      }
      const auto rows = pipeline.run({{.tokens = {begin, begin + count}, .prefix = static_cast<int32_t>(done)}});
      outcome.logits[number].insert(outcome.logits[number].end(), rows.begin(), rows.end());
      done += static_cast<size_t>(count);
    }
  };
  std::vector<std::thread> threads;
  for (size_t number = 0; number < rings_.size(); ++number) {
    threads.emplace_back([&, number] {
      try {
        run_ring(number);
      } catch (...) {
        outcome.failures[number] = std::current_exception();
      }
    });
  }
  for (std::thread& each : threads) each.join();
  return outcome;
}

Logits SharingRings::logits(const Sequences& sequences, size_t chunk) {
  Outcome outcome = run(sequences, chunk);
  for (const std::exception_ptr& failure : outcome.failures) {
    if (failure) std::rethrow_exception(failure);
  }
  outcome.logits.resize(sequences.size());
  return outcome.logits;
}

}  // namespace millrace::test
