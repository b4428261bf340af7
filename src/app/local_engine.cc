#include "app/local_engine.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "app/auto_partition.h"
#include "app/cluster_head.h"
#include "app/devices.h"
#include "app/division_report.h"
#include "app/expert_sharing.h"
#include "app/head_pool_host.h"
#include "app/naming_ring_builder.h"
#include "app/node_stages.h"
#include "app/pool_report.h"
#include "app/pool_sizing.h"
#include "app/rank_processors.h"
#include "app/resolve_options.h"
#include "base/log.h"
#include "base/machine.h"
#include "model/adapt_config.h"
#include "model/cache_groups.h"
#include "model/families/read_config.h"
#include "model/part_estimate.h"
#include "model/stage_borders.h"
#include "model/tensor_list.h"
#include "sched/ring/in_process_ring_builder.h"
#include "sched/ring/ring.h"
#include "sched/ring/stepping_ring_builder.h"

namespace millrace::app {

LocalEngine::LocalEngine(const EngineOptions& options, const ClusterOptions& cluster_options, model::ModelConfig config,
                         std::vector<cluster::NodePart> parts, size_t vocab_size, ExpertSharing* sharing)
    : options_(options),
      cluster_options_(cluster_options),
      parts_(std::move(parts)),
      config_(std::move(config)),
      sampling_vocab_(static_cast<uint32_t>(std::min<size_t>(vocab_size, static_cast<size_t>(config_.vocab_size)))),
      expert_sharing_(sharing),
      engine_proxy_(model_info()) {}

Result<std::unique_ptr<LocalEngine>> LocalEngine::create(const EngineOptions& options,
                                                         const ClusterOptions& cluster_options, size_t vocab_size,
                                                         ExpertSharing* sharing) {
  auto config = model::read_config(options.model_path);
  if (config.has_error()) return config.error();
  if (options.stage.has_output_head && !config->has_output_head) {
    return make_error(ErrorCode::kInvalidArgument, "--runner generate: {} has no output head, so it generates nothing",
                      config->architecture);
  }
  config->has_output_head = options.stage.has_output_head;
  const auto resolved = resolve_options(options, *config);
  if (resolved.has_error()) return resolved.error();
  const auto parts =
      cluster::place_ranks(static_cast<uint32_t>(resolved->pp_size), static_cast<uint32_t>(resolved->tp_size),
                           static_cast<uint32_t>(cluster_options.node_count));
  if (parts.has_error()) return parts.error();
  return std::unique_ptr<LocalEngine>(
      new LocalEngine(*resolved, cluster_options, std::move(*config), *parts, vocab_size, sharing));
}

/// Returns what is known before the start. The cache's capacity, and its effect on the context, are not.
sched::ModelInfo LocalEngine::model_info() const {
  const int32_t context = options_.context_length > 0 ? options_.context_length : config_.context_length();
  return {.architecture = config_.architecture,
          .context_length = static_cast<uint32_t>(context),
          .vocab_size = sampling_vocab_,
          .hidden_size = static_cast<uint32_t>(config_.hidden_size),
          .generates = config_.has_output_head,
          .parameter_count = model::parameter_count(config_),
          .stage_count = static_cast<uint32_t>(options_.pp_size),
          .rank_count = static_cast<uint32_t>(options_.tp_size)};
}

Result<void> LocalEngine::start() {
  RETURN_IF_ERROR(load());
  const auto pages = first_pool_sizes(1);
  if (pages.has_error()) return pages.error();
  return start_ring(*pages);
}

std::vector<std::string> LocalEngine::device_names() const {
  return node_->memory().device_names();
}

void LocalEngine::interrupt() {
  const std::lock_guard lock(interrupt_mutex_);
  interrupted_ = true;
  interruption_.request_stop();
  if (cluster_) cluster_->interrupt();
}

std::vector<comm::LinkStats> LocalEngine::link_stats() const {
  const std::lock_guard lock(interrupt_mutex_);
  return cluster_ ? cluster_->coordinator().link_stats() : std::vector<comm::LinkStats>();
}

std::vector<cache::StageStoreStats> LocalEngine::store_stats() const {
  const std::lock_guard lock(interrupt_mutex_);
  std::vector<cache::StageStoreStats> all;
  if (stages_ != nullptr) all = stages_->store_stats();
  if (!cluster_) return all;
  for (const cache::StageStoreStats& each : cluster_->coordinator().store_stats()) all.push_back(each);
  return all;
}

std::vector<sched::StageGraphStats> LocalEngine::graph_stats() const {
  const std::lock_guard lock(interrupt_mutex_);
  return stages_ == nullptr ? std::vector<sched::StageGraphStats>() : stages_->graph_stats();
}

std::optional<uint64_t> LocalEngine::control_refusals() const {
  const std::lock_guard lock(interrupt_mutex_);
  return cluster_ ? std::optional(cluster_->coordinator().refusals()) : std::nullopt;
}

std::vector<cluster::NodeInfo> LocalEngine::nodes() const {
  const std::lock_guard lock(interrupt_mutex_);
  if (cluster_) return cluster_->coordinator().nodes();
  if (compute_.empty()) return {};
  return {{.rank = 0,
           .first_stage = 0,
           .stage_count = own_part().stage_count,
           .first_rank = 0,
           .rank_count = own_part().rank_count,
           .compute = compute_}};
}

void LocalEngine::expect_stop() {
  if (ring_) ring_->head().expect_stop();
}

cluster::remote::RingFacts LocalEngine::facts() const {
  std::string arithmetic =
      fmt::format("{}, revision {}{}", node_->compute(), tensor::kArithmeticRevision,
                  rounding_of_sums(static_cast<uint32_t>(options_.tp_size), options_.stage.reduce_dtype));
  return {.config = model::fingerprint(config_),
          .vocabulary = {},
          .arithmetic = std::move(arithmetic),
          .experts = expert_division(),
          .page_size = options_.stage.page_size};
}

/// Returns how the experts are divided, which all rings that share them agree on; empty: they are not.
std::string LocalEngine::expert_division() const {
  if (!options_.stage.shares_experts()) return {};
  std::vector<std::string> stages;
  for (const model::LayerRange& range : ranges_) stages.push_back(fmt::format("{}-{}", range.begin, range.end - 1));
  return fmt::format(
      "experts among {} rings of {} ranks, with up to {} rows each, {} page store, in stages of the layers {}",
      options_.stage.expert_rings, options_.tp_size, stage_config(options_, sampling_vocab_).max_batch_tokens,
      options_.node.storage.enabled() ? "with a" : "without", fmt::join(stages, ", "));
}

std::optional<model::RingContents> LocalEngine::contents() const {
  if (!options_.node.storage.enabled()) return std::nullopt;
  return model::ring_contents(node_->contents());
}

void LocalEngine::set_contents(std::span<const model::RingContents> rings) {
  fingerprint_ = model::page_fingerprint(rings).to_string();
}

LocalEngine::~LocalEngine() {
  if (ring_) ring_->stop();
  interrupt();
  head_thread_.join();
  if (node_) node_->join();
  ring_.reset();
}

Result<void> LocalEngine::load(std::span<const std::unique_ptr<LocalEngine>> earlier) {
  engine_proxy_.set_awaited("starting: the model is being loaded");
  if (earlier.empty()) {
    auto checkpoint = open_checkpoint(options_);
    if (checkpoint.has_error()) return checkpoint.error();
    checkpoint_ = std::move(*checkpoint);
  } else {
    checkpoint_ = earlier.front()->checkpoint_;
  }
  RETURN_IF_ERROR(model::adapt_to_checkpoint(*checkpoint_, config_));
  const auto device = choose_device(options_.node.device, options_.stage.dtype);
  if (device.has_error()) return device.error();
  const auto ranks_here = static_cast<int32_t>(own_part().rank_count);
  RETURN_IF_ERROR(check_exchange(options_, *device, ranks_here, cluster_options_.node_count));
  NodeStagesOptions node{.ranks = {.first = 0, .count = own_part().rank_count},
                         .stage = stage_config(options_, sampling_vocab_),
                         .node = options_.node,
                         .device = *device,
                         .context_length = static_cast<int32_t>(engine_proxy_.model_info().context_length),
                         .interrupted = &interrupted_};
  if (cluster_options_.node_count > 1) RETURN_IF_ERROR(open_cluster());
  const auto ranges = earlier.empty() ? divide_layers(node) : earlier.front()->ranges_;
  if (ranges.has_error()) return ranges.error();
  ranges_ = *ranges;
  engine_proxy_.set_awaited("starting: the model is being loaded");
  if (cluster_) cluster_->send_layers(ranges_);
  node.spans = model::stage_spans(ranges_);
  node.spans.resize(own_part().stage_count);
  std::vector<const NodeStages*> rings;
  for (const auto& ring : earlier) rings.push_back(ring->node_.get());
  auto loaded = NodeStages::load(*checkpoint_, config_, node, rings);
  if (loaded.has_error()) return loaded.error();
  node_ = std::move(*loaded);
  if (const auto own = contents(); own && expert_sharing_ == nullptr) set_contents({&*own, 1});
  const std::lock_guard lock(interrupt_mutex_);
  compute_ = node_->compute();
  return {};
}

Result<std::vector<model::LayerRange>> LocalEngine::divide_layers(const NodeStagesOptions& node) {
  const model::LayerPartition& partition = options_.layer_partition;
  const model::ModelConfig config = model::for_context(config_, node.context_length);
  if (partition.rule == model::LayerPartition::Rule::kAuto) {
    engine_proxy_.set_awaited("starting: the parts of the model are being timed");
    return auto_partition(*checkpoint_, config, node,
                          {.load = partition.load,
                           .stage_count = options_.pp_size,
                           .node_stage_count = static_cast<int32_t>(own_part().stage_count),
                           .node_rank_count = static_cast<int32_t>(own_part().rank_count)});
  }
  const bool by_hand = partition.rule == model::LayerPartition::Rule::kByHand;
  auto ranges = by_hand ? model::divide_by_hand(partition.sizes, config.layer_count(), options_.pp_size)
                        : model::divide_layers(config.layer_count(), options_.pp_size);
  if (ranges.has_value() && by_hand) RETURN_IF_ERROR(model::check_borders(config, *ranges));
  if (ranges.has_value() && !by_hand) ranges = model::move_borders(config, std::move(*ranges));
  if (ranges.has_value() && options_.pp_size > 1) {
    const model::ReferenceLoad load = reference_load(options_.stage.max_running, options_.pp_size);
    report_division(model::estimate_parts(config, load), load, *ranges);
  }
  return ranges;
}

/// Listens for the other nodes, so that a host that cannot listen fails before anything takes long.
Result<void> LocalEngine::open_cluster() {
  const std::string address = cluster_options_.address.to_string();
  const auto size_pools = [this](const cluster::LoadedRing& ring) { return pool_sizes(ring.page_capacity, ring); };
  auto cluster =
      std::make_unique<ClusterHead>(head_thread_, options_, cluster_options_, config_, sampling_vocab_, size_pools);
  cluster->coordinator().on_waiting([this](const std::string& what) { engine_proxy_.set_awaited(what); });
  engine_proxy_.set_awaited("starting: waiting for this host to be found at " + address);
  RETURN_IF_ERROR(cluster->open(interruption_.get_token()));
  engine_proxy_.set_awaited("starting: the model is being loaded");
  const std::lock_guard lock(interrupt_mutex_);
  cluster_ = std::move(cluster);
  cluster_->serve();  // also when interrupted: only serve() ends what listens
  if (interrupted_) return Error{ErrorCode::kAborted, "interrupted"};
  log::info("waiting at {} for the other nodes, {} with this one", address, cluster_options_.node_count);
  return {};
}

Result<cache::PoolSizes> LocalEngine::first_pool_sizes(uint32_t sharers) {
  const uint64_t own_capacity = node_->memory().page_capacity(memory_fraction(options_)) / sharers;
  cluster::LoadedRing others;
  if (cluster_) {
    auto loaded = cluster_->wait_until_loaded(node_->compute(), node_->contents());
    if (loaded.has_error()) return loaded.error();
    others = std::move(*loaded);
    fingerprint_ = others.fingerprint;
  }
  const uint32_t wanted = stage_config(options_, sampling_vocab_).wanted_pages;
  const uint32_t own_sequences = node_->memory().sequence_capacity(wanted, memory_fraction(options_), sharers);
  others.sequence_capacity = std::min(others.sequence_capacity, own_sequences);
  return pool_sizes(std::min(own_capacity, others.page_capacity), others);
}

/// Returns the pools that the flags ask for where memory holds `capacity` pages, within `limits`.
Result<cache::PoolSizes> LocalEngine::pool_sizes(uint64_t capacity, const cluster::LoadedRing& limits) const {
  const NodeMemory memory = node_->memory();
  return choose_pool_sizes(options_, config_,
                           {.node = memory,
                            .page_capacity = capacity,
                            .limits = limits,
                            .largest_node_ratio = largest_node_ratio(parts_, ranges_)});
}

Result<void> LocalEngine::start_ring(cache::PoolSizes pages) {
  const uint32_t wanted = engine_proxy_.model_info().context_length;
  sched::HeadOptions head = head_options(options_, config_, pages, wanted);
  const uint32_t context = head.scheduler.context_length;
  if (context < wanted) {
    log::warn("the KV cache holds {} tokens: requests are limited to them instead of {}", context, wanted);
  }
  if (!cluster_ && node_->on_host()) {
    const int32_t rings = options_.node.ring_count;
    head.scheduler.processors = std::max(1u, Machine().processors() / static_cast<uint32_t>(rings));
    const int32_t rank_count = options_.pp_size * options_.tp_size * rings;
    const int32_t rank_threads = threads_per_rank(options_.node.threads, rank_count);
    head.scheduler.stage_threads = static_cast<uint32_t>(rank_threads * options_.tp_size);
  }
  head.model = model_info();
  sched::RingConfig shape =
      sched::ring_config(stage_config(options_, sampling_vocab_), static_cast<uint32_t>(options_.pp_size),
                         static_cast<uint32_t>(config_.vocab_size), pages, model::CacheGroups(config_).windows());
  if (expert_sharing_ != nullptr && !cluster_) {
    shape.make_expert_exchange = [this](StageId stage, uint32_t rank, tensor::Backend* backend) {
      return expert_sharing_->join(own_expert_ring(), stage, rank, *backend);
    };
  }
  RETURN_IF_ERROR(node_->make_stages(head_thread_.runtime(), shape, fingerprint_));
  set_stages(&node_->stages());
  make_ring(head, shape);
  ring_->start();
  engine_proxy_.set_awaited("");
  engine_proxy_.set_engine(ring_->head());
  const tensor::KvDType kv_dtype = options_.stage.kv_dtype;
  log::info("KV cache: {} pages of {} tokens{}; context {}; window of {} micro-batches", pages.device,
            options_.stage.page_size,
            kv_dtype == tensor::KvDType::kAuto ? "" : fmt::format(" in {}", enum_name(kv_dtype)), context,
            head.scheduler.window);
  report_pools(head.scheduler);
  return {};
}

void LocalEngine::set_stages(const sched::LocalStages* stages) {
  const std::lock_guard lock(interrupt_mutex_);
  stages_ = stages;
}

/// Makes the stages of a ring of one process with other names of stored pages, while none of them runs.
Result<sched::LocalStages*> LocalEngine::make_stages_again(const sched::RingConfig& shape,
                                                           const std::string& fingerprint) {
  set_stages(nullptr);
  if (node_->made()) node_->destroy_stages();
  RETURN_IF_ERROR(node_->make_stages(head_thread_.runtime(), shape, fingerprint));
  set_stages(&node_->stages());
  return &node_->stages();
}

void LocalEngine::make_ring(const sched::HeadOptions& head, const sched::RingConfig& shape) {
  async::Runtime& runtime = head_thread_.runtime();
  cluster::Coordinator* const nodes = cluster_ ? &cluster_->coordinator() : nullptr;
  sched::RingBuilder* builder = nodes;
  if (builder == nullptr && options_.node.storage.enabled() && fingerprint_.empty()) {
    naming_builder_ = std::make_unique<NamingRingBuilder>(
        runtime, shape, [this] { return expert_sharing_->page_fingerprint(own_expert_ring()); },
        [this, shape](const std::string& fingerprint) { return make_stages_again(shape, fingerprint); });
    builder = naming_builder_.get();
  }
  if (builder == nullptr) {
    ring_builder_ = std::make_unique<sched::InProcessRingBuilder>(runtime, node_->stages(), shape);
    builder = ring_builder_.get();
  }
  if (expert_sharing_ != nullptr) {
    stepping_builder_ = std::make_unique<sched::SteppingRingBuilder>(
        runtime, *builder, expert_sharing_->epochs(), options_.stage.expert_ring,
        expert_sharing_->exchange(own_expert_ring(), nodes, nodes == nullptr ? contents() : std::nullopt));
    builder = stepping_builder_.get();
  }
  ring_ = std::make_unique<sched::Ring>(runtime, head, *builder);
  if (nodes == nullptr) return;
  pool_host_ = std::make_unique<HeadPoolHost>(*node_, runtime, config_, stage_config(options_, sampling_vocab_),
                                              [this](const sched::LocalStages* stages) { set_stages(stages); });
  const cache::PoolSizes pages = sched::first_pools(head.scheduler);
  asio::post(head_thread_.context(), [this, pages, nodes] {
    nodes->set_local(*pool_host_, node_->stages(), pages);
    nodes->on_lost([this](const std::string& reason) { ring_->head().break_ring(reason); });
    nodes->on_quiet([this](const std::string& what) { ring_->head().set_stall(what); });
  });
}

}  // namespace millrace::app
