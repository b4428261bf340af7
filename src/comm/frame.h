#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "comm/tcp_link.h"

/// The wire form of what TCP links carry (docs/wire.md): plain functions over bytes, which may be hostile.
namespace millrace::comm {

enum class FrameKind : uint8_t {
  kPlan,
  kActivations,
  kOutput,
  kPing,
  kPong,
  kGoodbye,
  kHello,
  kWelcome,
  kRefusal,
  kAcks,
};
inline constexpr size_t kFrameKindCount = 10;
[[nodiscard]] constexpr FrameKind frame_kind_of(MessageKind kind) {
  constexpr std::array kKinds = {FrameKind::kPlan, FrameKind::kActivations, FrameKind::kOutput, FrameKind::kAcks};
  static_assert(kKinds.size() == kMessageKindCount);
  return kKinds[static_cast<size_t>(kind)];
}
/// Nothing for what the link itself has to say.
[[nodiscard]] constexpr std::optional<MessageKind> message_kind_of(FrameKind kind) {
  switch (kind) {
    case FrameKind::kPlan: return MessageKind::kPlan;
    case FrameKind::kActivations: return MessageKind::kActivations;
    case FrameKind::kOutput: return MessageKind::kOutput;
    case FrameKind::kAcks: return MessageKind::kAcks;
    default: return std::nullopt;
  }
}
[[nodiscard]] std::string_view to_string(FrameKind kind);

enum class Lane : uint8_t { kControl, kData };
inline constexpr size_t kLaneCount = 2;
[[nodiscard]] constexpr Lane lane_of(MessageKind kind) {
  return kind == MessageKind::kActivations ? Lane::kData : Lane::kControl;
}

struct FrameHeader {
  uint8_t version = kProtocolVersion;
  FrameKind kind = FrameKind::kPlan;
  uint16_t flags = 0;
  RingEpoch epoch;
  uint64_t number = 0;  ///< the plan; in a ping and its pong, when the ping was sent
  uint64_t payload_bytes = 0;
  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

inline constexpr size_t kFrameHeaderBytes = 32;
using FrameHeaderBytes = std::array<std::byte, kFrameHeaderBytes>;
[[nodiscard]] FrameHeaderBytes encode_header(const FrameHeader& header);
/// Checks magic, version, checksum and kind, in this order. Any version passes when `any_version`: a hello's is
/// compared later.
[[nodiscard]] Result<FrameHeader> decode_header(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                                bool any_version = false);

/// The largest payload of each kind of frame on one lane; a kind without one does not belong there.
class FrameLimits {
 public:
  /// Of the lane of an open link. Messages come to the receiving end only.
  FrameLimits(Lane lane, const TcpLinkOptions& options, bool receiving);
  /// Refuses what does not belong on the lane, what is too long, and flags that nobody knows.
  [[nodiscard]] Result<void> check(const FrameHeader& header) const;

 private:
  std::array<std::optional<uint64_t>, kFrameKindCount> max_bytes_;
};

/// A reason travels in goodbyes and refusals, cut to this length.
inline constexpr size_t kMaxReasonBytes = 1024;
/// In a refusal: the same hello may be welcome later.
inline constexpr uint16_t kFlagTryAgain = 1;
/// Makes text of a peer fit for a log: printable ASCII and no longer than kMaxReasonBytes.
[[nodiscard]] std::string sanitize_reason(std::span<const std::byte> bytes);

/// What one lane of a sender presents.
struct LaneHello {
  LinkHello hello;
  Lane lane = Lane::kControl;
  uint64_t attempt = 0;  ///< random; equal on both lanes of one attempt to connect
};

inline constexpr size_t kHelloPayloadBytes = 53;
/// Header and payload.
[[nodiscard]] std::vector<std::byte> encode_hello(const LaneHello& hello);
/// `payload` follows a header that passed decode_header.
[[nodiscard]] Result<LaneHello> decode_hello(const FrameHeader& header, std::span<const std::byte> payload);

/// A hello that is not the one expected: how it differs, by name, and whether the same hello may match later (another
/// ring, an epoch to come).
struct HelloDifference {
  std::string reason;
  bool try_again = false;
};
[[nodiscard]] std::optional<HelloDifference> compare_hello(const LinkHello& expected, const LinkHello& found);

/// "stage 3", "the head".
[[nodiscard]] std::string endpoint_name(StageId id);
/// "stage 0 -> stage 1".
[[nodiscard]] std::string link_name(const LinkHello& hello);

}  // namespace millrace::comm
