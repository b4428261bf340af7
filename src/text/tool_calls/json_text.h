#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace millrace::text {

/// Appends a piece of a JSON string, without quotes. A character's bytes may come in several pieces.
inline void append_escaped(std::string& out, std::string_view piece) {
  for (const char c : piece) {
    const bool is_plain = static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\';
    if (is_plain) {
      out += c;
      continue;
    }
    std::string quoted;
    append_json_string(quoted, std::string_view(&c, 1));
    out.append(quoted, 1, quoted.size() - 2);
  }
}

}  // namespace millrace::text
