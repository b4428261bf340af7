#include "app/local_rings.h"

#include <algorithm>
#include <map>

#include "base/log.h"
#include "base/log_label.h"
#include "cluster/node_reports.h"
#include "cpu/cpu_backend.h"
#include "server/observe/link_metrics.h"
#include "server/observe/ring_labels.h"
#include "server/observe/stage_metrics.h"

namespace millrace::app {
namespace {

/// Begins the log lines of this thread, and of the threads that it creates, with the ring. Does nothing for one ring.
class RingLabel {
 public:
  RingLabel(int32_t ring, int32_t ring_count) {
    if (ring_count > 1) log::label_thread(fmt::format("ring {}", ring));
  }
  ~RingLabel() { log::label_thread(""); }
  RingLabel(const RingLabel&) = delete;
  RingLabel& operator=(const RingLabel&) = delete;
};

void append_ring_metrics(std::string& out, const LocalEngine& ring) {
  server::append_link_metrics(out, ring.link_stats());
  server::append_control_metrics(out, ring.control_refusals());
  server::append_store_metrics(out, ring.store_stats());
  server::append_decode_metrics(out, ring.graph_stats());
}

}  // namespace

Result<std::unique_ptr<LocalRings>> LocalRings::create(const EngineOptions& options,
                                                       const ClusterOptions& cluster_options, size_t vocab_size,
                                                       model::Fingerprint vocabulary) {
  const RingPlacement& placement = cluster_options.rings;
  const int32_t first = placement.number.value_or(0);
  const int32_t local = placement.number ? 1 : placement.local > 0 ? placement.local : options.dp_size;
  std::unique_ptr<LocalRings> all(new LocalRings());
  all->vocabulary_ = vocabulary;
  const bool shares_experts = options.enable_ep && options.dp_size > 1;
  if (shares_experts) RETURN_IF_ERROR(all->share_experts(options, placement, local));
  for (int32_t ring = 0; ring < local; ++ring) {
    const RingLabel label(first + ring, options.dp_size);
    EngineOptions ring_options = options;
    ring_options.node.ring = ring;
    ring_options.node.ring_count = local;
    if (shares_experts) {
      ring_options.stage.expert_ring = static_cast<uint32_t>(first + ring);
      ring_options.stage.expert_rings = static_cast<uint32_t>(options.dp_size);
    }
    auto engine = LocalEngine::create(ring_options, cluster_options, vocab_size, all->expert_sharing_.get());
    if (engine.has_error()) return engine.error();
    all->rings_.push_back(std::move(*engine));
  }
  if (placement.number) return all;
  if (local < options.dp_size) {
    sched::StepGroup* const steps = all->divided_sharing_ == nullptr ? nullptr : all->divided_sharing_->front_steps();
    all->remote_ = std::make_unique<RemoteRings>(placement, static_cast<uint32_t>(local),
                                                 static_cast<uint32_t>(options.dp_size - local),
                                                 options.node.ring_timeout, all->rings_.front()->engine(), steps);
  }
  if (options.dp_size > 1) all->make_router(options);
  return all;
}

/// Makes what the `local` rings of this process share with all others.
Result<void> LocalRings::share_experts(const EngineOptions& options, const RingPlacement& placement, int32_t local) {
  if (options.tp_size == 0 || options.dp_size * options.tp_size > tensor::kSumShards) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--enable-ep with --dp-size {} and --tp-size {}: experts are divided over at most {} ranks, "
                      "whose number is given",
                      options.dp_size, options.tp_size == 0 ? "auto" : std::to_string(options.tp_size),
                      tensor::kSumShards);
  }
  const comm::SharedExperts::Shape shape{
      .ring_count = options.dp_size, .rank_count = options.tp_size, .stage_count = options.pp_size};
  const auto lookahead = static_cast<uint64_t>(options.step_lookahead);
  if (local == options.dp_size) {
    expert_sharing_ = std::make_unique<LocalSharing>(shape, lookahead);
    return {};
  }
  auto divided = placement.number
                     ? std::make_unique<DividedSharing>(shape, *placement.number, options.node.ring_timeout)
                     : std::make_unique<DividedSharing>(shape, local, lookahead, options.node.ring_timeout);
  divided_sharing_ = divided.get();
  expert_sharing_ = std::move(divided);
  return {};
}

sched::RemoteStepGroup* LocalRings::ring_steps() {
  return divided_sharing_ == nullptr ? nullptr : divided_sharing_->ring_steps();
}

void LocalRings::expect_stop() {
  for (const auto& ring : rings_) ring->expect_stop();
}

