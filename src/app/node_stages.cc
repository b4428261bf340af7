#include "app/node_stages.h"

#include <algorithm>
#include <utility>

#include "app/rank_processors.h"
#include "app/stage_backend.h"
#include "app/stage_loading.h"
#include "base/log.h"
#include "base/machine.h"
#include "comm/collective/device_collectives.h"
#include "comm/collective/shared_collective.h"
#include "model/needed_features.h"
#include "model/stage_borders.h"
#include "sched/stage/local_stages.h"
#include "sched/stage/model_runner.h"

namespace millrace::app {

std::string rounding_of_sums(uint32_t rank_count, tensor::DType reduce_dtype) {
  if (rank_count == 1 || reduce_dtype == tensor::DType::kF32) return {};
  return fmt::format(", {} ranks with {} sums", rank_count, enum_name(reduce_dtype));
}

namespace {

/// Rows of logits that exist at once: 152k ids take 0.6 MB a row.
constexpr int32_t kMaxLogitRows = 64;
constexpr size_t kOutputBuffers = 2;
constexpr size_t kMaxExtraBuffers = 4;

double megabytes(uint64_t bytes) {
  return static_cast<double>(bytes) / 1e6;
}

/// Returns what must be equal for a stored page to be the one that would be computed here.
std::string page_format(const tensor::Backend& backend, const sched::StageConfig& stage) {
  return fmt::format("{} revision {}{}", backend.kv_format(), tensor::kArithmeticRevision,
                     rounding_of_sums(stage.rank_count, stage.reduce_dtype));
}

/// Refuses drafts of a model with states on a device that would keep the states after them.
Result<void> check_drafts(const model::ModelConfig& config, const sched::StageConfig& stage,
                          const tensor::Backend& backend) {
  if (stage.max_draft_rows == 0 || backend.computes(tensor::Feature::kStatesBeforeDrafts) ||
      !model::needs(config, tensor::Feature::kRecurrence))
    return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "{}: keeps no states before drafts, which {} needs; wanted --speculative-num-draft-tokens 0",
                    backend.description(), config.architecture);
}

Result<void> check_channels(tensor::Backend& backend, const std::string& stage) {
  const tensor::ChannelSupport support = backend.channel_support();
  const std::string missing = support.device.empty() ? "it computes in memory of the host" : support.unavailable_reason;
  if (missing.empty()) return {};
  return make_error(ErrorCode::kUnavailable, "--nccl on: {}: {}", stage, missing);
}

/// Names the pages of the state group, which comes last: they have a format of their own, and each rank has other ones.
void make_state_identity(tensor::RankPosition position, cache::StoreIdentity& identity) {
  identity.kv_dtype += " states";
  identity.window = 0;
  if (position.size == 1) return;
  identity.kv_dtype += fmt::format(" of {} ranks", position.size);
  identity.head_begin = static_cast<uint32_t>(position.rank);
  identity.head_end = identity.head_begin + 1;
}

}  // namespace

Result<model::ModelConfig> quantized_config(model::ModelConfig config, model::Quantization wanted) {
  const auto chosen = model::resolve_quantization(config.quantization, wanted);
  if (chosen.has_error()) return chosen.error();
  config.quantization = *chosen;
  if (wanted != model::Quantization::kNone) config.keeps_unquantized_projections = false;
  return config;
}

NodeStages::NodeStages(const model::ModelConfig& config, const NodeStagesOptions& options)
    : config_(config), options_(options), ranks_(options_) {}

Result<std::unique_ptr<NodeStages>> NodeStages::load(const model::Checkpoint& checkpoint,
                                                     const model::ModelConfig& config, const NodeStagesOptions& options,
                                                     std::span<const NodeStages* const> earlier) {
  const int32_t context = options.context_length > 0 ? options.context_length : config.context_length();
  auto loaded_config = quantized_config(model::for_context(config, context), options.stage.quantization);
  if (loaded_config.has_error()) return loaded_config.error();
  for (const model::StageSpan& span : options.spans)
    RETURN_IF_ERROR(model::check_borders(*loaded_config, {span.layers}));
  loaded_config->has_output_head = options.stage.has_output_head;
  std::unique_ptr<NodeStages> stages(new NodeStages(*loaded_config, options));
  RETURN_IF_ERROR(stages->make_backends());
  RETURN_IF_ERROR(check_weights_fit(*loaded_config, stages->memory_users()));
  RETURN_IF_ERROR(stages->load_all(checkpoint, earlier));
  return stages;
}

