#include "app/local_engine.h"

#include <algorithm>
#include <future>
#include <random>

#include "app/auto_partition.h"
#include "base/log.h"
#include "base/machine.h"
#include "model/tensor_list.h"

namespace millrace::app {

LocalEngine::LocalEngine(const EngineOptions& options, const ClusterOptions& cluster_options, model::ModelConfig config,
                         size_t vocab_size)
    : options_(options),
      cluster_options_(cluster_options),
      config_(std::move(config)),
      sampling_vocab_(static_cast<uint32_t>(std::min<size_t>(vocab_size, static_cast<size_t>(config_.vocab_size)))),
      engine_proxy_(model_info()) {}

Result<std::unique_ptr<LocalEngine>> LocalEngine::create(const EngineOptions& options,
                                                         const ClusterOptions& cluster_options, size_t vocab_size) {
  auto config = model::read_config(options.model_path);
  if (config.has_error()) return config.error();
  if (options.context_length > config->context_length()) {
    return make_error(ErrorCode::kInvalidArgument, "--context-length {}: the model was made for {} tokens",
                      options.context_length, config->context_length());
  }
  if (cluster_options.node_count > options.pp_size) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--nnodes {} is more than --pp-size {}: a node hosts one stage at least",
                      cluster_options.node_count, options.pp_size);
  }
  return std::unique_ptr<LocalEngine>(new LocalEngine(options, cluster_options, std::move(*config), vocab_size));
}

/// The cache's capacity, and what it means for the context, come with the start.
sched::ModelInfo LocalEngine::model_info() const {
  const int32_t context = options_.context_length > 0 ? options_.context_length : config_.context_length();
  return {config_.architecture,
          static_cast<uint32_t>(context),
          sampling_vocab_,
          model::parameter_count(config_),
          static_cast<uint32_t>(options_.pp_size),
          0};
}

Result<void> LocalEngine::start() {
  engine_proxy_.set_awaited("starting: the model is being loaded");
  RETURN_IF_ERROR(load());
  const auto pages = page_count();
  if (pages.has_error()) return pages.error();
  return start_ring(*pages);
}

void LocalEngine::interrupt() {
  const std::lock_guard lock(interrupt_mutex_);
  interrupted_ = true;
  interruption_.request_stop();
  if (coordinator_) asio::post(head_thread_.context(), [this] { coordinator_->interrupt(); });
}

std::vector<comm::LinkStats> LocalEngine::link_stats() const {
  const std::lock_guard lock(interrupt_mutex_);
  return coordinator_ ? coordinator_->link_stats() : std::vector<comm::LinkStats>();
}

std::vector<cache::StageStoreStats> LocalEngine::store_stats() const {
  const std::lock_guard lock(interrupt_mutex_);
  std::vector<cache::StageStoreStats> all;
  if (stages_ != nullptr) all = stages_->store_stats();
  if (!coordinator_) return all;
  for (const cache::StageStoreStats& each : coordinator_->store_stats()) all.push_back(each);
  return all;
}

std::vector<sched::StageGraphStats> LocalEngine::graph_stats() const {
  const std::lock_guard lock(interrupt_mutex_);
  return stages_ == nullptr ? std::vector<sched::StageGraphStats>() : stages_->graph_stats();
}

std::optional<uint64_t> LocalEngine::control_refusals() const {
  const std::lock_guard lock(interrupt_mutex_);
  return coordinator_ ? std::optional(coordinator_->refusals()) : std::nullopt;
}

std::vector<cluster::NodeInfo> LocalEngine::nodes() const {
  const std::lock_guard lock(interrupt_mutex_);
  if (coordinator_) return coordinator_->nodes();
  if (compute_.empty()) return {};
  return {{0, 0, static_cast<uint32_t>(options_.pp_size), compute_}};
}

LocalEngine::~LocalEngine() {
  if (ring_) ring_->stop();
  interrupt();
  head_thread_.join();
  if (node_) node_->join();
  ring_.reset();
}

Result<void> LocalEngine::load() {
  auto checkpoint = model::Checkpoint::open(options_.model_path);
  if (checkpoint.has_error()) return checkpoint.error();
  checkpoint_ = std::move(*checkpoint);
  RETURN_IF_ERROR(model::untie_separate_head(*checkpoint_, config_));
  NodeStagesOptions node;
  node.dtype = options_.dtype;
  const auto device = choose_device(options_.device, options_.dtype);
  if (device.has_error()) return device.error();
  node.device = *device;
  node.cuda_graphs = options_.cuda_graphs;
  node.cuda_products = options_.cuda_products;
  node.divide_gpu = options_.divide_gpu;
  node.nccl = options_.nccl;
  node.cpu_isa = options_.cpu_isa;
  node.quantization = options_.quantization;
  node.threads = options_.threads;
  node.pin_threads = options_.pin_threads;
  node.max_batch_tokens = static_cast<int32_t>(max_batch_tokens(options_));
  node.max_running = options_.max_running_requests;
  node.max_draft_rows = static_cast<int32_t>(max_draft_rows(options_));
  node.page_size = options_.page_size;
  node.context_length = static_cast<int32_t>(engine_proxy_.model_info().context_length);
  node.storage = options_.storage;
  node.interrupted = &interrupted_;
  if (cluster_options_.node_count > 1) RETURN_IF_ERROR(open_coordinator());
  if (options_.layer_partition == "auto") engine_proxy_.set_awaited("starting: the parts of the model are being timed");
  const auto ranges = layer_ranges(node);
  if (ranges.has_error()) return ranges.error();
  engine_proxy_.set_awaited("starting: the model is being loaded");
  send_layers(*ranges);
  node.spans = model::stage_spans(*ranges);
  node.spans.resize(static_cast<size_t>(stages_of_nodes().front().size()));
  auto loaded = NodeStages::load(*checkpoint_, config_, node);
  if (loaded.has_error()) return loaded.error();
  node_ = std::move(*loaded);
  if (options_.storage.enabled()) fingerprint_ = model::fingerprint(node_->contents()).to_string();
  const std::lock_guard lock(interrupt_mutex_);
  compute_ = node_->compute();
  return {};
}

