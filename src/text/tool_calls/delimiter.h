#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

struct pcre2_real_code_8;

namespace millrace::text {

/// What begins or ends a region of an output: one of several literals, or a regular expression. Immutable.
class Delimiter {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    std::map<std::string, std::string, std::less<>> groups;  ///< by name
  };
  struct Found {
    std::optional<Match> match;
    size_t undecided = std::string_view::npos;  ///< where a match begins that more text decides about
  };

  /// Matches one of `texts`, none of which is empty. Of several at one position the longest matches.
  [[nodiscard]] static Delimiter literals(std::vector<std::string> texts);
  /// Fails with kData for a pattern that does not compile. A dot matches line feeds too.
  [[nodiscard]] static Result<Delimiter> pattern(std::string_view pattern);

  /// Returns the first match in valid UTF-8. Without `is_end` more text follows, and a match that it may extend is
  /// undecided.
  [[nodiscard]] Found find(std::string_view text, bool is_end, size_t from = 0) const;
  [[nodiscard]] std::vector<std::string> group_names() const;

 private:
  [[nodiscard]] Found find_literal(std::string_view text, bool is_end, size_t from) const;
  [[nodiscard]] Found find_pattern(std::string_view text, bool is_end, size_t from) const;

  std::vector<std::string> texts_;                 // longest first; empty for a pattern
  std::shared_ptr<const pcre2_real_code_8> code_;  // null for literals
};

}  // namespace millrace::text
