#pragma once

#include <memory>
#include <string>

#include "server/observe/profiler.h"
#include "server/options.h"
#include "server/router.h"

namespace millrace::sched {
class Engine;
}

namespace millrace::server {

/// The routes that show the ring: the live page at "/", its data at "/live", "/cost_model", "/start_profile" and
/// "/stop_profile". They answer 503 while the engine has no RingStats. Owned by Api; its executor only.
class RingRoutes {
 public:
  /// All arguments outlive the object.
  RingRoutes(const sched::Engine& engine, const ServerOptions& options);

  void add_to(Router& router);
  /// Appends the ring's part of /metrics; nothing before there is a ring.
  void append_metrics(std::string& out) const;

 private:
  [[nodiscard]] HttpResponse live(const HttpRequest& request) const;
  [[nodiscard]] HttpResponse cost_model() const;
  [[nodiscard]] HttpResponse start_profile(const HttpRequest& request);
  [[nodiscard]] HttpResponse stop_profile();
  [[nodiscard]] HttpResponse not_ready() const;

  const sched::Engine& engine_;
  const ServerOptions& options_;
  const int64_t started_ns_;
  std::unique_ptr<Profiler> profiler_;  ///< from the first profile on
};

}  // namespace millrace::server
