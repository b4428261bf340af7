#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/ids.h"

namespace millrace::cache {

/// Content address of a page: SHA-256, chained over the tokens of the page and of all pages before it.
struct PageKey {
  std::array<uint8_t, 32> bytes{};
  friend auto operator<=>(const PageKey&, const PageKey&) = default;
  /// Returns 64 lower-case digits.
  [[nodiscard]] std::string hex() const;
};

/// Returns the key at which the chain of a salt begins.
[[nodiscard]] PageKey root_key(std::string_view salt);
/// Returns the key of the page with these tokens after the page (or root) `parent`.
[[nodiscard]] PageKey child_key(const PageKey& parent, std::span<const TokenId> tokens);

}  // namespace millrace::cache

template <>
struct std::hash<millrace::cache::PageKey> {
  /// Returns the first bytes: keys are hashes already.
  size_t operator()(const millrace::cache::PageKey& key) const noexcept {
    size_t value = 0;
    for (size_t i = 0; i < sizeof value; ++i) value |= static_cast<size_t>(key.bytes[i]) << (8 * i);
    return value;
  }
};