Result<std::vector<model::LayerRange>> LocalEngine::layer_ranges(const NodeStagesOptions& node) const {
  const std::string& partition = options_.layer_partition;
  if (partition == "auto") {
    return auto_partition(*checkpoint_, config_, node, stages_of_nodes().front().size(), options_.pp_size);
  }
  if (partition == "even") return model::divide_layers(config_.layer_count, options_.pp_size);
  return model::parse_partition(partition, config_.layer_count, options_.pp_size);
}

/// Stages are dealt to the nodes as layers to the stages: evenly, the remainder to later ones.
std::vector<model::LayerRange> LocalEngine::stages_of_nodes() const {
  return model::divide_layers(options_.pp_size, cluster_options_.node_count).value();
}

/// All but the layers themselves.
std::vector<cluster::Assignment> LocalEngine::assignments() const {
  std::random_device random;
  const uint64_t ring_id = (uint64_t{random()} << 32) | random();
  std::vector<cluster::Assignment> assigned;
  for (const model::LayerRange& stages : stages_of_nodes()) {
    cluster::Assignment assignment;
    assignment.ring_id = ring_id;
    assignment.first_stage = static_cast<uint32_t>(stages.begin);
    assignment.stage_count = static_cast<uint32_t>(options_.pp_size);
    assignment.layers.resize(static_cast<size_t>(stages.size()));
    assignment.page_size = static_cast<uint32_t>(options_.page_size);
    assignment.max_batch_tokens = max_batch_tokens(options_);
    assignment.max_running = static_cast<uint32_t>(options_.max_running_requests);
    assignment.max_draft_rows = max_draft_rows(options_);
    assignment.window = window(options_);
    assignment.sampling_vocab = sampling_vocab_;
    assignment.memory_fraction = options_.memory_fraction;
    assignment.dtype = options_.dtype;
    assignment.cpu_isa = options_.cpu_isa;
    assignment.quantization = options_.quantization;
    assignment.watchdog_ns = duration_of(options_.watchdog_timeout_s).count();
    assignment.has_store = options_.storage.enabled();
    assigned.push_back(std::move(assignment));
  }
  return assigned;
}

/// Listens for the other nodes; that this host cannot is told before anything takes long.
Result<void> LocalEngine::open_coordinator() {
  cluster::CoordinatorOptions options;
  options.address = cluster_options_.address;
  options.assignments = assignments();
  options.config = config_;
  options.require_channels = options_.nccl == "on";
  options.transfer_timeout =
      std::chrono::duration_cast<std::chrono::milliseconds>(duration_of(options_.nccl_timeout_s));
  options.timing.silence_limit = duration_of(options_.ring_timeout_s);
  auto coordinator = std::make_unique<cluster::Coordinator>(head_thread_.runtime(), options);
  coordinator->on_waiting([this](const std::string& what) { engine_proxy_.set_awaited(what); });
  engine_proxy_.set_awaited("starting: waiting for this host to be found at " + cluster_options_.address.to_string());
  RETURN_IF_ERROR(coordinator->open(interruption_.get_token()));
  engine_proxy_.set_awaited("starting: the model is being loaded");
  const std::lock_guard lock(interrupt_mutex_);
  coordinator_ = std::move(coordinator);  // also when interrupted: what listens ends by serve() alone
  asio::post(head_thread_.context(), [this] { head_tasks_.spawn("coordinator", coordinator_->serve()); });
  if (interrupted_) return Error{ErrorCode::kAborted, "interrupted"};
  log::info("waiting at {} for the other nodes, {} with this one", cluster_options_.address.to_string(),
            cluster_options_.node_count);
  return {};
}

/// To this engine and, where there are any, to the other nodes.
void LocalEngine::send_layers(const std::vector<model::LayerRange>& ranges) {
  const auto layers_of = [&](const model::LayerRange& stages) {
    return ranges[static_cast<size_t>(stages.end - 1)].end - ranges[static_cast<size_t>(stages.begin)].begin;
  };
  const std::vector<model::LayerRange> nodes = stages_of_nodes();
  const double own_layers = std::max(1, layers_of(nodes.front()));
  for (const model::LayerRange& each : nodes) largest_node_ = std::max(largest_node_, layers_of(each) / own_layers);
  if (coordinator_) asio::post(head_thread_.context(), [this, ranges] { coordinator_->set_layers(ranges); });
}

