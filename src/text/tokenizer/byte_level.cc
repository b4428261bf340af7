#include "text/tokenizer/byte_level.h"

#include <array>

#include "base/utf8.h"

namespace millrace::text {
namespace {

constexpr char32_t kAlphabetEnd = 0x144;

struct Alphabet {
  std::array<std::string, 256> chars;
  std::array<int, kAlphabetEnd> bytes;
};

bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

const Alphabet& alphabet() {
  static const Alphabet made = [] {
    Alphabet result;
    result.bytes.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const char32_t code_point = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
      append_utf8(result.chars[static_cast<size_t>(byte)], code_point);
      result.bytes[code_point] = byte;
    }
    return result;
  }();
  return made;
}

}  // namespace

std::string_view byte_level_char(unsigned char byte) {
  return alphabet().chars[byte];
}

std::string byte_level_text(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char c : bytes) out += byte_level_char(static_cast<unsigned char>(c));
  return out;
}

std::optional<std::string> byte_level_bytes(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const DecodedUtf8 step = decode_utf8(token);
    if (!step.valid || step.code_point >= kAlphabetEnd) return std::nullopt;
    const int byte = alphabet().bytes[step.code_point];
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    token.remove_prefix(step.length);
  }
  return bytes;
}

}  // namespace millrace::text
