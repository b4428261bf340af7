#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::text {

/// Finds stop strings in streamed text and delays only text that may still become one. The stop that is complete first
/// wins. Of several that the same byte completes, the longest wins. One per sequence, used by one thread at a time.
class StopMatcher {
 public:
  /// Ignores empty strings. With `include_stop` the emitted text includes the stop string.
  explicit StopMatcher(const std::vector<std::string>& stops, bool include_stop = false);

  /// Returns the text that is now safe to emit. Drops everything after a match. A stop that `text` completes counts
  /// only with `may_stop`.
  [[nodiscard]] std::string push(std::string_view text, bool may_stop = true);
  /// Returns the delayed text at the end of the stream.
  [[nodiscard]] std::string flush();

  /// Returns the index of the matched stop string in `stops`.
  [[nodiscard]] std::optional<size_t> matched() const { return matched_; }

 private:
  struct Stop {
    std::string text;
    size_t index;                ///< in the caller's list
    std::vector<size_t> border;  ///< border[n]: longest proper prefix of text[0, n) that is also its suffix
    size_t progress = 0;         ///< how much of `text` ends at the last byte seen
  };

  void advance(Stop& stop, char c) const;

  std::vector<Stop> stops_;
  bool include_stop_;
  std::string held_back_;  ///< seen and not emitted; its end may be the start of a stop
  std::optional<size_t> matched_;
};

}  // namespace millrace::text
