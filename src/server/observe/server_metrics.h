#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "sched/plan/finish_reason.h"
#include "server/observe/histogram.h"

namespace millrace::sched {
struct EngineStatus;
}

namespace millrace::server {

/// What the server holds at the moment.
struct ServerLoad {
  size_t in_flight = 0;  ///< requests that generate
  size_t connections = 0;
  size_t body_bytes = 0;  ///< the part of bodies that BodyBudget charges
};

/// Counts requests, tokens and times since the start. Owned by Api; its executor only.
class ServerMetrics {
 public:
  ServerMetrics();

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

  /// Returns the metrics in Prometheus' text form. A family that vLLM has too comes under both prefixes, "vllm:" and
  /// "millrace:".
  [[nodiscard]] std::string render(std::string_view model_name, const sched::EngineStatus& status,
                                   const ServerLoad& load) const;

 private:
  std::map<std::pair<std::string, unsigned>, uint64_t> http_requests_;
  std::array<uint64_t, 3> finished_{};
};

}  // namespace millrace::server
