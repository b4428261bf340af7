#pragma once

#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/result.h"
#include "sched/head/ring_stats.h"

namespace millrace::server {

/// Records the ring into trace files, one at a time: a thread of its own takes the records that RingStats keeps and
/// writes them, so neither the head nor the front waits for a disk, and memory is bounded. Used on the front's thread.
class Profiler {
 public:
  /// Files are written below `folder` only.
  Profiler(const sched::RingStats& ring, std::filesystem::path folder) : ring_(ring), folder_(std::move(folder)) {}
  ~Profiler() { (void)stop(); }

  /// The file that is being written. `name`: relative to the folder; empty: chosen by the time. Errors:
  /// kAborted (one is running already), kInvalidArgument (a name that leads elsewhere, or a file that exists already).
  [[nodiscard]] Result<std::filesystem::path> start(const std::string& name);
  struct Written {
    std::filesystem::path path;
    uint64_t plans = 0;
    uint64_t lost = 0;  ///< plans that came faster than they could be written
  };
  /// kAborted when none is running; kInternal when the file could not be written to its end.
  [[nodiscard]] Result<Written> stop();
  [[nodiscard]] bool running() const { return thread_.joinable(); }

 private:
  void record(uint64_t after);

  const sched::RingStats& ring_;
  const std::filesystem::path folder_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable stop_signal_;
  bool stopping_ = false;  // guarded by mutex_

  // The thread's while it runs.
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{nullptr, &std::fclose};
  Written written_;
  bool failed_ = false;
};

}  // namespace millrace::server
