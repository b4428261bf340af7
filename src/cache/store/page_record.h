#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "cache/store/page_store.h"

/// The form in which every store keeps a page: a header that says what it is, then the page's bytes.
namespace millrace::cache {

/// The 128-bit hash of a StoreIdentity. It names its folder or key space, and stands in every header.
struct IdentityHash {
  std::array<uint8_t, 16> bytes{};
  friend bool operator==(const IdentityHash&, const IdentityHash&) = default;
  [[nodiscard]] std::string hex() const;  ///< 32 digits
};
[[nodiscard]] IdentityHash hash_of(const StoreIdentity& identity);

/// The header of a stored page: little-endian, no gaps; docs/page_store.md has the table. It has the size and alignment
/// of a disk's block. So the page after it can be read without a detour through the page cache.
struct alignas(4096) PageHeader {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t header_bytes;
  IdentityHash identity;
  PageKey key;
  uint64_t payload_bytes;
  std::array<uint8_t, 16> payload_checksum;  // XXH3-128 of the payload
  std::array<uint8_t, 4000> reserved;        // zero
  uint64_t header_checksum;                  // XXH3-64 of all before it
};
inline constexpr size_t kBlockBytes = alignof(PageHeader);
static_assert(sizeof(PageHeader) == kBlockBytes);

enum class [[nodiscard]] RecordStatus { kValid, kCorrupt, kForeign };

/// Makes and checks the records of one identity. Immutable, so any thread may use it.
class RecordFormat {
 public:
  explicit RecordFormat(const StoreIdentity& identity);

  /// Returns the header of a page, on the heap, since a coroutine's frame cannot align it.
  [[nodiscard]] std::unique_ptr<PageHeader> make_header(const PageKey& key, std::span<const std::byte> page) const;
  /// Judges a record of which `record_bytes` were found. Foreign is only what is sound in itself: bytes that contradict
  /// their checksum, or a record of another length than it says, are corrupt.
  [[nodiscard]] RecordStatus check(const PageHeader& header, const PageKey& key, std::span<const std::byte> payload,
                                   uint64_t record_bytes) const;

  [[nodiscard]] const IdentityHash& identity() const { return identity_; }
  [[nodiscard]] size_t page_bytes() const { return page_bytes_; }
  [[nodiscard]] size_t record_bytes() const { return sizeof(PageHeader) + page_bytes_; }

 private:
  IdentityHash identity_;
  size_t page_bytes_;
};

/// Refuses an identity that cannot name pages (no model, no layers, no bytes) as kInvalidArgument.
[[nodiscard]] Result<void> check_identity(const StoreIdentity& identity);

}  // namespace millrace::cache