NodeStages::~NodeStages() {
  join();
  log_graph_stats();
  stages_.reset();
}

/// Logs what /metrics shows of the stages on the head's node only.
void NodeStages::log_graph_stats() const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!parts_[i].graph_stats) continue;
    const tensor::GraphStats::Counts counts = parts_[i].graph_stats->counts();
    std::string text;
    for (size_t step = 0; step < counts.size(); ++step) {
      if (counts[step] == 0) continue;
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", tensor::kGraphOutcomeNames[step], counts[step]);
    }
    if (!text.empty()) log::info("{}: decode steps by what became of their graphs: {}", ranks_.name(i), text);
  }
}

void NodeStages::join() {
  for (Part& part : parts_) {
    if (part.thread) part.thread->join();
  }
}

Result<void> NodeStages::make_backends() {
  if (options_.device == DeviceKind::kCuda && options_.stage.rank_count > 1) {
    const auto exchange = choose_rank_exchange(static_cast<int32_t>(ranks_.per_stage()),
                                               ranks_.per_stage() < options_.stage.rank_count, options_.node);
    if (exchange.has_error()) return exchange.error();
    log::info("{}: the ranks of a stage exchange by {}", ranks_.stages_name(), exchange->text);
  }
  const bool loses_graphs = options_.stage.shares_experts() && options_.node.cuda_graphs && options_.node.ring == 0;
  if (options_.device == DeviceKind::kCuda && loses_graphs) {
    log::warn("--enable-ep: the rings exchange experts through the host, so that decode steps run without CUDA graphs");
  }
  for (size_t i = 0; i < ranks_.count(); ++i) {
    auto backend = make_rank_backend(options_.device, options_.stage, options_.node, ranks_.rank(i));
    if (backend.has_error()) return backend.error();
    if (options_.node.nccl == NcclMode::kOn) RETURN_IF_ERROR(check_channels(**backend, ranks_.name(i)));
    RETURN_IF_ERROR(check_drafts(config_, options_.stage, **backend));
    parts_.emplace_back().backend = std::move(*backend);
  }
  return {};
}

/// Returns the earlier ring with the weights that the rank at an index computes with, near its memory; null: none.
const NodeStages* NodeStages::find_weights(size_t index, std::span<const NodeStages* const> earlier) const {
  const Part& own = parts_[index];
  if (!own.backend->is_host() || options_.stage.shares_experts()) return nullptr;
  bool is_far = false;
  for (const NodeStages* ring : earlier) {
    const bool is_same = index < ring->parts_.size() && ring->ranks_.span(index) == ranks_.span(index) &&
                         ring->ranks_.position(index) == ranks_.position(index) &&
                         ring->parts_[index].backend->kv_format() == own.backend->kv_format();
    if (!is_same) continue;
    if (ring->parts_[index].numa_nodes == own.numa_nodes) return ring;
    is_far = true;
  }
  if (is_far)
    log::info("{}: packs weights of its own, since other rings have theirs on other NUMA nodes", ranks_.name(index));
  return nullptr;
}

Result<void> NodeStages::share_weights(size_t index, const NodeStages& ring) {
  const model::StageModel& model = *ring.parts_[index].model;
  try {
    parts_[index].model = model.share(*parts_[index].backend);
  } catch (const std::runtime_error& short_of_memory) {
    return make_error(ErrorCode::kExhausted, "{}: {}", ranks_.name(index), short_of_memory.what());
  }
  parts_[index].weights_ring = ring.options_.node.ring;
  return {};
}

