#include "app/node_stages.h"

#include <algorithm>
#include <map>
#include <utility>

#include "app/devices.h"
#include "app/stage_loading.h"
#include "base/log.h"
#include "base/machine.h"
#include "cpu/cpu_backend.h"
#include "model/tensor_list.h"
#include "model/weights.h"

namespace millrace::app {
namespace {

/// Logits of so many rows exist at once: 152k ids take 0.6 MB a row.
constexpr int32_t kMaxLogitRows = 64;

Result<tensor::DType> compute_dtype(const std::string& name) {
  if (name == "auto") return tensor::DType::kBF16;
  const auto dtype = tensor::parse_dtype(name);
  if (dtype.has_error() || *dtype == tensor::DType::kF16) {
    return make_error(ErrorCode::kInvalidArgument, "--dtype {}: wanted auto, bf16 or f32", name);
  }
  return dtype;
}

constexpr size_t kOutputBuffers = 2;
constexpr size_t kMaxExtraBuffers = 4;
/// Parts of the memory that is available beside weights and scratch, for the KV cache. A GPU's is the server's alone.
constexpr double kFractionOfHost = 0.5;
constexpr double kFractionOfGpu = 0.9;

double megabytes(uint64_t bytes) {
  return static_cast<double>(bytes) / 1e6;
}

/// Nothing: the best there is.
Result<std::optional<cpu::Isa>> wanted_isa(const std::string& name) {
  if (name == "auto") return std::optional<cpu::Isa>();
  const auto isa = cpu::parse_isa(name);
  if (isa.has_error()) return make_error(ErrorCode::kInvalidArgument, "--cpu-isa: {}", isa.error().message);
  std::string available;
  for (const cpu::Isa each : cpu::available_isas()) {
    if (each == *isa) return std::optional(each);
    available += fmt::format("{}{}", available.empty() ? "" : ", ", cpu::to_string(each));
  }
  return make_error(ErrorCode::kInvalidArgument, "--cpu-isa {}: this processor has {}", name, available);
}

/// The CPUs of the threads of the `index`th of `stage_count` stages, one each, by number; empty: they go anywhere.
Result<std::vector<int>> cpus_of_stage(const NodeStagesOptions& node, int32_t stage_count, int32_t index) {
  if (!node.pin_threads) return std::vector<int>();
  const std::vector<int> allowed = Machine::allowed_processors();
  const int32_t threads = threads_per_stage(node.threads, stage_count);
  if (std::cmp_less(allowed.size(), threads * stage_count)) {
    return make_error(ErrorCode::kInvalidArgument, "--pin-threads: {} threads want a CPU each, this process may use {}",
                      threads * stage_count, allowed.size());
  }
  const auto first = allowed.begin() + threads * index;
  return std::vector<int>(first, first + threads);
}

/// What must be equal for a stored page to be the one that would be computed here.
std::string page_format(const tensor::Backend& backend) {
  return fmt::format("{} revision {}", backend.kv_format(), tensor::kArithmeticRevision);
}

}  // namespace

int32_t threads_per_stage(int32_t threads, int32_t stage_count) {
  if (threads <= 0) threads = static_cast<int32_t>(Machine().processors());
  return std::max(1, threads / stage_count);
}

Result<model::ModelConfig> stage_config(model::ModelConfig config, const NodeStagesOptions& node) {
  const auto wanted = model::parse_quantization(node.quantization);
  if (wanted.has_error()) return wanted.error();
  const auto chosen = model::resolve_quantization(config.quantization, *wanted);
  if (chosen.has_error()) return chosen.error();
  config.quantization = *chosen;
  if (*wanted != model::Quantization::kNone) config.keeps_unquantized_projections = false;
  return config;
}

Result<std::unique_ptr<tensor::Backend>> make_stage_backend(const NodeStagesOptions& node, int32_t stage_count,
                                                            int32_t index) {
  const auto compute = compute_dtype(node.dtype);
  if (compute.has_error()) return compute.error();
  if (node.device == DeviceKind::kCuda) {
    if (*compute != tensor::DType::kBF16) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--dtype {}: a GPU computes in bf16; wanted auto, bf16, or "
                        "--device cpu",
                        node.dtype);
    }
    return make_gpu_backend(stage_count, index,
                            {.graphs = node.cuda_graphs,
                             .products = node.cuda_products,
                             .channels = node.nccl != "off",
                             .divide = node.divide_gpu});
  }
  const auto isa = wanted_isa(node.cpu_isa);
  if (isa.has_error()) return isa.error();
  const auto cpus = cpus_of_stage(node, stage_count, index);
  if (cpus.has_error()) return cpus.error();
  return cpu::make_backend(
      {.threads = threads_per_stage(node.threads, stage_count), .compute_dtype = *compute, .isa = *isa, .pin = *cpus});
}

