#include "base/base64.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace millrace {

void append_base64(std::string& out, std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  out.reserve(out.size() + (bytes.size() + 2) / 3 * 4);
  for (; !bytes.empty(); bytes = bytes.subspan(std::min<size_t>(bytes.size(), 3))) {
    uint32_t group = 0;
    for (size_t i = 0; i < 3; ++i) group = group << 8 | (i < bytes.size() ? std::to_integer<uint32_t>(bytes[i]) : 0);
    for (size_t i = 0; i < 4; ++i) out += i <= bytes.size() ? kDigits[group >> (18 - 6 * i) & 63] : '=';
  }
}

}  // namespace millrace