Result<void> NodeStages::load_all(const model::Checkpoint& checkpoint, std::span<const NodeStages* const> earlier) {
  std::vector<StageToLoad> stages;
  std::vector<size_t> loaded;  // indices of the parts that `stages` has
  for (size_t i = 0; i < parts_.size(); ++i) {
    auto processors = rank_processors(options_.node, ranks_.rank(i), Machine().numa_nodes());
    if (processors.has_error()) return processors.error();
    parts_[i].numa_nodes = nodes_of(*processors, Machine().numa_nodes());
    if (const NodeStages* ring = find_weights(i, earlier)) {
      RETURN_IF_ERROR(share_weights(i, *ring));
      continue;
    }
    loaded.push_back(i);
    stages.push_back({.name = ranks_.name(i),
                      .span = ranks_.span(i),
                      .position = ranks_.position(i),
                      .experts = ranks_.expert_position(i),
                      .backend = parts_[i].backend.get(),
                      .processors = std::move(processors->near)});
  }
  const auto draws = static_cast<int32_t>(options_.stage.max_running + options_.stage.max_draft_rows);
  const StageLoadingOptions loading{
      .what = ranks_.stages_name(),
      .limits = {static_cast<int32_t>(options_.stage.max_batch_tokens), std::min(draws, kMaxLogitRows), draws},
      .threads = threads_per_rank(options_.node.threads, ranks_.rank(0).count()),
      .with_fingerprint = options_.stage.has_store,
      .check_interrupted = [this] { options_.check_interrupted(); }};
  auto models = load_stages(checkpoint, config_, stages, loading);
  if (models.has_error()) return models.error();
  for (size_t i = 0; i < loaded.size(); ++i) parts_[loaded[i]].model = std::move((*models)[i]);
  for (size_t i = 0; i < parts_.size(); ++i) RETURN_IF_ERROR(prepare(i));
  return {};
}

/// Reserves the scratch memory of a loaded stage and starts its thread.
Result<void> NodeStages::prepare(size_t index) {
  Part& part = parts_[index];
  try {
    part.model->reserve(static_cast<int32_t>(options_.stage.max_running), options_.context_length,
                        static_cast<int32_t>(options_.stage.page_size));
  } catch (const std::runtime_error& short_of_memory) {
    return make_error(ErrorCode::kExhausted, "{}: {}", ranks_.name(index), short_of_memory.what());
  }
  if (!part.backend->is_host()) part.graph_stats = part.model->graph_stats();
  part.fingerprint = part.model->fingerprint();
  part.thread = std::make_unique<async::IoThread>(ranks_.name(index));
  const model::StageSpan& own = ranks_.span(index);
  const auto weights_ring = part.weights_ring;
  log::info("{}: layers {} to {}{}{}, {:.1f} MB of weights{} on {}", ranks_.name(index), own.layers.begin,
            own.layers.end - 1, own.first ? ", embedding" : "",
            !own.last                 ? ""
            : config_.has_output_head ? ", output head"
                                      : ", final norm",
            megabytes(part.model->checkpoint_bytes()),
            weights_ring ? fmt::format(", shared with ring {},", *weights_ring) : "", part.backend->description());
  return {};
}

std::string NodeStages::compute() const {
  const std::string format = parts_.front().backend->kv_format();
  if (config_.quantization == model::Quantization::kNone) return format;
  return fmt::format("{}, {}", format, model::to_string(config_.quantization));
}

tensor::ChannelSupport NodeStages::first_channels() const {
  return parts_.front().backend->channel_support();
}
tensor::ChannelSupport NodeStages::last_channels() const {
  return parts_[parts_.size() - ranks_.per_stage()].backend->channel_support();
}

std::vector<MemoryUser> NodeStages::memory_users() const {
  std::vector<MemoryUser> users;
  for (size_t i = 0; i < parts_.size(); ++i) {
    users.push_back({.name = ranks_.name(i),
                     .span = ranks_.span(i),
                     .position = ranks_.position(i),
                     .experts = ranks_.expert_position(i),
                     .backend = parts_[i].backend.get(),
                     .model = parts_[i].model.get()});
  }
  return users;
}

