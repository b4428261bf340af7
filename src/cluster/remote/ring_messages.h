#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "cluster/messages.h"
#include "model/fingerprint.h"
#include "sched/head/engine_status.h"
#include "sched/head/model_info.h"
#include "sched/head/ring_costs.h"
#include "sched/head/ring_counters.h"
#include "sched/plan/generate_event.h"
#include "sched/plan/pause_mode.h"
#include "sched/plan/plan_record.h"
#include "sched/plan/request.h"

/// The messages between a front and a ring in another process. They travel as cluster::RingMessage.
namespace millrace::cluster::remote {

inline constexpr uint32_t kRingProtocolVersion = 6;

/// What must be equal for two rings to give the same output to a request.
struct RingFacts {
  uint32_t protocol = kRingProtocolVersion;
  model::Fingerprint config;      ///< of everything in config.json that the forward pass depends on
  model::Fingerprint vocabulary;  ///< of what the tokens spell, and of the tokens that end an output
  std::string arithmetic;         ///< weight format, dtypes, device, instruction set, revision, rounding of sums
  std::string experts;            ///< how the rings divide the experts of the model among them; empty: they do not
  uint32_t page_size = 0;         ///< tokens, by which the router names prefixes
};

/// Ring → front, the first message of a connection.
struct RingHello {
  uint32_t ring = 0;  ///< its number among the rings of the front
  RingFacts facts;
};

/// Front → ring: the ring takes part.
struct RingWelcome {};

/// Front → ring: a request. Numbers are the front's, and never used again on a connection.
struct SubmitRequest {
  uint64_t number = 0;
  sched::GenerateRequest request;
};
/// Front → ring: the request shall end.
struct AbortRequest {
  uint64_t number = 0;
};
/// Ring → front: what has happened to a request. An event without content says that it has begun.
struct RequestEvent {
  uint64_t number = 0;
  sched::GenerateEvent event;
};

// Front → ring: calls of sched::Engine.
struct PauseRing {
  sched::PauseMode mode = sched::PauseMode::kInPlace;
};
struct ResumeRing {};
struct ReturnWaiting {
  std::string reason;
};
struct RebuildRing {
  std::string reason;
};
struct FlushRing {
  uint64_t number = 0;
  int64_t timeout_us = 0;
};
/// Both: a sched::StepMessage, between a front and a ring that share experts.
struct StepNews {
  std::vector<std::byte> message;
};
/// Ring → front: the result of a FlushRing.
struct RingFlushed {
  uint64_t number = 0;
  std::optional<Error> error;
};

/// Ring → front, whenever it has changed.
struct RingState {
  sched::EngineStatus status;
  sched::ModelInfo model;
};
/// Ring → front, ten times a second: the statistics of the ring's head. Times are ns on that head's clock.
struct RingFigures {
  uint32_t rank_count = 1;  ///< of each stage
  int64_t as_of_ns = 0;
  sched::RingSnapshot snapshot;
  sched::RingCosts costs;
  std::vector<sched::PlanRecord> records;  ///< complete since the message before; in the first one the newest
};
/// Ring → front, once a second: the metrics of links, stores and graphs, as Prometheus' text without the label `ring`.
struct RingMetrics {
  std::string text;
};

using Content =
    std::variant<RingHello, RingWelcome, SubmitRequest, AbortRequest, RequestEvent, PauseRing, ResumeRing,
                 ReturnWaiting, RebuildRing, FlushRing, RingFlushed, RingState, RingFigures, RingMetrics, StepNews>;

[[nodiscard]] std::vector<std::byte> encode(const Content& content);
/// Returns kData for anything but one whole message.
[[nodiscard]] Result<Content> decode(std::span<const std::byte> bytes);

/// Returns the content of a message on the connection of a ring. Throws ErrorException (kData) for any other message.
[[nodiscard]] Content content_of(const Message& message);

/// Returns what differs between a ring and the front that refuses it; empty: nothing.
[[nodiscard]] std::string difference(const RingFacts& ring, const RingFacts& front);

}  // namespace millrace::cluster::remote
