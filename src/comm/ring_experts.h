#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/tcp_link.h"

namespace millrace::comm {

class ByteReader;
class ByteWriter;

/// Where the ranks of one ring are reached by those of other rings, stage by stage: [stages · ranks]. The host is empty
/// for ranks on the host of the ring's head.
using RankEndpoints = std::vector<TcpEndpoint>;

/// What a ring that shares experts with others says of itself when it joins a common epoch.
struct RingExperts {
  RankEndpoints endpoints;             ///< empty where all rings are in one process
  std::array<uint64_t, 4> contents{};  ///< with a page store: the hashes of what its pages follow from; else zeros
  friend bool operator==(const RingExperts&, const RingExperts&) = default;
};

/// A common epoch of rings that share experts, as their ranks find each other in it.
struct ExpertEpoch {
  uint64_t number = 0;                   ///< 0: the ring has all experts of its model
  std::vector<RankEndpoints> endpoints;  ///< [rings]
};

/// Returns the endpoints as another host gets them: TcpEndpoint::for_others.
[[nodiscard]] RankEndpoints for_others(RankEndpoints endpoints);
/// Gives the endpoints without a host this one.
void set_host(RankEndpoints& endpoints, const std::string& host);

void put(ByteWriter& out, const RankEndpoints& endpoints);
void get(ByteReader& in, RankEndpoints& endpoints);
void put(ByteWriter& out, const RingExperts& experts);
void get(ByteReader& in, RingExperts& experts);
void put(ByteWriter& out, const ExpertEpoch& epoch);
void get(ByteReader& in, ExpertEpoch& epoch);

}  // namespace millrace::comm
