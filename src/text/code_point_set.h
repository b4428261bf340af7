#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace millrace::text {

/// The code points from `first` to `last`, both inside.
struct CodePointRange {
  char32_t first;
  char32_t last;
  friend bool operator==(const CodePointRange&, const CodePointRange&) = default;
};

/// A set of Unicode scalar values, as sorted ranges with gaps between them. Surrogates are never in it.
class CodePointSet {
 public:
  static constexpr char32_t kLast = 0x10FFFF;

  CodePointSet() = default;
  /// Takes ranges in any order, which may overlap.
  static CodePointSet of(std::vector<CodePointRange> ranges);

  [[nodiscard]] const std::vector<CodePointRange>& ranges() const { return ranges_; }
  [[nodiscard]] bool empty() const { return ranges_.empty(); }
  [[nodiscard]] bool contains(char32_t code_point) const;
  [[nodiscard]] bool includes(const CodePointSet& other) const { return other.minus(*this).empty(); }

  [[nodiscard]] CodePointSet complement() const;
  [[nodiscard]] CodePointSet with(const CodePointSet& other) const;
  [[nodiscard]] CodePointSet minus(const CodePointSet& other) const;
  [[nodiscard]] CodePointSet common_with(const CodePointSet& other) const;
  /// Returns the code points that are in one of the two sets only.
  [[nodiscard]] CodePointSet differing_from(const CodePointSet& other) const;

 private:
  std::vector<CodePointRange> ranges_;
};

}  // namespace millrace::text