NodeMemory NodeStages::memory() const {
  return {memory_users(), options_.stage};
}

/// Returns how many buffers of activations take turns. A stage whose neighbour reads them in place can be ahead of it
/// by no more runs than it has buffers. Host memory that is never written to costs nothing.
size_t NodeStages::output_buffers(size_t part, const sched::RingConfig& shape) const {
  const bool is_read_in_place = !ranks_.is_of_last_stage(part) && parts_[part].backend->is_host();
  const size_t depth = shape.window - std::min<size_t>(shape.window, shape.stage_count);
  return kOutputBuffers + (is_read_in_place ? std::min(depth, kMaxExtraBuffers) : 0);
}

model::PageContents NodeStages::contents() const {
  model::PageContents contents;
  for (const Part& part : parts_) {
    if (!part.fingerprint) continue;
    const std::string format = page_format(*part.backend, options_.stage);
    contents.add({.ranks = {fmt::format("{} {}", part.fingerprint->common.to_string(), format)},
                  .experts = part.fingerprint->experts});
  }
  return contents;
}

Result<void> NodeStages::allocate_cache(size_t index, const sched::StageBounds& bounds) {
  model::StageModel& model = *parts_[index].model;
  const auto page_size = static_cast<int32_t>(bounds.page_size);
  std::vector<uint32_t> page_counts;
  uint64_t bytes = 0;
  for (size_t group = 0; group < bounds.group_count(); ++group) {
    page_counts.push_back(bounds.pools(group).device);
    bytes += page_counts.back() * model.page_bytes(page_size, group);
  }
  try {
    model.allocate_cache(page_size, page_counts);
  } catch (const std::runtime_error& short_of_memory) {
    return make_error(ErrorCode::kExhausted, "{}: a KV cache of {} pages of {} tokens takes {:.1f} MB: {}",
                      ranks_.name(index), bounds.page_count, page_size, megabytes(bytes), short_of_memory.what());
  }
  return {};
}

Result<void> NodeStages::open_store(size_t index, const sched::StageBounds& bounds, const std::string& fingerprint) {
  if (!options_.stage.has_store || fingerprint.empty()) return {};
  Part& part = parts_[index];
  const model::LayerRange& layers = ranks_.span(index).layers;
  cache::StoreIdentity identity{.model_fingerprint = fingerprint,
                                .layer_begin = static_cast<uint32_t>(layers.begin),
                                .layer_end = static_cast<uint32_t>(layers.end),
                                .kv_dtype = page_format(*part.backend, options_.stage),
                                .page_size = bounds.page_size};
  for (uint32_t group = 0; group < bounds.group_count(); ++group) {
    std::unique_ptr<cache::PageStore>& store = part.stores.emplace_back();
    if (!part.model->has_cache(group)) continue;
    identity.window = group == 0 ? 0 : bounds.windows[group - 1].window;
    if (options_.stage.rank_count > 1) {
      const tensor::TermRange& heads = part.model->rank().layer(part.model->cache_groups().first_layer(group)).kv_heads;
      identity.head_begin = static_cast<uint32_t>(heads.begin);
      identity.head_end = static_cast<uint32_t>(heads.end);
    }
    if (bounds.kind(group) == GroupKind::kState) make_state_identity(part.model->rank().position, identity);
    identity.page_bytes = part.model->cache(group).page_bytes();
    auto opened = open_page_store(part.thread->runtime(), options_.node.storage, identity);
    if (opened.has_error()) return opened.error();
    store = std::move(*opened);
  }
  return {};
}

Result<void> NodeStages::make_stages(async::Runtime& control, const sched::RingConfig& shape,
                                     const std::string& fingerprint) {
  auto made = try_make_stages(control, shape, fingerprint);
  if (made.has_error()) release_pools();
  return made;
}

