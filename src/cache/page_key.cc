#include "cache/page_key.h"

#include <openssl/sha.h>

#include <vector>

namespace millrace::cache {
namespace {

PageKey digest(std::span<const uint8_t> head, std::span<const uint8_t> tail) {
  // One buffer and the one-shot call: a page's tokens are few, and a context object costs more than the copy.
  std::vector<uint8_t> bytes(head.begin(), head.end());
  bytes.insert(bytes.end(), tail.begin(), tail.end());
  PageKey key;
  SHA256(bytes.data(), bytes.size(), key.bytes.data());
  return key;
}

}  // namespace

std::string PageKey::hex() const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

PageKey root_key(std::string_view salt) {
  constexpr std::string_view kDomain = "millrace prefix 1\n";
  return digest({reinterpret_cast<const uint8_t*>(kDomain.data()), kDomain.size()},
                {reinterpret_cast<const uint8_t*>(salt.data()), salt.size()});
}

PageKey child_key(const PageKey& parent, std::span<const TokenId> tokens) {
  return digest(parent.bytes, {reinterpret_cast<const uint8_t*>(tokens.data()), tokens.size_bytes()});
}

}  // namespace millrace::cache
