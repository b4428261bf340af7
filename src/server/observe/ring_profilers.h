#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "sched/head/ring_set.h"
#include "server/observe/profiler.h"

namespace millrace::server {

/// Returns why an engine has no statistics.
[[nodiscard]] std::string why_unseen(const sched::Engine& ring);

/// The profiles of a server's rings: one Profiler and one file per ring that is recorded. Owned by RingRoutes; used on
/// the server's thread.
class RingProfilers {
 public:
  /// `engine` outlives the object. `folder` holds the files.
  RingProfilers(sched::Engine& engine, std::filesystem::path folder) : engine_(engine), folder_(std::move(folder)) {}

  /// Begins to record one ring, or all, as Profiler::start() does. With several rings, names end in "-ring-N". Returns
  /// the files' paths. Another error: kUnavailable (a ring has no statistics yet).
  [[nodiscard]] Result<std::vector<std::filesystem::path>> start(const std::string& name, std::optional<uint32_t> ring);
  /// Returns, per ring that is being recorded, the moment that its statistics describe; 0 for the others.
  [[nodiscard]] std::vector<int64_t> as_of_ns(int64_t now_ns) const;
  /// Returns whether the statistics of all rings that are being recorded describe later moments than these.
  [[nodiscard]] bool have_passed(const std::vector<int64_t>& moments, int64_t now_ns) const;
  /// Ends all recordings, as Profiler::stop() does.
  [[nodiscard]] Result<std::vector<Profiler::Written>> stop();

 private:
  [[nodiscard]] sched::Engine& ring(size_t number);
  void stop_running();

  sched::Engine& engine_;
  const std::filesystem::path folder_;
  std::vector<std::unique_ptr<Profiler>> profilers_;  // [rings], each of the latest profile
};

}  // namespace millrace::server
