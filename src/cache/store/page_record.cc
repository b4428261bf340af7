#include "cache/store/page_record.h"

// The library as a header: no shared object to find at run time, and the compiler sees the loops.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace millrace::cache {
namespace {

static_assert(std::endian::native == std::endian::little, "headers are little-endian, as are the hosts");

constexpr std::array<char, 8> kRecordMagic = {'m', 'r', 'p', 'a', 'g', 'e', '\r', '\n'};
constexpr uint32_t kVersion = 1;

template <size_t N>
std::string hex_of(const std::array<uint8_t, N>& bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * N);
  for (const uint8_t byte : bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

std::array<uint8_t, 16> hash_128(const void* data, size_t size) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, size));
  std::array<uint8_t, 16> bytes;
  static_assert(sizeof canonical.digest == sizeof bytes);
  std::memcpy(bytes.data(), canonical.digest, sizeof bytes);
  return bytes;
}

uint64_t header_checksum(const PageHeader& header) {
  return XXH3_64bits(&header, offsetof(PageHeader, header_checksum));
}

}  // namespace

std::string IdentityHash::hex() const {
  return hex_of(bytes);
}

IdentityHash hash_of(const StoreIdentity& identity) {
  // Lengths before the texts, so that no two identities spell the same string.
  std::string text =
      fmt::format("millrace page store {}\n{}:{}\n{}-{}\n{}:{}\n{}\n{}", kVersion, identity.model_fingerprint.size(),
                  identity.model_fingerprint, identity.layer_begin, identity.layer_end, identity.kv_dtype.size(),
                  identity.kv_dtype, identity.page_size, identity.page_bytes);
  if (identity.head_end > 0) text += fmt::format("\nheads {}-{}", identity.head_begin, identity.head_end);
  if (identity.window > 0) text += fmt::format("\nwindow {}", identity.window);
  return {hash_128(text.data(), text.size())};
}

Result<void> check_identity(const StoreIdentity& identity) {
  if (identity.model_fingerprint.empty() || identity.kv_dtype.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "page store: the identity names model '{}' and dtype '{}', and "
                      "neither may be empty",
                      identity.model_fingerprint, identity.kv_dtype);
  }
  if (identity.layer_begin >= identity.layer_end) {
    return make_error(ErrorCode::kInvalidArgument, "page store: layers [{}, {}) are empty, wanted at least one",
                      identity.layer_begin, identity.layer_end);
  }
  if (identity.head_end > 0 && identity.head_begin >= identity.head_end) {
    return make_error(ErrorCode::kInvalidArgument, "page store: heads [{}, {}) are empty, wanted at least one",
                      identity.head_begin, identity.head_end);
  }
  if (identity.page_size == 0 || identity.page_bytes == 0) {
    return make_error(ErrorCode::kInvalidArgument, "page store: a page of {} tokens and {} bytes holds nothing",
                      identity.page_size, identity.page_bytes);
  }
  return {};
}

RecordFormat::RecordFormat(const StoreIdentity& identity)
    : identity_(hash_of(identity)), page_bytes_(identity.page_bytes) {}

std::unique_ptr<PageHeader> RecordFormat::make_header(const PageKey& key, std::span<const std::byte> page) const {
  auto header = std::make_unique<PageHeader>();
  header->magic = kRecordMagic;
  header->version = kVersion;
  header->header_bytes = sizeof *header;
  header->identity = identity_;
  header->key = key;
  header->payload_bytes = page.size();
  header->payload_checksum = hash_128(page.data(), page.size());
  header->header_checksum = header_checksum(*header);
  return header;
}

RecordStatus RecordFormat::check(const PageHeader& header, const PageKey& key, std::span<const std::byte> payload,
                                 uint64_t record_bytes) const {
  if (record_bytes < sizeof header || header.magic != kRecordMagic) return RecordStatus::kCorrupt;
  if (header.header_checksum != header_checksum(header)) return RecordStatus::kCorrupt;
  if (header.payload_bytes != record_bytes - sizeof header) return RecordStatus::kCorrupt;
  if (header.version != kVersion || header.header_bytes != sizeof header || header.identity != identity_ ||
      header.key != key || header.payload_bytes != page_bytes_ || payload.size() != page_bytes_) {
    return RecordStatus::kForeign;
  }
  if (header.payload_checksum != hash_128(payload.data(), payload.size())) return RecordStatus::kCorrupt;
  return RecordStatus::kValid;
}

}  // namespace millrace::cache
