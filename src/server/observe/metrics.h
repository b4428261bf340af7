#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sched/head/engine.h"

namespace millrace::server {

/// A Prometheus histogram with fixed upper bounds.
class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds) : bounds_(bounds), counts_(bounds.size() + 1) {}
  void observe(double value);
  /// Appends the sample lines of `name`; `labels` without braces.
  void append(std::string& out, std::string_view name, std::string_view labels) const;

 private:
  std::span<const double> bounds_;
  std::vector<uint64_t> counts_;  ///< per bucket, the last is +Inf
  uint64_t total_ = 0;
  double sum_ = 0;
};

/// What the front holds at the moment.
struct ServerLoad {
  size_t in_flight = 0;  ///< generations
  size_t connections = 0;
  size_t body_bytes = 0;  ///< as BodyBudget counts them
};

/// model_name="…", as a label.
[[nodiscard]] std::string model_label(std::string_view model_name);

/// What the front counts about its requests. Owned by the front, its thread only.
class Metrics {
 public:
  Metrics();

  void count_http(std::string_view route, unsigned status) { ++http_requests_[{std::string(route), status}]; }
  void count_finish(sched::FinishReason reason) { ++finished_[static_cast<size_t>(reason)]; }

  uint64_t prompt_tokens = 0;
  uint64_t generation_tokens = 0;
  uint64_t cached_tokens = 0;
  uint64_t disconnects = 0;
  Histogram time_to_first_token;
  Histogram inter_token_latency;
  Histogram e2e_latency;
  Histogram queue_time;
  Histogram prefill_time;
  Histogram decode_time;
  Histogram prompt_length;
  Histogram generation_length;

  /// Prometheus' text form. Every family that vLLM has comes under both prefixes, "vllm:" and "millrace:".
  [[nodiscard]] std::string render(std::string_view model_name, const sched::EngineStatus& status,
                                   const ServerLoad& load) const;

 private:
  std::map<std::pair<std::string, unsigned>, uint64_t> http_requests_;
  std::array<uint64_t, 3> finished_{};
};

}  // namespace millrace::server
