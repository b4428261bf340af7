#include "hub/content_digest.h"

#include <fmt/core.h>
#include <openssl/evp.h>

#include <array>

#include "base/check.h"

namespace millrace::hub {

void ContentDigest::Free::operator()(evp_md_ctx_st* context) const {
  EVP_MD_CTX_free(context);
}

ContentDigest::ContentDigest(const std::string& etag, uint64_t size_bytes) : context_(EVP_MD_CTX_new()) {
  constexpr size_t kSha256Digits = 64;
  const bool is_sha256 = etag.size() == kSha256Digits;
  CHECK(EVP_DigestInit_ex(context_.get(), is_sha256 ? EVP_sha256() : EVP_sha1(), nullptr) == 1,
        "OpenSSL has no digest for the etag '{}'", etag);
  if (is_sha256) return;
  const std::string header = fmt::format("blob {}", size_bytes);
  add(std::as_bytes(std::span(header.c_str(), header.size() + 1)));
}

ContentDigest::~ContentDigest() = default;
ContentDigest::ContentDigest(ContentDigest&&) noexcept = default;
ContentDigest& ContentDigest::operator=(ContentDigest&&) noexcept = default;

void ContentDigest::add(std::span<const std::byte> bytes) {
  CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1, "a digest of {} bytes", bytes.size());
}

std::string ContentDigest::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), &length) == 1, "a digest that cannot be finished");
  std::string text;
  for (unsigned i = 0; i < length; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

}  // namespace millrace::hub