void NodeStagesOptions::check_interrupted() const {
  if (interrupted == nullptr || !*interrupted) return;
  throw ErrorException(Error{ErrorCode::kAborted, "loading was interrupted"});
}

NodeStages::NodeStages(const model::ModelConfig& config, const NodeStagesOptions& options)
    : config_(config), options_(options) {}

Result<std::unique_ptr<NodeStages>> NodeStages::load(const model::Checkpoint& checkpoint,
                                                     const model::ModelConfig& config,
                                                     const NodeStagesOptions& options) {
  const auto loaded_config = stage_config(config, options);
  if (loaded_config.has_error()) return loaded_config.error();
  std::unique_ptr<NodeStages> stages(new NodeStages(*loaded_config, options));
  RETURN_IF_ERROR(stages->load_all(checkpoint));
  return stages;
}

NodeStages::~NodeStages() {
  join();
  log_graph_stats();
  stages_.reset();
}

// What /metrics says of the stages of the head's node.
void NodeStages::log_graph_stats() const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!parts_[i].graph_stats) continue;
    const tensor::GraphStats::Counts counts = parts_[i].graph_stats->counts();
    std::string text;
    for (size_t step = 0; step < counts.size(); ++step) {
      if (counts[step] == 0) continue;
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", tensor::kGraphOutcomeNames[step], counts[step]);
    }
    if (!text.empty()) log::info("{}: decode steps by what became of their graphs: {}", stage_name(i), text);
  }
}

void NodeStages::join() {
  for (Part& part : parts_) {
    if (part.thread) part.thread->join();
  }
}

std::string NodeStages::stage_name(size_t index) const {
  return fmt::format("stage {}", options_.first.value() + index);
}

std::string NodeStages::stages_name() const {
  if (parts_.size() == 1) return stage_name(0);
  return fmt::format("stages {} to {}", options_.first.value(), options_.first.value() + parts_.size() - 1);
}

Result<void> NodeStages::load_all(const model::Checkpoint& checkpoint) {
  RETURN_IF_ERROR(make_backends());
  RETURN_IF_ERROR(check_weights_fit());
  std::vector<StageToLoad> stages;
  for (size_t i = 0; i < parts_.size(); ++i) {
    stages.push_back({stage_name(i), options_.spans[i], parts_[i].backend.get()});
  }
  const int32_t draws = options_.max_running + options_.max_draft_rows;
  const StageLoadingOptions loading{.what = stages_name(),
                                    .limits = {options_.max_batch_tokens, std::min(draws, kMaxLogitRows), draws},
                                    .threads = threads_per_stage(options_.threads, static_cast<int32_t>(stages.size())),
                                    .with_fingerprint = options_.storage.enabled(),
                                    .check_interrupted = [this] { options_.check_interrupted(); }};
  auto models = load_stages(checkpoint, config_, stages, loading);
  if (models.has_error()) return models.error();
  for (size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    part.model = std::move((*models)[i]);
    try {
      part.model->reserve(options_.max_running, options_.context_length, options_.page_size);
    } catch (const std::runtime_error& short_of_memory) {
      return make_error(ErrorCode::kExhausted, "{}: {}", stage_name(i), short_of_memory.what());
    }
    if (!part.backend->is_host()) part.graph_stats = part.model->graph_stats();
    if (const auto& fingerprint = part.model->fingerprint()) part.fingerprint = fingerprint->to_string();
    part.thread = std::make_unique<async::IoThread>(stage_name(i));
    const model::StageSpan& span = options_.spans[i];
    log::info("{}: layers {} to {}{}{}, {:.1f} MB of weights on {}", stage_name(i), span.layers.begin,
              span.layers.end - 1, span.first ? ", embedding" : "", span.last ? ", output head" : "",
              megabytes(part.model->checkpoint_bytes()), part.backend->description());
  }
  return {};
}