Result<void> NodeStages::try_make_stages(async::Runtime& control, const sched::RingConfig& shape,
                                         const std::string& fingerprint) {
  RETURN_IF_ERROR(memory().check_room(shape.bounds));
  RETURN_IF_ERROR(memory().check_host_room(shape.bounds));
  std::vector<async::Runtime*> runtimes;
  std::vector<std::unique_ptr<sched::ModelRunner>> made;
  std::vector<sched::LocalStages::RunnerFactory> runners;
  for (size_t i = 0; i < parts_.size(); ++i) {
    RETURN_IF_ERROR(allocate_cache(i, shape.bounds));
    RETURN_IF_ERROR(open_store(i, shape.bounds, fingerprint));
    runtimes.push_back(&parts_[i].thread->runtime());
  }
  sched::RingConfig ring = shape;
  for (const Part& part : parts_) {
    ring.exchange_bytes = std::max(ring.exchange_bytes, sched::ModelRunner::max_exchange_bytes(*part.model));
  }
  try {
    for (size_t i = 0; i < parts_.size(); ++i) made.push_back(make_runner(i, shape));
  } catch (const std::exception& short_of_memory) {
    for (size_t i = 0; i < made.size(); ++i) parts_[i].model = made[i]->release_model();
    return make_error(ErrorCode::kExhausted, "memory for {} host pages and activations: {}",
                      shape.bounds.host_page_count, short_of_memory.what());
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].runner = made[i].get();
    runners.push_back([&runner = made[i]](async::Runtime&) { return std::move(runner); });
  }
  ring.make_collectives = [exchange_bytes = ring.exchange_bytes](StageId stage,
                                                                 const std::vector<tensor::Backend*>& backends) {
    if (backends.front()->is_host()) return comm::make_shared_collectives(backends);
    return comm::open_device_collectives(fmt::format("the ranks of stage {}", stage.value()), backends, exchange_bytes);
  };
  stages_ =
      std::make_unique<sched::LocalStages>(control, std::move(runtimes), runners, options_.first, options_.ranks, ring);
  return {};
}

/// Makes the runner of a stage, which takes its model. The model stays when this throws.
std::unique_ptr<sched::ModelRunner> NodeStages::make_runner(size_t index, const sched::RingConfig& shape) {
  Part& part = parts_[index];
  std::vector<uint32_t> host_page_counts;
  for (size_t group = 0; group < shape.bounds.group_count(); ++group) {
    host_page_counts.push_back(shape.bounds.pools(group).host);
  }
  const sched::ModelRunner::Options runner{.vocab_size = shape.bounds.sampling_vocab,
                                           .host_page_counts = std::move(host_page_counts),
                                           .activations_to_host = ranks_.is_of_last_stage(index),
                                           .output_buffers = output_buffers(index, shape),
                                           .slices_input = index < ranks_.per_stage(),
                                           .slices_output = ranks_.is_of_last_stage(index)};
  return std::make_unique<sched::ModelRunner>(part.thread->runtime(), std::move(part.model), runner,
                                              std::move(part.stores));
}

/// Frees what make_stages() has allocated for the stages, whose models are all here, and starts threads for the next.
void NodeStages::release_pools() {
  join();
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].model->free_cache();
    parts_[i].stores.clear();
    parts_[i].thread = std::make_unique<async::IoThread>(ranks_.name(i));
  }
}

void NodeStages::destroy_stages() {
  join();
  for (Part& part : parts_) part.model = std::exchange(part.runner, nullptr)->release_model();
  stages_.reset();
  release_pools();
}

cluster::Loaded loaded_report(const NodeStages& node, const sched::StageConfig& stage) {
  cluster::Loaded loaded{.compute = node.compute(),
                         .first = node.first_channels(),
                         .last = node.last_channels(),
                         .contents = node.contents()};
  if (node.made()) return loaded;
  const NodeMemory memory = node.memory();
  loaded.page_capacity = memory.page_capacity(stage.memory_fraction);
  loaded.sequence_capacity = memory.sequence_capacity(stage.wanted_pages, stage.memory_fraction);
  loaded.host_page_capacity = memory.host_page_capacity();
  return loaded;
}

}  // namespace millrace::app
