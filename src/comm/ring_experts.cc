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
  for (const uint64_t word : experts.contents) out.put(word);
}
void get(ByteReader& in, RingExperts& experts) {
  get(in, experts.endpoints);
  for (uint64_t& word : experts.contents) word = in.get<uint64_t>();
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
