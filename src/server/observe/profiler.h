#pragma once

#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/result.h"

namespace millrace::sched {
class RingView;
}

namespace millrace::server {

/// Records a ring into a trace file. A thread of its own writes the records that the ring's view keeps, so neither the
/// head nor the server waits for a disk, and memory is bounded. Owned by RingProfilers; used on the server's thread.
class Profiler {
 public:
  /// `folder` holds the files; no name leads out of it.
  Profiler(std::shared_ptr<const sched::RingView> ring, std::filesystem::path folder)
      : ring_(std::move(ring)), folder_(std::move(folder)) {}
  ~Profiler() { (void)stop(); }

  /// Returns a name for a file, by the time.
  [[nodiscard]] static std::string default_name();
  /// Begins to record, and returns the file's path. Errors: kAborted (a profile
  /// is being recorded already), kInvalidArgument (a name outside the folder, or a file that exists already).
  [[nodiscard]] Result<std::filesystem::path> start(const std::string& name);
  struct Written {
    std::filesystem::path path;
    uint64_t plans = 0;
    uint64_t lost = 0;  ///< plans that came faster than they could be written
  };
  /// Ends the recording. Errors: kAborted (none is running), kInternal (the file could not be written to its end).
  [[nodiscard]] Result<Written> stop();
  [[nodiscard]] bool running() const { return thread_.joinable(); }
  [[nodiscard]] const sched::RingView& ring() const { return *ring_; }

 private:
  void record(uint64_t after);

  const std::shared_ptr<const sched::RingView> ring_;
  const std::filesystem::path folder_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable stop_signal_;
  bool stopping_ = false;  // guarded by mutex_

  // Used by the thread while it runs.
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{nullptr, &std::fclose};
  Written written_;
  bool failed_ = false;
};

}  // namespace millrace::server
