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

/// Encodes and decodes the frames of TCP links (docs/wire.md). Plain functions over bytes, which may be hostile.
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
/// Returns the kind of the message that a frame carries; nothing for the link's own frames.
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
/// Checks magic, version, checksum and kind, in this order. With `any_version` every version passes, since a hello's is
/// compared later.
[[nodiscard]] Result<FrameHeader> decode_header(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                                bool any_version = false);

/// Bounds the payload of each kind of frame on one lane; a kind without a bound does not belong there.
class FrameLimits {
 public:
  /// Creates the bounds of an open link's lane. Only the receiving end may get messages.
  FrameLimits(Lane lane, const TcpLinkOptions& options, bool receiving);
  /// Returns kData for a frame that does not belong on the lane or is too long, and for unknown flags.
  [[nodiscard]] Result<void> check(const FrameHeader& header) const;

 private:
  std::array<std::optional<uint64_t>, kFrameKindCount> max_bytes_;
};

/// Bounds the reasons in goodbyes and refusals; longer ones are cut.
inline constexpr size_t kMaxReasonBytes = 1024;
/// Flag of a refusal that says that the same hello may be welcome later.
inline constexpr uint16_t kFlagTryAgain = 1;
/// Makes text of a peer fit for a log: printable ASCII and no longer than kMaxReasonBytes.
[[nodiscard]] std::string sanitize_reason(std::span<const std::byte> bytes);

/// The hello that a sender presents on one lane.
struct LaneHello {
  LinkHello hello;
  Lane lane = Lane::kControl;
  uint64_t attempt = 0;  ///< random; equal on both lanes of one attempt to connect
};

inline constexpr size_t kHelloPayloadBytes = 53;
/// Returns header and payload of a hello.
[[nodiscard]] std::vector<std::byte> encode_hello(const LaneHello& hello);
/// Decodes the payload that follows a header which passed decode_header.
[[nodiscard]] Result<LaneHello> decode_hello(const FrameHeader& header, std::span<const std::byte> payload);

/// How a hello differs from the expected one, by name, and whether the same hello may match later (another ring, a
/// future epoch).
struct HelloDifference {
  std::string reason;
  bool try_again = false;
};
[[nodiscard]] std::optional<HelloDifference> compare_hello(const LinkHello& expected, const LinkHello& found);

/// Returns "stage 3", "stage 3 rank 1", "the head", or in a collective "rank 1 of stage 3".
[[nodiscard]] std::string endpoint_name(StageId id);
/// Returns a name such as "stage 0 -> stage 1".
[[nodiscard]] std::string link_name(const LinkHello& hello);

}  // namespace millrace::comm
