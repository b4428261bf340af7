#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "base/log.h"
#include "rank_group_bench.h"
#include "sliced_sends.h"

/// The cost of one collective between ranks on this machine, in shared memory and over TCP on loopback, and the cost of
/// sending activations between two stages as slices and as whole rows. Implementations take turns, so that a noisy
/// machine treats them alike.
namespace {

using namespace millrace;
using namespace millrace::bench;
using Clock = std::chrono::steady_clock;
using tensor::DType;
using tensor::Matrix;

struct BenchOptions {
  int32_t ranks = 2;
  int threads = 1;
  std::vector<int64_t> rows{1, 32, 512, 2048};
  std::vector<int64_t> cols{896, 2048, 4096};
  size_t rounds = 7;
  double round_ms = 50;
  size_t sends = 50;
};

struct Implementation {
  std::string name;
  BenchRanks ranks;
};

/// The matrices of one rank.
struct RankMatrices {
  RankMatrices(tensor::Backend& backend, int64_t rows, int64_t cols, int32_t ranks)
      : sums_memory(backend.allocate(static_cast<size_t>(rows * cols) * sizeof(float))),
        slice_memory(backend.allocate(static_cast<size_t>(rows * (cols / ranks)) * sizeof(float))),
        sums{sums_memory.data(), DType::kF32, rows, cols},
        slice{slice_memory.data(), DType::kF32, rows, cols / ranks} {}
  tensor::Buffer sums_memory;
  tensor::Buffer slice_memory;
  Matrix sums;
  Matrix slice;
};

/// Returns the microseconds of one call among `calls` in turn.
double time_calls(const BenchRanks& ranks, std::vector<RankMatrices>& matrices, bool gather, size_t calls) {
  const auto start = Clock::now();
  run_on_ranks(ranks, [&](int32_t rank) {
    const auto at = static_cast<size_t>(rank);
    for (size_t call = 0; call < calls; ++call) {
      gather ? ranks.ends[at]->all_gather(matrices[at].slice, matrices[at].sums)
             : ranks.ends[at]->all_reduce(matrices[at].sums);
    }
  });
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / static_cast<double>(calls);
}

std::string summary(std::vector<double> values) {
  std::ranges::sort(values);
  return fmt::format("{:.1f} [{:.1f}, {:.1f}]", values[values.size() / 2], values.front(), values.back());
}

void measure_collectives(const BenchOptions& options, const std::vector<Implementation>& implementations, bool gather) {
  fmt::print("\n{} of {} ranks with {} threads each, us per call: median [least, most] of {} rounds\n",
             gather ? "all_gather" : "all_reduce", options.ranks, options.threads, options.rounds);
  fmt::print("{:>14}", "rows x cols");
  for (const Implementation& each : implementations) fmt::print(" {:>28}", each.name);
  fmt::print("\n");
  for (const int64_t rows : options.rows) {
    for (const int64_t cols : options.cols) {
      std::vector<std::vector<RankMatrices>> matrices(implementations.size());
      std::vector<size_t> calls;
      for (size_t i = 0; i < implementations.size(); ++i) {
        for (const auto& backend : implementations[i].ranks.backends) {
          matrices[i].emplace_back(*backend, rows, cols, options.ranks);
        }
        const double first_us = time_calls(implementations[i].ranks, matrices[i], gather, 5);
        calls.push_back(static_cast<size_t>(std::clamp(1e3 * options.round_ms / first_us, 5.0, 5000.0)));
      }
      std::vector<std::vector<double>> times(implementations.size());
      for (size_t round = 0; round < options.rounds; ++round) {
        for (size_t i = 0; i < implementations.size(); ++i) {
          times[i].push_back(time_calls(implementations[i].ranks, matrices[i], gather, calls[i]));
        }
      }
      fmt::print("{:>14}", fmt::format("{} x {}", rows, cols));
      for (const auto& each : times) fmt::print(" {:>28}", summary(each));
      fmt::print("\n");
      std::fflush(stdout);
    }
  }
}

void compare_sends(const BenchOptions& options) {
  fmt::print(
      "\nactivations between stages of {} ranks over TCP, us until all ranks have whole rows: median of {} sends\n",
      options.ranks, options.sends);
  fmt::print("{:>14} {:>14} {:>28} {:>14} {:>28}\n", "rows x cols", "whole, B/link", "us", "sliced, B/link", "us");
  for (const int64_t rows : options.rows) {
    for (const int64_t cols : options.cols) {
      fmt::print("{:>14}", fmt::format("{} x {}", rows, cols));
      for (const bool sliced : {false, true}) {
        const SendFigures figures = measure_sends(options.ranks, rows, cols, sliced, options.sends);
        fmt::print(" {:>14} {:>28}", figures.link_bytes,
                   fmt::format("{:.1f} [{:.1f}, {:.1f}]", figures.median_us, figures.min_us, figures.max_us));
      }
      fmt::print("\n");
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  BenchOptions options;
  CLI::App app(
      "collective_bench: microseconds of one all_reduce and one all_gather, in shared memory and over TCP on loopback, "
      "and of activations sent as slices and as whole rows.");
  app.add_option("--ranks", options.ranks, "ranks of a stage")->check(CLI::IsMember({2, 4, 8}))->capture_default_str();
  app.add_option("--threads", options.threads, "threads of a rank")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--rows", options.rows, "rows of the matrices")->delimiter(',')->check(CLI::PositiveNumber);
  app.add_option("--cols", options.cols, "columns of the matrices; the ranks divide them")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  app.add_option("--rounds", options.rounds, "rounds per size")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--round-ms", options.round_ms, "aim of a round")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--sends", options.sends, "sends per size")->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  log::configure(log::Level::kError, false);
  std::vector<Implementation> implementations;
  implementations.push_back({"shared memory", make_shared_ranks(options.ranks, options.threads)});
  implementations.push_back({"TCP", make_tcp_ranks(options.ranks, options.threads, DType::kF32)});
  implementations.push_back({"TCP, bf16", make_tcp_ranks(options.ranks, options.threads, DType::kBF16)});
  for (const bool gather : {false, true}) measure_collectives(options, implementations, gather);
  compare_sends(options);
  return 0;
}
