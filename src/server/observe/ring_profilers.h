#pragma once

#include <boost/asio/awaitable.hpp>
#include <memory>
#include <optional>
#include <vector>

#include "async/runtime.h"
#include "sched/head/ring_set.h"
#include "server/observe/profiler.h"

namespace millrace::server {

/// Returns why an engine has no statistics.
[[nodiscard]] std::string why_unseen(const sched::Engine& ring);

/// The profiles of a server's rings: one Profiler and one file per ring that is recorded. Owned by RingRoutes; used on
/// the server's thread.
class RingProfilers {
 public:
  /// `runtime` and `engine` outlive the object. `folder` holds the files.
  RingProfilers(async::Runtime& runtime, sched::Engine& engine, std::filesystem::path folder)
      : runtime_(runtime), engine_(engine), folder_(std::move(folder)) {}

  /// Begins to record one ring, or all, as Profiler::start() does. With several rings, names end in "-ring-N". Returns
  /// the files' paths. Another error: kUnavailable (a ring has no statistics yet).
  [[nodiscard]] Result<std::vector<std::filesystem::path>> start(const std::string& name, std::optional<uint32_t> ring);
  /// Ends all recordings, as Profiler::stop() does, once they have what was recorded before the call.
  [[nodiscard]] asio::awaitable<Result<std::vector<Profiler::Written>>> stop();

 private:
  [[nodiscard]] sched::Engine& ring(size_t number);
  [[nodiscard]] asio::awaitable<void> wait_for_views();
  void stop_running();

  async::Runtime& runtime_;
  sched::Engine& engine_;
  const std::filesystem::path folder_;
  std::vector<std::unique_ptr<Profiler>> profilers_;  // [rings], each of the latest profile
};

}  // namespace millrace::server
