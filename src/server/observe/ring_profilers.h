#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "sched/head/ring_set.h"
#include "server/observe/profiler.h"

namespace millrace::server {

/// The profiles of a server's rings: one Profiler and one file per ring that is recorded. Owned by RingRoutes; used on
/// the server's thread.
class RingProfilers {
 public:
  /// `engine` outlives the object. `folder` holds the files.
  RingProfilers(sched::Engine& engine, std::filesystem::path folder) : engine_(engine), folder_(std::move(folder)) {}

  /// Begins to record one ring, or all, as Profiler::start() does. With several rings, names end in "-ring-N". Returns
  /// the files' paths. Another error: kUnavailable (a ring has no statistics yet).
  [[nodiscard]] Result<std::vector<std::filesystem::path>> start(const std::string& name, std::optional<uint32_t> ring);
  /// Ends all recordings, as Profiler::stop() does.
  [[nodiscard]] Result<std::vector<Profiler::Written>> stop();

 private:
  [[nodiscard]] sched::Engine& ring(size_t number);
  void stop_running();

  sched::Engine& engine_;
  const std::filesystem::path folder_;
  std::vector<std::unique_ptr<Profiler>> profilers_;  // [rings], each from its first profile on
};

}  // namespace millrace::server
