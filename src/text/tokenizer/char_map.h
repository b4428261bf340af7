#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::text {

/// The character map of a Precompiled normalizer, as SentencePiece writes it: a double-array trie of keys, and the
/// texts that replace them. Immutable after construction.
class CharMap {
 public:
  /// Takes the map in base64. Throws ErrorException (kData) if it is not one.
  explicit CharMap(std::string_view base64);

  /// Rewrites `text`, valid UTF-8. A user-perceived character of up to five bytes is one unit, and so is each code
  /// point of a longer one. The shortest key that a unit starts with replaces the whole unit.
  [[nodiscard]] std::string apply(std::string_view text) const;
  /// Returns the length of the longest replacement.
  [[nodiscard]] size_t longest_replacement() const;

 private:
  [[nodiscard]] std::optional<std::string_view> replacement(std::string_view unit) const;
  void append_units(std::string_view cluster, std::string& out) const;

  std::vector<uint32_t> trie_;
  std::string replacements_;  ///< each ends with a zero byte
};

}  // namespace millrace::text
