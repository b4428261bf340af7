#pragma once

#include <memory>
#include <string>
#include <vector>

#include "grammar/grammar.h"

namespace millrace::fuzz {

/// Ends an answer.
inline constexpr TokenId kEndToken = 256;

/// Returns a vocabulary of the 256 bytes, the end, and a few texts that JSON consists of.
[[nodiscard]] inline std::shared_ptr<const grammar::Vocabulary> byte_vocabulary() {
  static const auto made = [] {
    std::vector<std::string> texts;
    for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
    texts.emplace_back();
    for (const char* text : {"{\"", "\":", "\",", "},", "true", "ab", "aa", "\xC3\xA9", "  ", "\n "})
      texts.emplace_back(text);
    return std::make_shared<const grammar::Vocabulary>(texts);
  }();
  return made;
}

}  // namespace millrace::fuzz
