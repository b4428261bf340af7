#include "app/divided_sharing.h"

#include <optional>
#include <random>
#include <vector>

#include "cluster/coordinator.h"
#include "comm/collective/epoch_experts.h"

namespace millrace::app {
namespace {

using namespace std::chrono_literals;

/// Longest time in which the ranks of all rings connect with each other.
constexpr async::Duration kConnectExpertsTimeout = 5s;

/// Returns the number before the first epoch. Epochs of another front then have other numbers.
uint64_t random_first_epoch() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) & ~uint64_t{0xFFFFFFFF};
}

}  // namespace

/// The part of one ring of this process in the exchange. The steps may end it from any thread.
class DividedSharing::Part final : public sched::EpochExchange {
 public:
  Part(DividedSharing& owner, const comm::SharedExperts::Shape& shape, int32_t ring, std::chrono::milliseconds silence)
      : shape_(shape),
        ring_(ring),
        experts_({.shape = shape, .ring = ring, .silence = silence},
                 [&owner](uint64_t epoch, int32_t origin, const std::string& reason) {
                   owner.epochs().end_epoch(epoch, origin, reason);
                 }) {}

  /// Sets the arguments of ExpertSharing::exchange().
  void set(cluster::Coordinator* nodes, const std::optional<model::RingContents>& contents) {
    nodes_ = nodes;
    contents_ = contents;
  }
  [[nodiscard]] const std::string& page_fingerprint() const { return page_fingerprint_; }
  asio::awaitable<comm::RingExperts> open(async::Runtime& runtime) override;
  asio::awaitable<void> begin(async::Runtime& runtime, const sched::StepEpochs::Membership& epoch) override;
  asio::awaitable<void> close() override { return experts_.close(); }
  void interrupt() override { experts_.interrupt(); }
  [[nodiscard]] comm::EpochExperts& experts() { return experts_; }

 private:
  const comm::SharedExperts::Shape shape_;
  const int32_t ring_;
  cluster::Coordinator* nodes_ = nullptr;
  std::optional<model::RingContents> contents_;  // nothing: there is no store, or nodes_ has them
  comm::RingExperts own_;                        // as open() has returned it
  std::string page_fingerprint_;                 // of the epoch that has begun; empty: there is no store
  comm::EpochExperts experts_;
};

asio::awaitable<comm::RingExperts> DividedSharing::Part::open(async::Runtime& runtime) {
  if (nodes_ != nullptr) co_await nodes_->gather();
  const auto port = experts_.listen(runtime);
  if (port.has_error()) throw ErrorException(port.error());
  if (nodes_ != nullptr) {
    own_.endpoints = nodes_->expert_endpoints(*port);
  } else {
    own_.endpoints.assign(static_cast<size_t>(shape_.stage_count * shape_.rank_count), {.host = "", .port = *port});
  }
  const std::optional<model::RingContents>& contents = nodes_ != nullptr ? nodes_->contents() : contents_;
  if (contents) own_.contents = contents->words();
  co_return own_;
}

asio::awaitable<void> DividedSharing::Part::begin(async::Runtime& runtime, const sched::StepEpochs::Membership& epoch) {
  comm::ExpertEpoch common{.number = epoch.epoch, .endpoints = {}};
  for (const comm::RingExperts& ring : epoch.rings) common.endpoints.push_back(ring.endpoints);
  // Other rings see the nodes of this one by other addresses.
  common.endpoints.at(static_cast<size_t>(ring_)) = own_.endpoints;
  page_fingerprint_.clear();
  if (own_.contents != comm::RingExperts{}.contents) {
    std::vector<model::RingContents> rings;
    for (const comm::RingExperts& ring : epoch.rings) {
      if (ring.contents == comm::RingExperts{}.contents) {
        throw_error(ErrorCode::kData,
                    "a ring that shares experts says nothing of its pages, wanted a page store on all");
      }
      rings.push_back(model::RingContents::from_words(ring.contents));
    }
    page_fingerprint_ = model::page_fingerprint(rings, static_cast<size_t>(ring_)).to_string();
  }
  if (nodes_ != nullptr) {
    nodes_->share_experts(std::move(common), experts_, page_fingerprint_);
    co_return;
  }
  const auto connected = co_await experts_.connect(runtime, std::move(common), comm::RankBlock::all(shape_),
                                                   runtime.now() + kConnectExpertsTimeout);
  if (connected.has_error()) throw ErrorException(connected.error());
}

DividedSharing::DividedSharing(const comm::SharedExperts::Shape& shape, int32_t local, uint64_t lookahead,
                               std::chrono::milliseconds silence)
    : first_ring_(0) {
  for (int32_t ring = 0; ring < local; ++ring) {
    parts_.push_back(std::make_unique<Part>(*this, shape, ring, silence));
  }
  group_ = std::make_unique<sched::StepGroup>(static_cast<uint32_t>(shape.ring_count), lookahead, end_parts(),
                                              random_first_epoch());
}

DividedSharing::DividedSharing(const comm::SharedExperts::Shape& shape, int32_t ring, std::chrono::milliseconds silence)
    : first_ring_(ring) {
  parts_.push_back(std::make_unique<Part>(*this, shape, ring, silence));
  remote_ = std::make_unique<sched::RemoteStepGroup>(static_cast<uint32_t>(ring),
                                                     static_cast<uint32_t>(shape.ring_count), end_parts());
}

DividedSharing::~DividedSharing() = default;

/// Returns what ends the exchanges with the steps.
sched::StepEpochs::EndFn DividedSharing::end_parts() {
  return [this](uint64_t epoch, int32_t ring, const std::string& reason) {
    for (const auto& part : parts_) part->experts().end(epoch, ring, reason);
  };
}

sched::StepEpochs& DividedSharing::epochs() {
  return group_ ? static_cast<sched::StepEpochs&>(*group_) : *remote_;
}

sched::EpochExchange& DividedSharing::exchange(int32_t ring, cluster::Coordinator* nodes,
                                               std::optional<model::RingContents> contents) {
  part(ring).set(nodes, contents);
  return part(ring);
}

std::string DividedSharing::page_fingerprint(int32_t ring) {
  return part(ring).page_fingerprint();
}

std::unique_ptr<tensor::ExpertExchange> DividedSharing::join(int32_t ring, StageId stage, uint32_t rank,
                                                             tensor::Backend& backend) {
  return part(ring).experts().join(stage, rank, backend);
}

}  // namespace millrace::app