Result<void> NodeStages::make_backends() {
  const auto count = static_cast<int32_t>(options_.spans.size());
  for (int32_t i = 0; i < count; ++i) {
    auto backend = make_stage_backend(options_, count, i);
    if (backend.has_error()) return backend.error();
    if (options_.nccl == "on") {
      const tensor::ChannelSupport support = (*backend)->channel_support();
      const std::string missing =
          support.device.empty() ? "it computes in memory of the host" : support.unavailable_reason;
      if (!missing.empty()) {
        return make_error(ErrorCode::kUnavailable, "--nccl on: {}: {}", stage_name(parts_.size()), missing);
      }
    }
    parts_.emplace_back().backend = std::move(*backend);
  }
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
  return parts_.back().backend->channel_support();
}

uint64_t NodeStages::page_bytes(int32_t page_size) const {
  uint64_t bytes = 0;
  for (const Part& part : parts_) bytes += part.model->page_bytes(page_size);
  return bytes;
}

std::map<std::string, NodeStages::Shared> NodeStages::memories() const {
  std::map<std::string, Shared> memories;
  std::map<std::string, uint64_t> wanted;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const tensor::Backend& backend = *parts_[i].backend;
    const tensor::DeviceMemory memory = backend.memory();
    Shared& shared = memories[memory.name];
    shared.available_bytes = memory.available_bytes;
    shared.page_bytes += parts_[i].model->page_bytes(options_.page_size);
    if (backend.is_host()) continue;
    // Behind another node's stage; only there NCCL is asked for.
    const bool receives =
        i == 0 && !options_.spans[i].first && parts_[i].backend->channel_support().unavailable_reason.empty();
    wanted[memory.name] += sched::ModelRunner::device_bytes(*parts_[i].model, receives);
  }
  for (auto& [name, shared] : memories) shared.available_bytes -= std::min(shared.available_bytes, wanted[name]);
  return memories;
}

/// A stage whose neighbour reads its activations in place can be ahead of it by no more than it has buffers: as many as
/// the window lets wait. On the host what is never written to takes no memory.
size_t NodeStages::output_buffers(size_t part, const sched::RingConfig& shape) const {
  const bool is_read_in_place = part + 1 < parts_.size() && parts_[part].backend->is_host();
  const size_t depth = shape.window - std::min<size_t>(shape.window, shape.stage_count);
  return kOutputBuffers + (is_read_in_place ? std::min(depth, kMaxExtraBuffers) : 0);
}

uint64_t NodeStages::page_capacity(double fraction) const {
  if (fraction <= 0) fraction = on_host() ? kFractionOfHost : kFractionOfGpu;
  uint64_t least = UINT64_MAX;
  for (const auto& [name, shared] : memories()) {
    const auto bytes = static_cast<uint64_t>(fraction * static_cast<double>(shared.available_bytes));
    least = std::min(least, bytes / std::max<uint64_t>(1, shared.page_bytes));
  }
  return least;
}

Result<void> NodeStages::check_room(uint64_t page_count) const {
  for (const auto& [name, shared] : memories()) {
    const uint64_t wanted = page_count * shared.page_bytes;
    if (wanted <= shared.available_bytes) continue;
    if (on_host()) {
      log::warn(
          "a KV cache of {} pages of {} tokens takes {:.1f} MB when all are in use, {:.1f} MB of memory are "
          "available: --max-total-tokens says how many",
          page_count, options_.page_size, megabytes(wanted), megabytes(shared.available_bytes));
      continue;
    }
    return make_error(ErrorCode::kExhausted,
                      "{}: a KV cache of {} pages of {} tokens takes {:.1f} MB, {:.1f} MB are free beside weights and "
                      "scratch: {:.1f} MB are missing",
                      name, page_count, options_.page_size, megabytes(wanted), megabytes(shared.available_bytes),
                      megabytes(wanted - shared.available_bytes));
  }
  return {};
}

Result<void> NodeStages::check_host_room(uint64_t host_page_count) const {
  const double wanted = static_cast<double>(host_page_count) * static_cast<double>(page_bytes(options_.page_size));
  const uint64_t available = Machine().available_memory();
  if (wanted <= static_cast<double>(available)) return {};
  return make_error(ErrorCode::kExhausted,
                    "a host tier of {} pages of {} tokens takes {:.1f} MB, {:.1f} MB of memory are available: "
                    "--hicache-size GB or a smaller --hicache-ratio says how many",
                    host_page_count, options_.page_size, wanted / 1e6, megabytes(available));
}

