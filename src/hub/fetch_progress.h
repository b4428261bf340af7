#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace millrace::hub {

/// Shows how far a download has come, with its rate and the time left: a bar on a terminal, else a log line per tenth.
/// Used on one thread.
class FetchProgress {
 public:
  using Clock = std::chrono::steady_clock;

  /// `what` names the download: "ORG/NAME". Of `total_bytes`, `present_bytes` are there already.
  FetchProgress(std::string what, uint64_t total_bytes, uint64_t present_bytes);
  ~FetchProgress();
  FetchProgress(const FetchProgress&) = delete;
  FetchProgress& operator=(const FetchProgress&) = delete;

  void add(uint64_t bytes);
  /// Counts bytes that turn out to be there already.
  void add_present(uint64_t bytes);
  /// Takes back bytes that have to be downloaded again.
  void remove(uint64_t bytes);
  [[nodiscard]] uint64_t done_bytes() const { return done_bytes_; }

 private:
  void show();

  const std::string what_;
  const bool on_terminal_;
  const uint64_t total_bytes_;
  uint64_t present_bytes_;
  uint64_t done_bytes_;
  const Clock::time_point begin_;
  Clock::time_point shown_;
  uint64_t tenths_shown_;
};

/// Returns "12.3 of 45.6 GB, 78.9 MB/s, 1 min 23 s left".
[[nodiscard]] std::string progress_text(uint64_t done_bytes, uint64_t total_bytes, uint64_t fetched_bytes,
                                        std::chrono::duration<double> elapsed);

}  // namespace millrace::hub
