#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "app/local_engine.h"
#include "sched/plan/request.h"

/// An engine in this process and clients of it, without a server between: for what bench/load cannot ask for.
namespace millrace::bench {

struct Reply {
  using Clock = std::chrono::steady_clock;
  std::vector<TokenId> tokens;
  std::vector<Clock::time_point> times;  ///< [tokens], when each was heard of
};

/// The model of `options.model_path`, ready. Throws ErrorException.
[[nodiscard]] std::unique_ptr<app::LocalEngine> start_engine(const app::EngineOptions& options);

/// Sends all requests at once and waits for all replies. Throws what a request ended with, if not well.
[[nodiscard]] std::vector<Reply> ask(sched::Engine& engine, const std::vector<sched::GenerateRequest>& requests);

/// A request of that many tokens that says something else for each seed, drawn from at temperature 1, as the answers
/// of a random model repeat themselves without; it ends at `output` tokens and at nothing else.
[[nodiscard]] sched::GenerateRequest random_request(const sched::Engine& engine, uint64_t seed, uint32_t prompt,
                                                    uint32_t output);

/// "median [least, most]".
[[nodiscard]] std::string spread(std::vector<double> values, int decimals);

}  // namespace millrace::bench