Result<void> NodeStages::check_weights_fit() const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    const auto usable = model::check_backend(config_, *parts_[i].backend);
    if (usable.has_error()) return make_error(usable.error().code, "{}: {}", stage_name(i), usable.error().message);
  }
  std::map<std::string, uint64_t> taken;  // by the stages before, by device
  for (size_t i = 0; i < parts_.size(); ++i) {
    const tensor::Backend& backend = *parts_[i].backend;
    if (backend.is_host()) continue;
    const tensor::DeviceMemory memory = backend.memory();
    const uint64_t free = memory.available_bytes - std::min(memory.available_bytes, taken[memory.name]);
    const uint64_t wanted =
        model::parameter_count(config_, options_.spans[i]) * tensor::size_of(backend.compute_dtype());
    if (wanted > free) {
      return make_error(ErrorCode::kExhausted,
                        "{}: its weights take {:.1f} MB, {} has {:.1f} MB free: {:.1f} MB are missing", stage_name(i),
                        megabytes(wanted), memory.name, megabytes(free), megabytes(wanted - free));
    }
    taken[memory.name] += wanted;
  }
  return {};
}

std::vector<std::string> NodeStages::contents() const {
  std::vector<std::string> texts;
  for (const Part& part : parts_) {
    if (!part.fingerprint.empty()) texts.push_back(fmt::format("{} {}", part.fingerprint, page_format(*part.backend)));
  }
  return texts;
}

Result<void> NodeStages::allocate_cache(size_t index, const sched::StageBounds& bounds) {
  model::StageModel& model = *parts_[index].model;
  const auto page_size = static_cast<int32_t>(bounds.page_size);
  try {
    model.allocate_cache(page_size, static_cast<int32_t>(bounds.page_count));
  } catch (const std::runtime_error& short_of_memory) {
    return make_error(ErrorCode::kExhausted, "{}: a KV cache of {} pages of {} tokens takes {:.1f} MB: {}",
                      stage_name(index), bounds.page_count, page_size,
                      megabytes(bounds.page_count * model.page_bytes(page_size)), short_of_memory.what());
  }
  return {};
}

Result<void> NodeStages::make_stages(async::Runtime& control, const sched::RingConfig& shape,
                                     const std::string& fingerprint) {
  RETURN_IF_ERROR(check_room(shape.bounds.page_count));
  RETURN_IF_ERROR(check_host_room(shape.bounds.host_page_count));
  std::vector<async::Runtime*> runtimes;
  std::vector<sched::LocalStages::RunnerFactory> runners;
  for (size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    RETURN_IF_ERROR(allocate_cache(i, shape.bounds));
    const model::LayerRange& layers = options_.spans[i].layers;
    auto store =
        open_page_store(part.thread->runtime(), options_.storage,
                        {fingerprint, static_cast<uint32_t>(layers.begin), static_cast<uint32_t>(layers.end),
                         page_format(*part.backend), shape.bounds.page_size, part.model->cache().page_bytes()});
    if (store.has_error()) return store.error();
    part.store = std::move(*store);
    runtimes.push_back(&part.thread->runtime());
    const sched::ModelRunner::Options runner{.vocab_size = shape.bounds.sampling_vocab,
                                             .host_page_count = shape.bounds.host_page_count,
                                             .activations_to_host = i + 1 == parts_.size(),
                                             .output_buffers = output_buffers(i, shape)};
    runners.push_back([&part, runner](async::Runtime& stage_runtime) {
      auto made =
          std::make_unique<sched::ModelRunner>(stage_runtime, std::move(part.model), runner, std::move(part.store));
      part.runner = made.get();
      return made;
    });
  }
  try {
    stages_ = std::make_unique<sched::LocalStages>(control, std::move(runtimes), runners, options_.first, shape);
  } catch (const std::exception& short_of_memory) {
    return make_error(ErrorCode::kExhausted, "memory for {} host pages and activations: {}",
                      shape.bounds.host_page_count, short_of_memory.what());
  }
  return {};
}

void NodeStages::destroy_stages() {
  join();
  for (Part& part : parts_) {
    part.model = std::exchange(part.runner, nullptr)->release_model();
    part.model->free_cache();
  }
  stages_.reset();
  for (size_t i = 0; i < parts_.size(); ++i) parts_[i].thread = std::make_unique<async::IoThread>(stage_name(i));
}

}  // namespace millrace::app
