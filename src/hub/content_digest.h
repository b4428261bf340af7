#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

struct evp_md_ctx_st;

namespace millrace::hub {

/// The hash of a file's contents that its etag names, computed as the bytes come. It is SHA-256 for an etag of 64
/// digits. It is the SHA-1 of a git blob ("blob SIZE\0" and the contents) for one of 40. Owned by the download of one
/// file.
class ContentDigest {
 public:
  ContentDigest(const std::string& etag, uint64_t size_bytes);
  ~ContentDigest();
  ContentDigest(ContentDigest&&) noexcept;
  ContentDigest& operator=(ContentDigest&&) noexcept;

  void add(std::span<const std::byte> bytes);
  /// Returns the hash of all bytes in lower-case hexadecimal digits. Called once.
  [[nodiscard]] std::string finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace millrace::hub
