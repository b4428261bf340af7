#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace millrace::sched {

/// A page's name in a router's index: a hash chained over all tokens up to the page's end. Two prefixes of equal names
/// are taken for equal, which costs a worse route at most.
using PageName = uint64_t;

/// Names the full pages of a token sequence that grows. It keeps the tokens of the last page only. Plain and
/// deterministic.
class PageHasher {
 public:
  /// `salt` separates prefixes as GenerateRequest::cache_salt does.
  PageHasher(uint32_t page_size, std::string_view salt);

  /// Appends tokens. Adds the names of the pages that they fill to `pages`.
  void append(std::span<const TokenId> tokens, std::vector<PageName>& pages);

 private:
  uint32_t page_size_;
  uint32_t filled_ = 0;  // tokens of the page that is not full
  uint64_t state_;
};

}  // namespace millrace::sched
