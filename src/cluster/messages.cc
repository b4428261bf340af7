#include "cluster/messages.h"

#include <array>

#include "comm/wire.h"

namespace millrace::cluster {
namespace {

using comm::ByteReader;
using comm::ByteWriter;

void put(ByteWriter& out, const Hello& hello) {
  out.put(hello.protocol);
  out.put(hello.node_rank);
  out.put(hello.node_count);
  out.put(hello.config.high);
  out.put(hello.config.low);
  out.put(hello.ring_port);
}
void get(ByteReader& in, Hello& hello) {
  hello.protocol = in.get<uint32_t>();
  hello.node_rank = in.get<uint32_t>();
  hello.node_count = in.get<uint32_t>();
  hello.config.high = in.get<uint64_t>();
  hello.config.low = in.get<uint64_t>();
  hello.ring_port = in.get<uint16_t>();
}

/// An optional value that is not there.
constexpr std::string_view kAuto = "auto";

void put_field(ByteWriter& out, uint32_t value) {
  out.put(value);
}
void put_field(ByteWriter& out, double value) {
  out.put(value);
}
void put_field(ByteWriter& out, bool value) {
  out.put(value);
}
void put_field(ByteWriter& out, async::Duration value) {
  out.put(static_cast<int64_t>(value.count()));
}
template <NamedEnum E>
void put_field(ByteWriter& out, E value) {
  out.put_string(enum_name(value));
}
template <NamedEnum E>
void put_field(ByteWriter& out, const std::optional<E>& value) {
  out.put_string(value ? enum_name(*value) : kAuto);
}

void get_field(ByteReader& in, uint32_t& value) {
  value = in.get<uint32_t>();
}
void get_field(ByteReader& in, double& value) {
  value = in.get<double>();
}
void get_field(ByteReader& in, bool& value) {
  value = in.get_bool();
}
void get_field(ByteReader& in, async::Duration& value) {
  value = async::Duration(in.get<int64_t>());
}
template <NamedEnum E>
void get_field(ByteReader& in, E& value) {
  const auto parsed = parse_enum<E>(in.get_string());
  if (!parsed) return in.fail();
  value = *parsed;
}
template <NamedEnum E>
void get_field(ByteReader& in, std::optional<E>& value) {
  const std::string name = in.get_string();
  value = parse_enum<E>(name);
  if (!value && name != kAuto) in.fail();
}

void put(ByteWriter& out, const Assignment& assignment) {
  out.put(assignment.ring_id);
  out.put(assignment.first_stage);
  out.put(assignment.stage_count);
  out.put(assignment.first_rank);
  out.put(assignment.rank_count);
  out.put_array(std::span(assignment.layers));
  std::apply([&](const auto... field) { (put_field(out, assignment.stage.*field), ...); }, sched::kStageConfigFields);
}
void get(ByteReader& in, Assignment& assignment) {
  assignment.ring_id = in.get<uint64_t>();
  assignment.first_stage = in.get<uint32_t>();
  assignment.stage_count = in.get<uint32_t>();
  assignment.first_rank = in.get<uint32_t>();
  assignment.rank_count = in.get<uint32_t>();
  assignment.layers = in.get_array<model::LayerRange>();
  std::apply([&](const auto... field) { (get_field(in, assignment.stage.*field), ...); }, sched::kStageConfigFields);
  if (assignment.stage.expert_ring >= assignment.stage.expert_rings) in.fail();
}

constexpr std::array kPoolFields = {&cache::PoolSizes::device, &cache::PoolSizes::host, &cache::PoolSizes::sequences};

void put(ByteWriter& out, const cache::PoolSizes& pools) {
  for (const auto field : kPoolFields) out.put(pools.*field);
}
void get(ByteReader& in, cache::PoolSizes& pools) {
  for (const auto field : kPoolFields) pools.*field = in.get<uint32_t>();
}

void put(ByteWriter& out, const Loaded& loaded) {
  out.put(loaded.page_capacity);
  out.put(loaded.host_page_capacity);
  out.put(loaded.sequence_capacity);
  put(out, loaded.pools);
  out.put(loaded.expert_port);
  out.put_string(loaded.compute);
  for (const tensor::ChannelSupport* end : {&loaded.first, &loaded.last}) {
    for (const std::string* text : {&end->device, &end->protocol, &end->unavailable_reason}) out.put_string(*text);
  }
  out.put(static_cast<uint32_t>(loaded.contents.ranks.size()));
  for (const std::string& rank : loaded.contents.ranks) out.put_string(rank);
  out.put(loaded.contents.experts.high);
  out.put(loaded.contents.experts.low);
}
void get(ByteReader& in, Loaded& loaded) {
  loaded.page_capacity = in.get<uint64_t>();
  loaded.host_page_capacity = in.get<uint64_t>();
  loaded.sequence_capacity = in.get<uint32_t>();
  get(in, loaded.pools);
  loaded.expert_port = in.get<uint16_t>();
  loaded.compute = in.get_string();
  for (tensor::ChannelSupport* end : {&loaded.first, &loaded.last}) {
    for (std::string* text : {&end->device, &end->protocol, &end->unavailable_reason}) *text = in.get_string();
  }
  loaded.contents.ranks.resize(in.get_count(sizeof(uint32_t)));
  for (std::string& rank : loaded.contents.ranks) rank = in.get_string();
  loaded.contents.experts.high = in.get<uint64_t>();
  loaded.contents.experts.low = in.get<uint64_t>();
}

constexpr std::array kPartFields = {&NodePart::first_stage, &NodePart::stage_count, &NodePart::first_rank,
                                    &NodePart::rank_count};

void put(ByteWriter& out, const JoinRing& join) {
  out.put(join.epoch);
  put(out, join.pages);
  out.put(static_cast<uint32_t>(join.nodes.size()));
  for (const JoinedNode& node : join.nodes) {
    out.put_string(node.host);
    out.put(node.port);
    for (const auto field : kPartFields) out.put(node.part.*field);
  }
  put(out, join.experts);
  out.put(join.channel_in);
  out.put(join.channel_out);
  out.put_string(join.fingerprint);
}
void get(ByteReader& in, JoinRing& join) {
  join.epoch = in.get<RingEpoch>();
  get(in, join.pages);
  join.nodes.resize(in.get_count(2 * sizeof(uint32_t) + sizeof(uint16_t)));
  for (JoinedNode& node : join.nodes) {
    node.host = in.get_string();
    node.port = in.get<uint16_t>();
    for (const auto field : kPartFields) node.part.*field = in.get<uint32_t>();
  }
  get(in, join.experts);
  join.channel_in = in.get_bool();
  join.channel_out = in.get_bool();
  join.fingerprint = in.get_string();
}

void put(ByteWriter& out, const RingJoined& formed) {
  out.put(formed.epoch);
}
void get(ByteReader& in, RingJoined& formed) {
  formed.epoch = in.get<RingEpoch>();
}

void put(ByteWriter& out, const Stop& stop) {
  out.put(stop.epoch);
  out.put_string(stop.reason);
}
void get(ByteReader& in, Stop& stop) {
  stop.epoch = in.get<RingEpoch>();
  stop.reason = in.get_string();
}

void put(ByteWriter& out, const Stopped& stopped) {
  out.put(stopped.epoch);
  out.put_string(stopped.reason);
  out.put(stopped.lost_channel);
}
void get(ByteReader& in, Stopped& stopped) {
  stopped.epoch = in.get<RingEpoch>();
  stopped.reason = in.get_string();
  stopped.lost_channel = in.get<StageId>();
}

void put(ByteWriter&, const Ping&) {}
void get(ByteReader&, Ping&) {}

void put(ByteWriter&, const Measure&) {}
void get(ByteReader&, Measure&) {}
void put(ByteWriter& out, const Goodbye& goodbye) {
  out.put_string(goodbye.reason);
}
void get(ByteReader& in, Goodbye& goodbye) {
  goodbye.reason = in.get_string();
}

/// Bytes of one link: two ids, the side of the end, six counters, the round trip.
constexpr size_t kLinkBytes = 2 * 4 + 1 + 6 * 8 + 8;

void put(ByteWriter& out, const LinkReport& report) {
  out.put(static_cast<uint32_t>(report.links.size()));
  for (const comm::LinkStats& link : report.links) {
    out.put(link.from.value());
    out.put(link.to.value());
    out.put(link.sending);
    for (const uint64_t counter : {link.bytes_sent, link.bytes_received, link.messages_sent, link.messages_received,
                                   link.messages_dropped, link.send_queue_high_water})
      out.put(counter);
    out.put(link.round_trip_ns);
  }
}
void get(ByteReader& in, LinkReport& report) {
  report.links.resize(in.get_count(kLinkBytes));
  for (comm::LinkStats& link : report.links) {
    link.from = StageId(in.get<uint32_t>());
    link.to = StageId(in.get<uint32_t>());
    link.sending = in.get_bool();
    for (uint64_t* counter : {&link.bytes_sent, &link.bytes_received, &link.messages_sent, &link.messages_received,
                              &link.messages_dropped, &link.send_queue_high_water})
      *counter = in.get<uint64_t>();
    link.round_trip_ns = in.get<int64_t>();
  }
}

void put(ByteWriter& out, const RingMessage& message) {
  out.put_array(std::span(message.body));
}
void get(ByteReader& in, RingMessage& message) {
  message.body = in.get_array<std::byte>();
}

void put(ByteWriter& out, const StoreReport& report) {
  out.put(static_cast<uint32_t>(report.stores.size()));
  for (const cache::StageStoreStats& each : report.stores) {
    out.put(each.stage);
    out.put(each.rank);
    for (const cache::StoreCounter& counter : cache::kStoreCounters) out.put(each.store.*counter.value);
  }
}
void get(ByteReader& in, StoreReport& report) {
  report.stores.resize(in.get_count(2 * sizeof(uint32_t) + cache::kStoreCounters.size() * sizeof(uint64_t)));
  for (cache::StageStoreStats& each : report.stores) {
    each.stage = in.get<StageId>();
    each.rank = in.get<uint32_t>();
    for (const cache::StoreCounter& counter : cache::kStoreCounters) each.store.*counter.value = in.get<uint64_t>();
  }
}

template <size_t index>
Result<Message> decode_as(uint8_t kind, ByteReader& in) {
  if constexpr (index == std::variant_size_v<Message>) {
    return make_error(ErrorCode::kData, "cluster message of unknown kind {}", kind);
  } else {
    if (kind != index) return decode_as<index + 1>(kind, in);
    std::variant_alternative_t<index, Message> message;
    get(in, message);
    if (!in.finished()) return make_error(ErrorCode::kData, "malformed cluster message of kind {}", kind);
    return Message(std::move(message));
  }
}

}  // namespace

std::vector<std::byte> encode(const Message& message) {
  ByteWriter out;
  out.put(static_cast<uint8_t>(message.index()));
  std::visit([&out](const auto& content) { put(out, content); }, message);
  return out.take();
}

Result<Message> decode(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  const auto kind = in.get<uint8_t>();
  return decode_as<0>(kind, in);
}

}  // namespace millrace::cluster
