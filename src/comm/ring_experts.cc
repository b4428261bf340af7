#include "comm/ring_experts.h"

#include "comm/wire.h"

namespace millrace::comm {
namespace {

constexpr size_t kMinEndpointBytes = sizeof(uint32_t) + sizeof(uint16_t);

}  // namespace

RankEndpoints for_others(RankEndpoints endpoints) {
  for (TcpEndpoint& endpoint : endpoints) endpoint = endpoint.for_others();
  return endpoints;
}

void set_host(RankEndpoints& endpoints, const std::string& host) {
  for (TcpEndpoint& endpoint : endpoints) {
    if (endpoint.host.empty()) endpoint.host = host;
  }
}

void put(ByteWriter& out, const RankEndpoints& endpoints) {
  out.put(static_cast<uint32_t>(endpoints.size()));
  for (const TcpEndpoint& endpoint : endpoints) {
    out.put_string(endpoint.host);
    out.put(endpoint.port);
  }
}
void get(ByteReader& in, RankEndpoints& endpoints) {
  endpoints.resize(in.get_count(kMinEndpointBytes));
  for (TcpEndpoint& endpoint : endpoints) {
    endpoint.host = in.get_string();
    endpoint.port = in.get<uint16_t>();
  }
}

void put(ByteWriter& out, const RingExperts& experts) {
  put(out, experts.endpoints);
  out.put(static_cast<uint32_t>(experts.contents.size()));
  for (const std::string& rank : experts.contents) out.put_string(rank);
}
void get(ByteReader& in, RingExperts& experts) {
  get(in, experts.endpoints);
  experts.contents.resize(in.get_count(sizeof(uint32_t)));
  for (std::string& rank : experts.contents) rank = in.get_string();
}

void put(ByteWriter& out, const ExpertEpoch& epoch) {
  out.put(epoch.number);
  out.put(static_cast<uint32_t>(epoch.endpoints.size()));
  for (const RankEndpoints& ring : epoch.endpoints) put(out, ring);
}
void get(ByteReader& in, ExpertEpoch& epoch) {
  epoch.number = in.get<uint64_t>();
  epoch.endpoints.resize(in.get_count(sizeof(uint32_t)));
  for (RankEndpoints& ring : epoch.endpoints) get(in, ring);
}

}  // namespace millrace::comm
