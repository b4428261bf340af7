#include "app/local_engine.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "app/load_progress.h"
#include "base/log.h"
#include "cpu/cpu_backend.h"
#include "model/config.h"
#include "model/tensor_list.h"
#include "sched/model_runner.h"

namespace millrace::app {
namespace {

using namespace std::chrono_literals;

constexpr async::Duration kHeartbeat = 500ms;
/// Logits of so many rows exist at once: 152k ids take 0.6 MB a row.
constexpr int32_t kMaxLogitRows = 64;

/// Memory that may be taken without swapping, bytes; what /proc/meminfo calls MemAvailable.
uint64_t available_memory() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string name, unit; meminfo >> name;) {
    uint64_t kib = 0;
    meminfo >> kib;
    std::getline(meminfo, unit);
    if (name == "MemAvailable:") return kib * 1024;
  }
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

Result<tensor::DType> compute_dtype(const std::string& name) {
  if (name == "auto") return tensor::DType::kBF16;
  const auto dtype = tensor::parse_dtype(name);
  if (dtype.has_error() || *dtype == tensor::DType::kF16) {
    return make_error(ErrorCode::kInvalidArgument, "--dtype {}: wanted auto, bf16 or f32", name);
  }
  return dtype;
}

uint32_t window(const EngineOptions& options) {
  return static_cast<uint32_t>(options.pp_size + options.async_batch_depth);
}

uint32_t max_batch_tokens(const EngineOptions& options) {
  return static_cast<uint32_t>(options.chunked_prefill_size + options.max_running_requests);
}

}  // namespace

LocalEngine::LocalEngine(const EngineOptions& options, model::ModelConfig config)
    : options_(options), config_(std::move(config)) {}

Result<std::unique_ptr<LocalEngine>> LocalEngine::create(const EngineOptions& options, size_t vocab_size) {
  auto config = model::read_config(options.model_path);
  if (config.has_error()) return config.error();
  std::unique_ptr<LocalEngine> engine(new LocalEngine(options, std::move(*config)));
  RETURN_IF_ERROR(engine->load(vocab_size));
  return engine;
}

LocalEngine::~LocalEngine() {
  if (ring_) ring_->stop();
  head_thread_.join();
  for (Stage& stage : stages_) stage.thread->join();
  ring_.reset();
}

Result<void> LocalEngine::load(size_t vocab_size) {
  auto checkpoint = model::Checkpoint::open(options_.model_path);
  if (checkpoint.has_error()) return checkpoint.error();
  checkpoint_ = std::move(*checkpoint);
  const auto ranges = options_.layer_partition.empty()
                          ? model::divide_layers(config_.layer_count, options_.pp_size)
                          : model::parse_partition(options_.layer_partition, config_.layer_count, options_.pp_size);
  if (ranges.has_error()) return ranges.error();
  RETURN_IF_ERROR(load_stages(model::stage_spans(*ranges)));
  const auto pages = page_count();
  if (pages.has_error()) return pages.error();
  return start_ring(vocab_size, *pages);
}

Result<void> LocalEngine::load_stages(const std::vector<model::StageSpan>& spans) {
  const auto dtype = compute_dtype(options_.dtype);
  if (dtype.has_error()) return dtype.error();
  const int32_t threads =
      options_.threads > 0 ? options_.threads : static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  const model::StageLimits limits{static_cast<int32_t>(max_batch_tokens(options_)),
                                  std::min(options_.max_running_requests, kMaxLogitRows)};
  for (size_t i = 0; i < spans.size(); ++i) {
    Stage stage;
    stage.backend = cpu::make_backend(
        {.threads = std::max(1, threads / static_cast<int32_t>(spans.size())), .compute_dtype = *dtype});
    LoadProgress progress(fmt::format("stage {}", i));
    auto loaded = model::StageModel::load(*checkpoint_, config_, spans[i], *stage.backend, limits,
                                          [&](const model::LoadProgress& done) { progress.update(done); });
    if (loaded.has_error()) return loaded.error();
    stage.model = std::move(*loaded);
    stage.thread = std::make_unique<async::IoThread>(fmt::format("stage {}", i));
    log::info("stage {}: layers {} to {}{}{}, {:.1f} MB of weights on {}", i, spans[i].layers.begin,
              spans[i].layers.end - 1, spans[i].first ? ", embedding" : "", spans[i].last ? ", output head" : "",
              static_cast<double>(stage.model->checkpoint_bytes()) / 1e6, stage.backend->description());
    stages_.push_back(std::move(stage));
  }
  return {};
}

