#include <fmt/core.h>

#include "comm/frame.h"
#include "comm/wire.h"

namespace millrace::comm {

std::vector<std::byte> encode_hello(const LaneHello& lane_hello) {
  const LinkHello& hello = lane_hello.hello;
  ByteWriter payload;
  payload.put(hello.ring);
  payload.put(lane_hello.attempt);
  payload.put(lane_hello.lane);
  payload.put(hello.from.value());
  payload.put(hello.to.value());
  payload.put(hello.fingerprint_high);
  payload.put(hello.fingerprint_low);
  payload.put(hello.page_size);
  payload.put(hello.layer_count);
  payload.put(hello.hidden_row_bytes);
  const std::vector<std::byte> body = payload.take();
  const FrameHeaderBytes header =
      encode_header({hello.protocol_version, FrameKind::kHello, 0, hello.epoch, 0, body.size()});
  std::vector<std::byte> bytes(header.begin(), header.end());
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

Result<LaneHello> decode_hello(const FrameHeader& header, std::span<const std::byte> payload) {
  ByteReader reader(payload);
  LaneHello lane_hello;
  LinkHello& hello = lane_hello.hello;
  hello.protocol_version = header.version;
  hello.epoch = header.epoch;
  hello.ring = reader.get<uint64_t>();
  lane_hello.attempt = reader.get<uint64_t>();
  const auto lane = reader.get<uint8_t>();
  lane_hello.lane = static_cast<Lane>(lane);
  hello.from = StageId(reader.get<uint32_t>());
  hello.to = StageId(reader.get<uint32_t>());
  hello.fingerprint_high = reader.get<uint64_t>();
  hello.fingerprint_low = reader.get<uint64_t>();
  hello.page_size = reader.get<uint32_t>();
  hello.layer_count = reader.get<uint32_t>();
  hello.hidden_row_bytes = reader.get<uint32_t>();
  if (!reader.finished()) {
    return make_error(ErrorCode::kData, "hello of {} bytes, wanted {}", payload.size(), kHelloPayloadBytes);
  }
  if (lane >= kLaneCount) return make_error(ErrorCode::kData, "hello for lane {}, wanted 0 or 1", lane);
  return lane_hello;
}

std::optional<HelloDifference> compare_hello(const LinkHello& expected, const LinkHello& found) {
  const auto differs = [](const auto& a, const auto& b, auto format, bool try_again = false) {
    return HelloDifference{fmt::format(fmt::runtime(format), a, b), try_again};
  };
  if (found.protocol_version != expected.protocol_version) {
    return differs(found.protocol_version, expected.protocol_version, "peer speaks protocol {}, wanted {}");
  }
  if (found.from != expected.from || found.to != expected.to) {
    return differs(link_name(found), link_name(expected), "peer links {}, wanted {}", true);
  }
  if (found.fingerprint_high != expected.fingerprint_high || found.fingerprint_low != expected.fingerprint_low) {
    return HelloDifference{fmt::format("peer has model fingerprint {:016x}{:016x}, wanted {:016x}{:016x}",
                                       found.fingerprint_high, found.fingerprint_low, expected.fingerprint_high,
                                       expected.fingerprint_low)};
  }
  if (found.layer_count != expected.layer_count) {
    return differs(found.layer_count, expected.layer_count, "peer's model has {} layers, wanted {}");
  }
  if (found.hidden_row_bytes != expected.hidden_row_bytes) {
    return differs(found.hidden_row_bytes, expected.hidden_row_bytes,
                   "peer's activation rows have {} bytes, wanted {}");
  }
  if (found.page_size != expected.page_size) {
    return differs(found.page_size, expected.page_size, "peer's page size is {}, wanted {}");
  }
  if (found.ring != expected.ring) {
    return differs(found.ring, expected.ring, "peer is of ring {:016x}, wanted {:016x}", true);
  }
  if (found.epoch != expected.epoch) {
    return differs(found.epoch.value(), expected.epoch.value(), "peer is of epoch {}, wanted {}",
                   found.epoch > expected.epoch);
  }
  return std::nullopt;
}

std::string endpoint_name(StageId id) {
  if (id == kHeadId) return "the head";
  const uint32_t stage = id.value() & ((uint32_t{1} << kRankIdShift) - 1);
  const uint32_t rank = id.value() >> kRankIdShift & kMaxRankId;
  if ((id.value() & kCollectiveIdBit) != 0) return fmt::format("rank {} of stage {}", rank, stage);
  return rank == 0 ? fmt::format("stage {}", stage) : fmt::format("stage {} rank {}", stage, rank);
}

std::string link_name(const LinkHello& hello) {
  return endpoint_name(hello.from) + " -> " + endpoint_name(hello.to);
}

}  // namespace millrace::comm
