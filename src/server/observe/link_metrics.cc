#include "server/observe/link_metrics.h"

#include "server/observe/metric_writer.h"

namespace millrace::server {
namespace {

/// Returns "head", the number of a stage for its leader, or "1.2" for rank 2 of stage 1.
std::string stage_label(StageId id) {
  if (id == comm::kHeadId) return "head";
  const uint32_t rank = id.value() >> comm::kRankIdShift & comm::kMaxRankId;
  const uint32_t stage = id.value() & ((uint32_t{1} << comm::kRankIdShift) - 1);
  return rank == 0 ? std::to_string(stage) : fmt::format("{}.{}", stage, rank);
}

std::string label(const comm::LinkStats& link) {
  return fmt::format("from=\"{}\",to=\"{}\",end=\"{}\"", stage_label(link.from), stage_label(link.to),
                     link.sending ? "sender" : "receiver");
}

}  // namespace

void append_link_metrics(std::string& out, const std::vector<comm::LinkStats>& links) {
  if (links.empty()) return;
  MetricWriter writer(out);
  const auto write = [&](std::string_view name, std::string_view type, std::string_view help, auto&& value) {
    writer.describe(name, type, help);
    for (const comm::LinkStats& link : links) writer.sample(name, label(link), value(link));
  };
  using Link = const comm::LinkStats&;
  write("tcp_sent_bytes_total", "counter", "Bytes that an end of a link has sent, headers and heartbeats included.",
        [](Link link) { return link.bytes_sent; });
  write("tcp_received_bytes_total", "counter",
        "Bytes that an end of a link has received, headers and heartbeats included.",
        [](Link link) { return link.bytes_received; });
  write("tcp_messages_total", "counter", "Plans, activations and outputs that an end of a link has sent or received.",
        [](Link link) { return link.sending ? link.messages_sent : link.messages_received; });
  write("tcp_messages_dropped_total", "counter", "Messages of an older epoch of the ring that a link end dropped.",
        [](Link link) { return link.messages_dropped; });
  write("tcp_send_queue_high_water", "gauge", "Messages of one kind that waited to be sent, at most.",
        [](Link link) { return link.send_queue_high_water; });
  write("tcp_round_trip_seconds", "gauge", "Round trip of the last heartbeat.",
        [](Link link) { return seconds(link.round_trip_ns); });
}

void append_control_metrics(std::string& out, std::optional<uint64_t> refusals) {
  if (!refusals) return;
  MetricWriter(out).single("control_refused_total", "counter",
                           "Connections to --dist-init-addr that were refused or turned away.", *refusals);
}

}  // namespace millrace::server
