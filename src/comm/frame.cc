#include "comm/frame.h"

#include <cstring>

#include "comm/wire.h"

namespace millrace::comm {
namespace {

constexpr uint32_t kMagic = 0x4B4C524D;  // "MRLK"
constexpr size_t kChecksumOffset = 12;

using CrcTable = std::array<uint32_t, 256>;

/// Returns the remainder of each byte followed by 0, 1, … 7 zero bytes, so that eight bytes are processed at once.
constexpr std::array<CrcTable, 8> make_crc_tables() {
  std::array<CrcTable, 8> tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82F63B78u : 0u);
    tables[0][i] = value;
  }
  for (size_t zeros = 1; zeros < tables.size(); ++zeros) {
    for (size_t i = 0; i < 256; ++i) {
      const uint32_t shorter = tables[zeros - 1][i];
      tables[zeros][i] = (shorter >> 8) ^ tables[0][shorter & 0xFFu];
    }
  }
  return tables;
}

/// Returns the CRC-32C of a header whose checksum field counts as zero.
uint32_t header_checksum(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  static constexpr auto kTables = make_crc_tables();
  static_assert(kFrameHeaderBytes % sizeof(uint64_t) == 0);
  FrameHeaderBytes header;
  std::memcpy(header.data(), bytes.data(), header.size());
  std::memset(header.data() + kChecksumOffset, 0, sizeof(uint32_t));
  uint32_t crc = 0xFFFFFFFFu;
  for (size_t offset = 0; offset < header.size(); offset += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, header.data() + offset, sizeof word);
    word ^= crc;
    crc = 0;
    for (size_t i = 0; i < sizeof word; ++i) crc ^= kTables[7 - i][(word >> (8 * i)) & 0xFFu];
  }
  return ~crc;
}

template <class T>
void store(FrameHeaderBytes& bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

}  // namespace

std::string_view to_string(FrameKind kind) {
  constexpr std::array<std::string_view, kFrameKindCount> kNames = {
      "plan", "activations", "output", "ping", "pong", "goodbye", "hello", "welcome", "refusal", "acks"};
  const auto index = static_cast<size_t>(kind);
  return index < kNames.size() ? kNames[index] : "unknown";
}

FrameHeaderBytes encode_header(const FrameHeader& header) {
  FrameHeaderBytes bytes{};
  store(bytes, 0, kMagic);
  store(bytes, 4, header.version);
  store(bytes, 5, header.kind);
  store(bytes, 6, header.flags);
  store(bytes, 8, header.epoch.value());
  store(bytes, 16, header.number);
  store(bytes, 24, header.payload_bytes);
  store(bytes, kChecksumOffset, header_checksum(bytes));
  return bytes;
}

Result<FrameHeader> decode_header(std::span<const std::byte, kFrameHeaderBytes> bytes, bool any_version) {
  ByteReader reader(bytes);
  const auto magic = reader.get<uint32_t>();
  FrameHeader header;
  header.version = reader.get<uint8_t>();
  const auto kind = reader.get<uint8_t>();
  header.flags = reader.get<uint16_t>();
  header.epoch = RingEpoch(reader.get<uint32_t>());
  const auto checksum = reader.get<uint32_t>();
  header.number = reader.get<uint64_t>();
  header.payload_bytes = reader.get<uint64_t>();
  if (magic != kMagic) {
    return make_error(ErrorCode::kData, "frame begins with {:08x}, wanted {:08x}", magic, kMagic);
  }
  if (!any_version && header.version != kProtocolVersion) {
    return make_error(ErrorCode::kData, "frame of protocol {}, wanted {}", header.version, kProtocolVersion);
  }
  const uint32_t wanted = header_checksum(bytes);
  if (checksum != wanted) {
    return make_error(ErrorCode::kData, "frame header has checksum {:08x}, wanted {:08x}", checksum, wanted);
  }
  if (kind >= kFrameKindCount) return make_error(ErrorCode::kData, "frame of unknown kind {}", kind);
  header.kind = static_cast<FrameKind>(kind);
  return header;
}

FrameLimits::FrameLimits(Lane lane, const TcpLinkOptions& options, bool receiving) {
  const auto allow = [this](FrameKind kind, uint64_t bytes) { max_bytes_[static_cast<size_t>(kind)] = bytes; };
  allow(FrameKind::kGoodbye, kMaxReasonBytes);
  if (lane == Lane::kControl) {
    allow(FrameKind::kPing, 0);
    allow(FrameKind::kPong, 0);
  }
  if (!receiving) return;
  if (lane == Lane::kData) {
    allow(FrameKind::kActivations, options.max_activation_bytes);
  } else {
    allow(FrameKind::kPlan, options.max_plan_bytes);
    allow(FrameKind::kOutput, options.max_output_bytes);
    allow(FrameKind::kAcks, options.max_ack_bytes);
  }
}

Result<void> FrameLimits::check(const FrameHeader& header) const {
  const auto& max_bytes = max_bytes_[static_cast<size_t>(header.kind)];
  if (!max_bytes) return make_error(ErrorCode::kData, "{} frame on a lane that has none", to_string(header.kind));
  if (header.payload_bytes > *max_bytes) {
    return make_error(ErrorCode::kData, "{} frame of {} bytes, at most {} are allowed", to_string(header.kind),
                      header.payload_bytes, *max_bytes);
  }
  if (header.flags != 0) {
    return make_error(ErrorCode::kData, "{} frame with flags {:04x}, wanted none", to_string(header.kind),
                      header.flags);
  }
  return {};
}

std::string sanitize_reason(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes.first(std::min(bytes.size(), kMaxReasonBytes))) {
    const auto character = static_cast<char>(byte);
    text += character >= ' ' && character <= '~' ? character : '?';
  }
  return text;
}

}  // namespace millrace::comm
