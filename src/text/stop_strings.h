#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::text {

/// Looks for stop strings in a stream of text and holds back only what may still become one. The stop that is completed
/// first wins; of several completed by the same byte, the longest, so that no part of a stop is emitted. One per
/// sequence, one thread at a time.
class StopMatcher {
 public:
  /// Empty strings are ignored. With `include_stop` the emitted text ends behind the stop, not before it.
  explicit StopMatcher(const std::vector<std::string>& stops, bool include_stop = false);

  /// What is now safe to show. After a match everything further is dropped. A stop that is completed by `text` counts
  /// only if it `may_stop`.
  [[nodiscard]] std::string push(std::string_view text, bool may_stop = true);
  /// At the end of the stream: what was held back.
  [[nodiscard]] std::string flush();

  /// Index into `stops` of the one that matched.
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
