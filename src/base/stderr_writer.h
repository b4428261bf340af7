#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

/// Writes lines to a descriptor, and never waits for who reads it. What a full pipe does not take is kept, up to a
/// bound, for the next call; lines beyond that are dropped and counted. Not thread-safe.
class LineWriter {
 public:
  explicit LineWriter(int fd) : fd_(fd) {}

  /// `line` ends with a line break.
  void write(std::string_view line);
  /// Waits up to a second for the reader of stderr to take the buffered lines. Called at the end of the process.
  void finish();
  /// Returns the count of lines dropped so far.
  [[nodiscard]] uint64_t dropped() const { return dropped_; }

 private:
  void write_pending();

  int fd_;
  std::string pending_;  ///< not taken yet; it may begin within a line
  uint64_t dropped_ = 0;
  uint64_t reported_dropped_ = 0;
};

/// Writes `text` to stderr if it takes it at once; used where the process is about to end.
void write_stderr(std::string_view text);

}  // namespace millrace
