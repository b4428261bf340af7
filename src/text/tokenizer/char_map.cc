#include "text/tokenizer/char_map.h"

#include <unicode/brkiter.h>
#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/utext.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "base/base64.h"
#include "base/result.h"
#include "base/utf8.h"
#include "text/unicode_properties.h"

namespace millrace::text {
namespace {

/// Longer user-perceived characters are taken apart.
constexpr size_t kMaxClusterBytes = 5;

[[noreturn]] void fail(std::string_view reason) {
  throw ErrorException(make_error(ErrorCode::kData, "normalizer Precompiled: {}", reason));
}

/// One unit of a double-array trie in the layout of Darts-clone.
struct TrieUnit {
  uint32_t bits;

  [[nodiscard]] bool has_leaf() const { return (bits >> 8 & 1) != 0; }
  [[nodiscard]] uint32_t label() const { return bits & 0x800000FF; }
  [[nodiscard]] uint32_t offset() const { return (bits >> 10) << ((bits & 0x200) >> 6); }
  [[nodiscard]] uint32_t value() const { return bits & 0x7FFFFFFF; }
};

/// Returns whether `text` starts with a mark that is newer than ICU, which would not join it to the character before.
bool starts_with_newer_mark(std::string_view text) {
  static const CodePointSet marks = *property_set("M");
  const char32_t c = decode_utf8(text).code_point;
  return c >= 0x80 && u_charType(static_cast<UChar32>(c)) == U_UNASSIGNED && marks.contains(c);
}

bool is_ascii(char c) {
  return static_cast<unsigned char>(c) < 0x80;
}

}  // namespace

CharMap::CharMap(std::string_view base64) {
  const auto decoded = decode_base64(base64);
  if (!decoded) fail("precompiled_charsmap is not base64");
  const std::string& bytes = *decoded;
  uint32_t trie_bytes = 0;
  if (bytes.size() < sizeof trie_bytes) fail("precompiled_charsmap is too short");
  std::memcpy(&trie_bytes, bytes.data(), sizeof trie_bytes);
  if (trie_bytes % 4 != 0 || trie_bytes > bytes.size() - sizeof trie_bytes) {
    fail("the trie of precompiled_charsmap is longer than the map");
  }
  trie_.resize(trie_bytes / 4);
  std::memcpy(trie_.data(), bytes.data() + sizeof trie_bytes, trie_bytes);
  replacements_ = bytes.substr(sizeof trie_bytes + trie_bytes);
  if (!is_valid_utf8(replacements_)) fail("the replacements of precompiled_charsmap are not UTF-8");
}

size_t CharMap::longest_replacement() const {
  size_t longest = 0;
  for (size_t begin = 0; begin < replacements_.size();) {
    const size_t end = std::min(replacements_.find('\0', begin), replacements_.size());
    longest = std::max(longest, end - begin);
    begin = end + 1;
  }
  return longest;
}

std::optional<std::string_view> CharMap::replacement(std::string_view unit) const {
  if (trie_.empty()) return std::nullopt;
  uint32_t node = TrieUnit{trie_[0]}.offset();
  for (const char c : unit) {
    const auto byte = static_cast<unsigned char>(c);
    node ^= byte;
    if (byte == 0 || node >= trie_.size()) return std::nullopt;
    const TrieUnit step{trie_[node]};
    if (step.label() != byte) return std::nullopt;
    node ^= step.offset();
    if (!step.has_leaf()) continue;
    if (node >= trie_.size()) return std::nullopt;
    const size_t begin = TrieUnit{trie_[node]}.value();
    if (begin >= replacements_.size()) return std::nullopt;
    const std::string_view rest = std::string_view(replacements_).substr(begin);
    // A damaged map may point into the middle of a character.
    if ((static_cast<unsigned char>(rest[0]) & 0xC0) == 0x80) return std::nullopt;
    return rest.substr(0, rest.find('\0'));
  }
  return std::nullopt;
}

void CharMap::append_units(std::string_view cluster, std::string& out) const {
  if (cluster.size() <= kMaxClusterBytes) {
    if (const auto found = replacement(cluster)) {
      out += *found;
      return;
    }
  }
  while (!cluster.empty()) {
    const std::string_view one = cluster.substr(0, decode_utf8(cluster).length);
    out += replacement(one).value_or(one);
    cluster.remove_prefix(one.size());
  }
}

std::string CharMap::apply(std::string_view text) const {
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  UErrorCode status = U_ZERO_ERROR;
  std::unique_ptr<icu::BreakIterator> clusters;
  UText* source = nullptr;
  for (size_t begin = 0; begin < text.size();) {
    // Only CR LF joins two ASCII characters, and only ASCII is followed by a border for certain.
    const bool next_is_ascii = begin + 1 >= text.size() || is_ascii(text[begin + 1]);
    if (is_ascii(text[begin]) && next_is_ascii && text[begin] != '\r') {
      append_units(text.substr(begin, 1), out);
      ++begin;
      continue;
    }
    if (!clusters) {
      clusters.reset(icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), status));
      source = utext_openUTF8(nullptr, text.data(), static_cast<int64_t>(text.size()), &status);
      if (U_SUCCESS(status)) clusters->setText(source, status);
      if (U_FAILURE(status)) throw std::runtime_error("ICU: its character boundaries are missing");
    }
    auto end = static_cast<size_t>(clusters->following(static_cast<int32_t>(begin)));
    while (end < text.size() && starts_with_newer_mark(text.substr(end))) {
      end += decode_utf8(text.substr(end)).length;
    }
    append_units(text.substr(begin, end - begin), out);
    begin = end;
  }
  if (source != nullptr) utext_close(source);
  return out;
}

}  // namespace millrace::text