Result<uint32_t> LocalEngine::page_count() const {
  const auto page_size = static_cast<uint64_t>(options_.page_size);
  const uint64_t longest = static_cast<uint64_t>(config_.context_length());
  // More than every running request at full length can never be used.
  const uint64_t useful = (longest + page_size - 1) / page_size * static_cast<uint64_t>(options_.max_running_requests);
  uint64_t pages = 0;
  if (options_.max_total_tokens > 0) {
    pages = static_cast<uint64_t>(options_.max_total_tokens) / page_size;
  } else {
    const uint64_t page_bytes = model::kv_page_bytes(config_, {0, config_.layer_count}, options_.page_size,
                                                     stages_.front().backend->compute_dtype());
    pages = static_cast<uint64_t>(options_.memory_fraction * static_cast<double>(available_memory())) / page_bytes;
  }
  pages = std::min({pages, useful, uint64_t{1} << 31});
  if (pages == 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "no room for a KV cache page of {} tokens: raise --max-total-tokens or --mem-fraction-static",
                      page_size);
  }
  return static_cast<uint32_t>(pages);
}

Result<void> LocalEngine::start_ring(size_t vocab_size, uint32_t page_count) {
  const auto page_size = static_cast<uint32_t>(options_.page_size);
  const auto model_context = static_cast<uint32_t>(config_.context_length());
  if (options_.context_length > config_.context_length()) {
    return make_error(ErrorCode::kInvalidArgument, "--context-length {}: the model was made for {} tokens",
                      options_.context_length, model_context);
  }
  const uint64_t capacity = uint64_t{page_count} * page_size;
  const uint32_t wanted = options_.context_length > 0 ? static_cast<uint32_t>(options_.context_length) : model_context;
  const auto context = static_cast<uint32_t>(std::min<uint64_t>(wanted, capacity));
  if (context < wanted) {
    log::warn("the KV cache holds {} tokens: requests are limited to them instead of {}", context, wanted);
  }
  const auto drawable = static_cast<uint32_t>(std::min<size_t>(vocab_size, static_cast<size_t>(config_.vocab_size)));

  sched::HeadOptions head;
  head.scheduler = {page_size,
                    page_count,
                    static_cast<uint32_t>(options_.max_running_requests),
                    window(options_),
                    static_cast<uint32_t>(options_.chunked_prefill_size),
                    context};
  head.model = {config_.architecture,     context, drawable, model::parameter_count(config_),
                static_cast<uint32_t>(stages_.size()), capacity};
  head.max_queued = static_cast<uint32_t>(options_.max_queued_requests);
  head.heartbeat = kHeartbeat;
  head.watchdog = std::chrono::duration_cast<async::Duration>(std::chrono::duration<double>(options_.watchdog_timeout_s));
  const sched::StageBounds bounds{head.scheduler.max_running, page_size, page_count, max_batch_tokens(options_),
                                  static_cast<uint32_t>(config_.vocab_size)};

  std::vector<async::Runtime*> runtimes;
  std::vector<sched::LocalStages::RunnerFactory> runners;
  for (Stage& stage : stages_) {
    stage.model->allocate_cache(options_.page_size, static_cast<int32_t>(page_count));
    runtimes.push_back(&stage.thread->runtime());
    runners.push_back([&stage, drawable](async::Runtime& runtime) {
      return std::make_unique<sched::ModelRunner>(runtime, std::move(stage.model), drawable);
    });
  }
  const sched::RingShape shape{static_cast<uint32_t>(stages_.size()), head.scheduler.window, bounds};
  ring_ = std::make_unique<sched::InProcessRing>(head_thread_.runtime(), runtimes, runners, head, shape);
  ring_->start();
  log::info("KV cache: {} pages of {} tokens; context {}; window of {} micro-batches", page_count, page_size, context,
            head.scheduler.window);
  return {};
}

}  // namespace millrace::app
