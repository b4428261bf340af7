#pragma once

#include <memory>
#include <optional>
#include <string>

#include "async/runtime.h"
#include "sched/head/engine.h"
#include "server/observe/ring_profilers.h"
#include "server/openai/error.h"
#include "server/options.h"
#include "server/router.h"

namespace millrace::sched {
class Engine;
class RingView;
}  // namespace millrace::sched

namespace millrace::server {

/// The routes that show the ring, or each of several: the live page at "/", its data at "/live", "/cost_model",
/// "/start_profile" and "/stop_profile". They answer 503 while the ring has no statistics. Owned by Api; its executor
/// only.
class RingRoutes {
 public:
  /// All arguments outlive the object.
  RingRoutes(async::Runtime& runtime, sched::Engine& engine, const ServerOptions& options);

  void add_to(Router& router);
  /// Appends the rings' part of /metrics; nothing before there is a ring.
  void append_metrics(std::string& out) const;

 private:
  [[nodiscard]] HttpResponse live(const HttpRequest& request) const;
  [[nodiscard]] HttpResponse cost_model(const HttpRequest& request) const;
  [[nodiscard]] HttpResponse start_profile(const HttpRequest& request);
  [[nodiscard]] asio::awaitable<std::optional<HttpResponse>> stop_profile();
  void append_ring(std::string& out, const sched::Engine& engine) const;
  struct ShownRing {
    const sched::Engine& engine;
    std::shared_ptr<const sched::RingView> stats;
  };
  /// Returns the ring that the query names with ring=N, by default the first, or the refusal.
  [[nodiscard]] openai::ApiResult<ShownRing> shown_ring(const HttpRequest& request) const;

  async::Runtime& runtime_;
  sched::Engine& engine_;
  const ServerOptions& options_;
  const int64_t started_ns_;
  RingProfilers profilers_;
};

}  // namespace millrace::server
