#include "app/cluster_head.h"

#include <random>

#include "cluster/placement.h"

namespace millrace::app {
namespace {

/// Returns one assignment per node. Of the layers it has the number only: they are divided later.
std::vector<cluster::Assignment> assignments_for(const EngineOptions& options, int32_t node_count,
                                                 uint32_t sampling_vocab) {
  std::random_device random;
  const uint64_t ring_id = (uint64_t{random()} << 32) | random();
  const sched::StageConfig stage = stage_config(options, sampling_vocab);
  std::vector<cluster::Assignment> assignments;
  const auto parts =
      cluster::place_ranks(static_cast<uint32_t>(options.pp_size), stage.rank_count, static_cast<uint32_t>(node_count));
  for (const cluster::NodePart& part : parts.value()) {
    assignments.push_back({.ring_id = ring_id,
                           .first_stage = part.first_stage,
                           .stage_count = static_cast<uint32_t>(options.pp_size),
                           .first_rank = part.first_rank,
                           .rank_count = part.rank_count,
                           .layers = std::vector<model::LayerRange>(part.stage_count),
                           .stage = stage});
  }
  return assignments;
}

cluster::CoordinatorOptions coordinator_options(const EngineOptions& options, const ClusterOptions& cluster_options,
                                                const model::ModelConfig& config, uint32_t sampling_vocab,
                                                ClusterHead::PoolSizer pool_sizes) {
  cluster::CoordinatorOptions coordinator;
  coordinator.pool_sizes = std::move(pool_sizes);
  coordinator.address = cluster_options.address;
  coordinator.assignments = assignments_for(options, cluster_options.node_count, sampling_vocab);
  coordinator.config = config;
  coordinator.require_channels = options.node.nccl == NcclMode::kOn;
  coordinator.transfer_timeout = options.node.nccl_timeout;
  coordinator.timing.silence_limit = options.node.ring_timeout;
  return coordinator;
}

}  // namespace

ClusterHead::ClusterHead(async::IoThread& head_thread, const EngineOptions& options,
                         const ClusterOptions& cluster_options, const model::ModelConfig& config,
                         uint32_t sampling_vocab, PoolSizer pool_sizes)
    : head_thread_(head_thread),
      tasks_(head_thread.runtime()),
      coordinator_(head_thread.runtime(),
                   coordinator_options(options, cluster_options, config, sampling_vocab, std::move(pool_sizes))) {}

Result<void> ClusterHead::open(const std::stop_token& stop) {
  return coordinator_.open(stop);
}

void ClusterHead::serve() {
  asio::post(head_thread_.context(), [this] { tasks_.spawn("coordinator", coordinator_.serve()); });
}

void ClusterHead::interrupt() {
  asio::post(head_thread_.context(), [this] { coordinator_.interrupt(); });
}

void ClusterHead::send_layers(const std::vector<model::LayerRange>& ranges) {
  asio::post(head_thread_.context(), [this, ranges] { coordinator_.set_layers(ranges); });
}

asio::awaitable<void> ClusterHead::await_nodes(std::string compute, model::PageContents contents,
                                               std::promise<Result<cluster::LoadedRing>>& loaded) {
  Result<cluster::LoadedRing> ring = Error{};
  try {
    ring = co_await coordinator_.wait_until_loaded(std::move(compute), std::move(contents));
  } catch (const ErrorException& failure) {
    ring = failure.error();
  }
  loaded.set_value(std::move(ring));
}

Result<cluster::LoadedRing> ClusterHead::wait_until_loaded(std::string compute, model::PageContents contents) {
  std::promise<Result<cluster::LoadedRing>> loaded;
  asio::post(head_thread_.context(),
             [&] { tasks_.spawn("wait for nodes", await_nodes(std::move(compute), std::move(contents), loaded)); });
  return loaded.get_future().get();
}

}  // namespace millrace::app
