#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/ids.h"

namespace millrace::cache {

/// Content address of a page: SHA-256, chained over the tokens of the page and of all pages before it.
struct PageKey {
  std::array<uint8_t, 32> bytes{};
  friend bool operator==(const PageKey&, const PageKey&) = default;
  /// 64 lower-case digits.
  [[nodiscard]] std::string hex() const;
};

/// Where the chain of a salt begins.
[[nodiscard]] PageKey root_key(std::string_view salt);
/// The key of the page with these tokens after the page (or root) `parent`.
[[nodiscard]] PageKey child_key(const PageKey& parent, std::span<const TokenId> tokens);

}  // namespace millrace::cache
