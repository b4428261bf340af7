#include "comm/frame.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "comm/tcp_support.h"
#include "support/hex.h"

using namespace millrace;
using namespace millrace::comm;

namespace {

std::string difference(const LinkHello& found) {
  const auto result = compare_hello(test::sample_hello(), found);
  return result ? result->reason : "";
}

}  // namespace

TEST_CASE("a frame header survives the wire and any flipped bit fails") {
  const FrameHeader header{kProtocolVersion, FrameKind::kActivations, 0, RingEpoch(7), 0x123456789ABCDEF0, 1u << 30};
  const FrameHeaderBytes bytes = encode_header(header);
  REQUIRE(decode_header(bytes).value() == header);
  for (size_t bit = 0; bit < kFrameHeaderBytes * 8; ++bit) {
    FrameHeaderBytes flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    REQUIRE(decode_header(flipped).has_error());
  }
}

TEST_CASE("a frame header carries the standard CRC-32C of its bytes") {
  FrameHeader header{kProtocolVersion, FrameKind::kActivations, 0, RingEpoch(7), 0x123456789ABCDEF0, 1u << 30};
  header.version = 2;  // as the checksum below was computed
  const FrameHeaderBytes bytes = encode_header(header);
  uint32_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + 12, sizeof checksum);
  REQUIRE(checksum == 0x79F41E1D);
}

TEST_CASE("faults of a frame header are named") {
  FrameHeader header;
  header.version = 9;
  REQUIRE(decode_header(encode_header(header)).error().message ==
          fmt::format("frame of protocol 9, wanted {}", kProtocolVersion));
  REQUIRE(decode_header(encode_header(header), true)->version == 9);
  header.version = kProtocolVersion;
  header.kind = static_cast<FrameKind>(10);
  REQUIRE(decode_header(encode_header(header)).error().message == "frame of unknown kind 10");
  REQUIRE_THAT(decode_header(FrameHeaderBytes{}).error().message, Catch::Contains("frame begins with 00000000"));
}

TEST_CASE("what another version says in a handshake has the same kind") {
  REQUIRE(static_cast<int>(FrameKind::kGoodbye) == 5);
  REQUIRE(static_cast<int>(FrameKind::kHello) == 6);
  REQUIRE(static_cast<int>(FrameKind::kRefusal) == 8);
  for (size_t i = 0; i < kMessageKindCount; ++i) {
    const auto kind = static_cast<MessageKind>(i);
    REQUIRE(message_kind_of(frame_kind_of(kind)) == kind);
    REQUIRE(to_string(frame_kind_of(kind)) == to_string(kind));
  }
}

TEST_CASE("each lane has its kinds and their limits") {
  TcpLinkOptions options;
  options.max_plan_bytes = 100;
  options.max_activation_bytes = 1000;
  options.max_ack_bytes = 10;
  const FrameLimits control(Lane::kControl, options, true);
  const FrameLimits data(Lane::kData, options, true);
  const FrameLimits answers(Lane::kControl, options, false);
  const auto header = [](FrameKind kind, uint64_t bytes) { return FrameHeader{1, kind, 0, {}, 0, bytes}; };
  REQUIRE(control.check(header(FrameKind::kPlan, 100)).has_value());
  REQUIRE(control.check(header(FrameKind::kPlan, 101)).error().message ==
          "plan frame of 101 bytes, at most 100 are allowed");
  REQUIRE(control.check(header(FrameKind::kAcks, 10)).has_value());
  REQUIRE(control.check(header(FrameKind::kAcks, 11)).has_error());
  REQUIRE(data.check(header(FrameKind::kAcks, 1)).has_error());
  REQUIRE(control.check(header(FrameKind::kPing, 1)).has_error());
  REQUIRE(control.check(header(FrameKind::kActivations, 1)).has_error());
  REQUIRE(data.check(header(FrameKind::kActivations, 1000)).has_value());
  REQUIRE(data.check(header(FrameKind::kActivations, ~uint64_t{0})).has_error());
  REQUIRE(data.check(header(FrameKind::kPlan, 1)).has_error());
  REQUIRE(answers.check(header(FrameKind::kPlan, 1)).has_error());
  REQUIRE(answers.check(header(FrameKind::kGoodbye, kMaxReasonBytes)).has_value());
  FrameHeader flagged = header(FrameKind::kPlan, 1);
  flagged.flags = 4;
  REQUIRE(control.check(flagged).has_error());
}

TEST_CASE("a hello survives the wire and a wrong length fails") {
  const LaneHello hello{test::sample_hello(), Lane::kData, 42};
  const std::vector<std::byte> bytes = encode_hello(hello);
  REQUIRE(bytes.size() == kFrameHeaderBytes + kHelloPayloadBytes);
  const auto header = decode_header(std::span(bytes).first<kFrameHeaderBytes>());
  const auto payload = std::span(bytes).subspan(kFrameHeaderBytes);
  const auto decoded = decode_hello(*header, payload);
  REQUIRE(decoded->hello == hello.hello);
  REQUIRE(decoded->lane == Lane::kData);
  REQUIRE(decoded->attempt == 42);
  REQUIRE(decode_hello(*header, payload.first(payload.size() - 1)).has_error());
}

TEST_CASE("a hello has the bytes that docs/wire.md says") {
  LinkHello hello = test::sample_hello();
  hello.to = kHeadId;
  std::string bytes = test::hex_of(encode_hello({hello, Lane::kData, 0x0102}));
  bytes.replace(24, 8, "________");  // the checksum, which another test computes
  REQUIRE(bytes == test::hex_of(R"(4d524c4b 06 06 0000 03000000 ________ 0000000000000000 3500000000000000
      3412000000000000 0201000000000000 01 00000000 ffffffff 0700000000000000 0800000000000000 10000000 18000000
      00100000)"));
}

TEST_CASE("every difference between two hellos has a name") {
  LinkHello found = test::sample_hello();
  REQUIRE(difference(found).empty());
  found.epoch = RingEpoch(2);
  REQUIRE(difference(found) == "peer is of epoch 2, wanted 3");
  found.ring = 1;
  REQUIRE(difference(found) == "peer is of ring 0000000000000001, wanted 0000000000001234");
  found.page_size = 64;
  REQUIRE(difference(found) == "peer's page size is 64, wanted 16");
  found.hidden_row_bytes = 8;
  REQUIRE(difference(found) == "peer's activation rows have 8 bytes, wanted 4096");
  found.layer_count = 1;
  REQUIRE(difference(found) == "peer's model has 1 layers, wanted 24");
  found.fingerprint_low = 9;
  REQUIRE(difference(found) ==
          "peer has model fingerprint 00000000000000070000000000000009, wanted 00000000000000070000000000000008");
  found.from = kHeadId;
  REQUIRE(difference(found) == "peer links the head -> stage 1, wanted stage 0 -> stage 1");
  found.protocol_version = 9;
  REQUIRE(difference(found) == fmt::format("peer speaks protocol 9, wanted {}", kProtocolVersion));
}

TEST_CASE("what a peer says is cut and cleaned before it is logged") {
  REQUIRE(sanitize_reason(test::bytes_of("stage 1\nfailed\x1b[31m")) == "stage 1?failed?[31m");
  REQUIRE(sanitize_reason(std::vector<std::byte>(5000, std::byte{'x'})).size() == kMaxReasonBytes);
}