asio::awaitable<void> LocalEngine::await_nodes(std::promise<Result<LoadedRing>>& loaded) {
  Result<LoadedRing> ring = Error{};
  try {
    ring = co_await coordinator_->wait_until_loaded(node_->compute(), node_->contents());
  } catch (const ErrorException& failure) {
    ring = failure.error();
  }
  loaded.set_value(std::move(ring));
}

Result<LocalEngine::LoadedRing> LocalEngine::wait_for_nodes() {
  std::promise<Result<LoadedRing>> loaded;
  asio::post(head_thread_.context(), [&] { head_tasks_.spawn("wait for nodes", await_nodes(loaded)); });
  return loaded.get_future().get();
}

Result<uint32_t> LocalEngine::page_count() {
  uint64_t capacity = node_->page_capacity(options_.memory_fraction);
  if (coordinator_) {
    const auto ring = wait_for_nodes();
    if (ring.has_error()) return ring.error();
    capacity = std::min(capacity, ring->page_capacity);
    fingerprint_ = ring->fingerprint;
  }
  if (options_.hierarchical_cache && options_.host_cache_gb <= 0 && node_->on_host()) {
    capacity = static_cast<uint64_t>(static_cast<double>(capacity) / (1 + options_.host_cache_ratio));
  }
  const uint32_t pages = pool_pages(options_, config_.context_length(), capacity);
  if (pages == 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "no room for a KV cache page of {} tokens: raise --max-total-tokens or --mem-fraction-static",
                      options_.page_size);
  }
  return pages;
}

uint32_t LocalEngine::host_page_count(uint32_t page_count) const {
  if (!options_.hierarchical_cache) return 0;
  const double pages = options_.host_cache_gb > 0 ? options_.host_cache_gb * 1e9 / largest_node_ /
                                                        static_cast<double>(node_->page_bytes(options_.page_size))
                                                  : options_.host_cache_ratio * page_count;
  return static_cast<uint32_t>(std::clamp(pages, 1.0, 0x1p31));
}

Result<void> LocalEngine::start_ring(uint32_t page_count) {
  const auto page_size = static_cast<uint32_t>(options_.page_size);
  const uint64_t capacity = uint64_t{page_count} * page_size;
  const uint32_t wanted = engine_proxy_.model_info().context_length;
  const auto context = static_cast<uint32_t>(std::min<uint64_t>(wanted, capacity));
  if (context < wanted) {
    log::warn("the KV cache holds {} tokens: requests are limited to them instead of {}", context, wanted);
  }
  sched::HeadOptions head = head_options(options_, config_, page_count, host_page_count(page_count), context);
  if (!coordinator_ && node_->on_host()) {
    head.scheduler.processors = Machine().processors();
    head.scheduler.stage_threads = static_cast<uint32_t>(threads_per_stage(options_.threads, options_.pp_size));
  }
  head.model = model_info();
  head.model.context_length = context;
  head.model.kv_token_capacity = capacity;

  const sched::StageBounds bounds{.slot_count = head.scheduler.max_running,
                                  .page_size = page_size,
                                  .page_count = page_count,
                                  .max_batch_tokens = max_batch_tokens(options_),
                                  .vocab_size = static_cast<uint32_t>(config_.vocab_size),
                                  .host_page_count = head.scheduler.host_page_count,
                                  .sampling_vocab = sampling_vocab_};

  const sched::RingConfig shape{static_cast<uint32_t>(options_.pp_size), head.scheduler.window, bounds, head.watchdog};
  async::Runtime& runtime = head_thread_.runtime();
  RETURN_IF_ERROR(node_->make_stages(runtime, shape, fingerprint_));
  {
    const std::lock_guard lock(interrupt_mutex_);
    stages_ = &node_->stages();
  }
  if (coordinator_) {
    ring_ = std::make_unique<sched::Ring>(runtime, head, *coordinator_);
    asio::post(head_thread_.context(), [this, pages = cluster::PoolSizes{page_count, head.scheduler.host_page_count}] {
      coordinator_->set_local(node_->stages(), pages);
      coordinator_->on_lost([this](const std::string& reason) { ring_->head().break_ring(reason); });
      coordinator_->on_quiet([this](const std::string& what) { ring_->head().set_stall(what); });
    });
  } else {
    ring_builder_ = std::make_unique<sched::InProcessRingBuilder>(runtime, node_->stages(), shape);
    ring_ = std::make_unique<sched::Ring>(runtime, head, *ring_builder_);
  }
  ring_->start();
  engine_proxy_.set_awaited("");
  engine_proxy_.set_engine(ring_->head());
  log::info("KV cache: {} pages of {} tokens; context {}; window of {} micro-batches", page_count, page_size, context,
            head.scheduler.window);
  return {};
}

}  // namespace millrace::app
