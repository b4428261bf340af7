#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace millrace::hub {

/// Bytes [begin, end) of a file.
struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  [[nodiscard]] uint64_t size() const { return end - begin; }
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

/// A set of the bytes of a file. Plain code.
class ByteRanges {
 public:
  void add(ByteRange range);
  /// Returns the parts of `range` that are not in the set, in order.
  [[nodiscard]] std::vector<ByteRange> missing(ByteRange range) const;
  [[nodiscard]] bool contains(ByteRange range) const { return missing(range).empty(); }
  [[nodiscard]] std::vector<ByteRange> all() const;

  /// Writes the set as lines "begin end", and reads it. Error: kData for text that is no such list, or that goes beyond
  /// `size_bytes`.
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] static Result<ByteRanges> parse(std::string_view text, uint64_t size_bytes);

 private:
  std::map<uint64_t, uint64_t> ends_;  // by begin; neither overlapping nor touching
};

/// Joins ranges that are at most `gap_bytes` apart, and cuts them into pieces of at most `piece_bytes`: few requests,
/// of which each can be repeated. The result is ordered.
[[nodiscard]] std::vector<ByteRange> plan_requests(std::vector<ByteRange> wanted, uint64_t gap_bytes,
                                                   uint64_t piece_bytes);

}  // namespace millrace::hub
