#include "sched/steps/step_messages.h"

#include "comm/frame.h"
#include "comm/wire.h"

namespace millrace::sched {
namespace {

using comm::ByteReader;
using comm::ByteWriter;

void put(ByteWriter& out, const JoinEpoch& join) {
  put(out, join.experts);
}
void get(ByteReader& in, JoinEpoch& join) {
  get(in, join.experts);
}

void put(ByteWriter& out, const EpochBegun& begun) {
  out.put(begun.epoch);
  out.put(static_cast<uint32_t>(begun.rings.size()));
  for (const comm::RingExperts& ring : begun.rings) put(out, ring);
}
void get(ByteReader& in, EpochBegun& begun) {
  begun.epoch = in.get<uint64_t>();
  begun.rings.resize(in.get_count(sizeof(uint32_t) + 4 * sizeof(uint64_t)));
  for (comm::RingExperts& ring : begun.rings) get(in, ring);
}

void put(ByteWriter& out, const StepReached& reached) {
  out.put(reached.epoch);
  out.put(reached.step);
}
void get(ByteReader& in, StepReached& reached) {
  reached.epoch = in.get<uint64_t>();
  reached.step = in.get<uint64_t>();
}

void put(ByteWriter& out, const EpochEnded& ended) {
  out.put(ended.epoch);
  out.put(ended.ring);
  out.put_string(ended.reason);
}
void get(ByteReader& in, EpochEnded& ended) {
  ended.epoch = in.get<uint64_t>();
  ended.ring = in.get<int32_t>();
  const std::string reason = in.get_string();
  ended.reason = comm::sanitize_reason(std::as_bytes(std::span(reason)));
}

void put(ByteWriter& out, const EpochLeft& left) {
  out.put(left.epoch);
}
void get(ByteReader& in, EpochLeft& left) {
  left.epoch = in.get<uint64_t>();
}

template <size_t index>
Result<StepMessage> decode_as(uint8_t kind, ByteReader& in) {
  if constexpr (index == std::variant_size_v<StepMessage>) {
    return make_error(ErrorCode::kData, "message about steps of unknown kind {}", kind);
  } else {
    if (kind != index) return decode_as<index + 1>(kind, in);
    std::variant_alternative_t<index, StepMessage> message;
    get(in, message);
    if (!in.finished()) return make_error(ErrorCode::kData, "malformed message about steps of kind {}", kind);
    return StepMessage(std::move(message));
  }
}

}  // namespace

std::vector<std::byte> encode(const StepMessage& message) {
  ByteWriter out;
  out.put(static_cast<uint8_t>(message.index()));
  std::visit([&out](const auto& each) { put(out, each); }, message);
  return out.take();
}

Result<StepMessage> decode_step_message(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  const auto kind = in.get<uint8_t>();
  return decode_as<0>(kind, in);
}

}  // namespace millrace::sched
