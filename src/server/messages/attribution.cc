#include "server/messages/attribution.h"

#include <algorithm>
#include <string_view>

namespace millrace::server::messages {
namespace {

constexpr std::string_view kHeader = "x-anthropic-billing-header:";
constexpr std::string_view kBlanks = " \t";
constexpr std::string_view kSpace = " \t\r\n";

bool is_key_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

/// Returns the bytes of the pair at the start of `text`, with the blanks before it; 0 where there is none. The last
/// pair of a line may lack its semicolon.
size_t pair_length(std::string_view text) {
  const size_t key = std::min(text.find_first_not_of(kBlanks), text.size());
  size_t at = key;
  while (at < text.size() && is_key_byte(text[at])) ++at;
  if (at == key || at == text.size() || text[at] != '=') return 0;
  at = std::min(text.find_first_of(" \t\r\n;", at), text.size());
  if (at < text.size() && text[at] == ';') return at + 1;
  return at == text.size() || text[at] == '\n' || text[at] == '\r' ? at : 0;
}

/// Returns the bytes of the header that begins at `at`, with its pairs and the white space that set it apart.
size_t header_length(std::string_view text, size_t at) {
  size_t end = at + kHeader.size();
  while (const size_t pair = pair_length(text.substr(end))) end += pair;
  if (end == at + kHeader.size()) return 0;
  const bool begins_line = at == 0 || text[at - 1] == '\n';
  if (begins_line) end = std::min(text.find_first_not_of(kSpace, end), text.size());
  return end - at;
}

}  // namespace

void remove_attribution(std::string& text) {
  for (size_t at = text.find(kHeader); at != std::string::npos; at = text.find(kHeader, at)) {
    const size_t length = header_length(text, at);
    if (length == 0) {
      at += kHeader.size();
    } else {
      text.erase(at, length);
    }
  }
}

}  // namespace millrace::server::messages
