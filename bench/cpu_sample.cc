// Draws from rows of logits over a large vocabulary, per setting, in microseconds per row.

#include <fmt/core.h>

#include <random>

#include "cpu_bench.h"

using namespace millrace;
using namespace millrace::bench;

namespace {

constexpr int64_t kVocab = 151936;
constexpr int64_t kRows = 16;

struct Setting {
  const char* name;
  tensor::SamplingParams params;
};

std::vector<Setting> settings() {
  tensor::SamplingParams greedy;
  greedy.temperature = 0.0f;
  tensor::SamplingParams greedy_logprobs = greedy;
  greedy_logprobs.top_logprobs = 5;
  tensor::SamplingParams penalties = greedy;
  penalties.repetition_penalty = 1.1f;
  const tensor::SamplingParams usual{.temperature = 0.7f, .top_p = 0.8f, .top_k = 20};
  return {{"greedy", greedy},
          {"greedy, 5 logprobs", greedy_logprobs},
          {"greedy, repetition penalty", penalties},
          {"temperature 1", {}},
          {"min_p 0.05", {.min_p = 0.05f}},
          {"top_k 50", {.top_k = 50}},
          {"top_p 0.9", {.top_p = 0.9f}},
          {"top_k 20, top_p 0.8", usual}};
}

}  // namespace

int main(int argc, char** argv) {
  const BenchOptions options =
      parse_options(argc, argv, "microseconds per row of draws over a vocabulary of 151,936", {.dtype = false});
  // Deviation 3 resembles a confident model, 1 a flat distribution: the hard case for top_p.
  for (const float deviation : {3.0f, 1.0f}) {
    for (const int threads : options.threads) {
      for (const cpu::Isa isa : options.isas) {
        const auto backend = cpu::make_backend({.threads = threads, .isa = isa});
        fmt::print("{}, {} rows, logits of deviation {}\n", backend->description(), kRows, deviation);
        const auto logits = backend->allocate(static_cast<size_t>(kRows * kVocab) * sizeof(float));
        std::mt19937 engine(1);
        std::normal_distribution<float> normal(0.0f, deviation);
        for (int64_t i = 0; i < kRows * kVocab; ++i) reinterpret_cast<float*>(logits.data())[i] = normal(engine);
        const std::vector<TokenId> history(1000, 7);
        for (const Setting& setting : settings()) {
          const std::vector<tensor::SampleSpec> specs(
              kRows, {.params = &setting.params, .position = 1, .prompt = history, .output = history});
          std::vector<tensor::SampleResult> results(kRows);
          backend->run_and_wait([&] {
            const Timing timing = measure(options.runs, [&] {
              backend->sample({.data = logits.data(), .dtype = tensor::DType::kF32, .rows = kRows, .cols = kVocab},
                              kVocab, specs, results);
            });
            fmt::print("  {:<28}{:>9.1f} us ±{:.0f}%\n", setting.name, timing.median / kRows * 1e6, timing.spread * 50);
          });
        }
      }
    }
  }
}
