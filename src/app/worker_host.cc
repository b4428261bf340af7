#include "app/worker_host.h"

#include "app/devices.h"
#include "cluster/node_link.h"

namespace millrace::app {
namespace {

/// Returns the part of an assignment that the loops are made from. A head's identity and its share of the memory do not
/// belong to it.
cluster::Assignment loops_part(cluster::Assignment assignment) {
  assignment.ring_id = 0;
  assignment.stage.memory_fraction = 0;
  assignment.stage.wanted_pages = 0;
  return assignment;
}

/// Returns the part of an assignment that weights and scratch memory follow from.
cluster::Assignment weights_part(cluster::Assignment assignment) {
  assignment = loops_part(std::move(assignment));
  assignment.stage_count = 0;
  assignment.stage.window = 0;
  assignment.stage.sampling_vocab = 0;
  assignment.stage.watchdog = {};
  return assignment;
}

/// Returns the tokens of the longest sequence that the head admits.
int32_t context_of(const sched::StageConfig& stage, const model::ModelConfig& config) {
  return stage.context_length > 0 ? static_cast<int32_t>(stage.context_length) : config.context_length();
}

}  // namespace

WorkerHost::WorkerHost(async::Runtime& control, const model::ModelConfig& config, const model::Checkpoint& checkpoint,
                       const EngineOptions& options, const std::atomic<bool>& interrupted)
    : control_(control),
      config_(config),
      checkpoint_(checkpoint),
      node_options_(options.node),
      isa_(options.stage.isa),
      interrupted_(interrupted) {}

Result<cluster::Loaded> WorkerHost::load(const cluster::Assignment& assignment) {
  if (assignment.stage.has_store && !node_options_.storage.enabled()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the ring keeps pages in a store: start this node with --enable-hierarchical-cache and "
                      "--hicache-storage-backend too");
  }
  if (!node_ || weights_part(assignment) != weights_part(*loaded_)) {
    node_.reset();
    made_for_.reset();
    auto node = load_node(assignment);
    if (node.has_error()) return node.error();
    node_ = std::move(*node);
  }
  const bool same_ring = loaded_ && *loaded_ == assignment;
  loaded_ = assignment;
  if (!same_ring || !made_for_) return measure();
  cluster::Loaded kept = loaded_report(*node_, assignment.stage);
  kept.pools = made_for_->pages;
  kept.page_capacity = made_for_->pages.device;
  kept.sequence_capacity = made_for_->pages.sequences;
  return kept;
}

Result<cluster::Loaded> WorkerHost::measure() {
  if (!node_) return make_error(ErrorCode::kInternal, "nothing is loaded");
  destroy_loops();
  return loaded_report(*node_, loaded_->stage);
}

Result<sched::LocalStages*> WorkerHost::stages(const cluster::Assignment& assignment, cache::PoolSizes pages,
                                               const std::string& fingerprint) {
  if (!node_) return make_error(ErrorCode::kInternal, "nothing is loaded");
  const Purpose purpose{loops_part(assignment), pages, fingerprint};
  if (purpose != made_for_) destroy_loops();
  if (!node_->made()) {
    RETURN_IF_ERROR(node_->make_stages(control_, cluster::ring_shape(assignment, config_, pages), fingerprint));
    made_for_ = purpose;
  }
  return &node_->stages();
}

void WorkerHost::join() {
  if (node_) node_->join();
}

Result<std::unique_ptr<NodeStages>> WorkerHost::load_node(const cluster::Assignment& assignment) {
  const auto device = choose_device(node_options_.device, assignment.stage.dtype);
  if (device.has_error()) return device.error();
  NodeStagesOptions options{.first = StageId(assignment.first_stage),
                            .ranks = {.first = assignment.first_rank, .count = assignment.rank_count},
                            .stage = assignment.stage,
                            .node = node_options_,
                            .device = *device,
                            .context_length = context_of(assignment.stage, config_),
                            .interrupted = &interrupted_};
  for (const model::LayerRange& range : assignment.layers) {
    options.spans.push_back({.layers = range, .first = range.begin == 0, .last = range.end == config_.layer_count()});
  }
  if (!options.stage.isa) options.stage.isa = isa_;
  return NodeStages::load(checkpoint_, config_, options);
}

void WorkerHost::destroy_loops() {
  if (node_->made()) node_->destroy_stages();
  made_for_.reset();
}

}  // namespace millrace::app
