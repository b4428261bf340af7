#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/ids.h"

namespace millrace::text {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
using TokenMap = std::unordered_map<std::string, TokenId, StringHash, std::equal_to<>>;

/// Returns the id of `token`, or -1 if `vocab` has none.
[[nodiscard]] inline TokenId find_id(const TokenMap& vocab, std::string_view token) {
  const auto it = vocab.find(token);
  return it == vocab.end() ? -1 : it->second;
}

}  // namespace millrace::text