void LocalRings::make_router(const EngineOptions& options) {
  std::vector<sched::Engine*> engines;
  for (const auto& ring : rings_) engines.push_back(&ring->engine());
  if (remote_) {
    for (const auto& ring : remote_->engines()) engines.push_back(ring.get());
  }
  router_thread_ = std::make_unique<async::IoThread>("router");
  router_tasks_ = std::make_unique<async::TaskGroup>(router_thread_->runtime());
  router_ =
      std::make_unique<sched::RingRouter>(router_thread_->runtime(), std::move(engines),
                                          sched::RouterOptions{.method = options.load_balance,
                                                               .max_running = options.stage.max_running,
                                                               .page_size = options.stage.page_size,
                                                               .share_prefixes = options.head.scheduler.share_prefixes,
                                                               .queue_timeout = options.head.queue_timeout});
  asio::post(router_thread_->context(), [this] { router_tasks_->spawn("router", router_->run()); });
}

LocalRings::~LocalRings() {
  expect_stop();  // rings that share experts end when the first does
  if (!router_) return;
  router_->stop();
  router_thread_->join();
}

Result<void> LocalRings::start() {
  if (remote_) RETURN_IF_ERROR(remote_->listen(interruption_.get_token()));
  RETURN_IF_ERROR(router_ ? start_local() : rings_.front()->start());
  if (remote_) remote_->serve(facts());
  return {};
}

cluster::remote::RingFacts LocalRings::facts() const {
  cluster::remote::RingFacts facts = rings_.front()->facts();
  facts.vocabulary = vocabulary_;
  return facts;
}

/// Starts the rings of this process once all are loaded, so that each finds its part of the memory.
Result<void> LocalRings::start_local() {
  for (size_t ring = 0; ring < rings_.size(); ++ring) {
    const RingLabel label(static_cast<int32_t>(ring), static_cast<int32_t>(ring_count()));
    RETURN_IF_ERROR(rings_[ring]->load(std::span(rings_).first(ring)));
  }
  log::info("the rings have {:.1f} MB of packed weights in host memory",
            static_cast<double>(cpu::packed_bytes()) / 1e6);
  if (expert_sharing_ && divided_sharing_ == nullptr) share_contents();
  const std::vector<uint32_t> sharers = rings_per_device();
  std::vector<cache::PoolSizes> pages;
  for (size_t ring = 0; ring < rings_.size(); ++ring) {
    const RingLabel label(static_cast<int32_t>(ring), static_cast<int32_t>(ring_count()));
    const auto sizes = rings_[ring]->first_pool_sizes(sharers[ring]);
    if (sizes.has_error()) return sizes.error();
    pages.push_back(*sizes);
  }
  for (size_t ring = 0; ring < rings_.size(); ++ring) {
    const RingLabel label(static_cast<int32_t>(ring), static_cast<int32_t>(ring_count()));
    RETURN_IF_ERROR(rings_[ring]->start_ring(pages[ring]));
  }
  return {};
}

/// Gives all rings the same names of stored pages, which follow from the experts of each.
void LocalRings::share_contents() {
  std::vector<model::RingContents> all;
  for (const auto& ring : rings_) {
    const auto contents = ring->contents();
    if (!contents) return;  // there is no store
    all.push_back(*contents);
  }
  for (const auto& ring : rings_) ring->set_contents(all);
}

/// Returns per ring how many rings there are on the device that it shares with most others.
std::vector<uint32_t> LocalRings::rings_per_device() const {
  std::map<std::string, uint32_t> users;
  for (const auto& ring : rings_) {
    for (const std::string& device : ring->device_names()) ++users[device];
  }
  std::vector<uint32_t> sharers;
  for (const auto& ring : rings_) {
    uint32_t most = 1;
    for (const std::string& device : ring->device_names()) most = std::max(most, users[device]);
    sharers.push_back(most);
  }
  return sharers;
}

void LocalRings::interrupt() {
  interruption_.request_stop();
  for (const auto& ring : rings_) ring->interrupt();
}

sched::Engine& LocalRings::engine() {
  return router_ ? static_cast<sched::Engine&>(*router_) : rings_.front()->engine();
}

void LocalRings::append_metrics(std::string& out) const {
  if (!router_) {
    append_ring_metrics(out, *rings_.front());
    return;
  }
  std::vector<std::string> texts(rings_.size());
  for (size_t ring = 0; ring < rings_.size(); ++ring) append_ring_metrics(texts[ring], *rings_[ring]);
  if (remote_) {
    for (const auto& ring : remote_->engines()) texts.push_back(ring->node_metrics());
  }
  server::append_ring_labelled(out, texts);
}

std::vector<std::vector<cluster::NodeInfo>> LocalRings::nodes() const {
  std::vector<std::vector<cluster::NodeInfo>> all;
  for (const auto& ring : rings_) all.push_back(ring->nodes());
  if (!remote_) return all;
  for (const auto& ring : remote_->engines()) {
    all.emplace_back();
    const std::string arithmetic = ring->arithmetic();
    if (arithmetic.empty()) continue;
    const sched::ModelInfo model = ring->model_info();
    all.back().push_back({.rank = 0,
                          .first_stage = 0,
                          .stage_count = model.stage_count,
                          .first_rank = 0,
                          .rank_count = model.rank_count,
                          .compute = arithmetic});
  }
  return all;
}

}  // namespace millrace::app
