#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "app/node_options.h"
#include "async/runtime.h"
#include "base/enum_names.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/layer_range.h"
#include "cache/page_pool.h"
#include "sched/head/head_options.h"
#include "sched/router/routing_policy.h"
#include "sched/stage/stage_config.h"

namespace millrace::app {

/// The source of drafts in addition to grammars and the predictions of clients.
enum class DraftAlgorithm : uint8_t { kNone, kNgram };

inline constexpr EnumName<DraftAlgorithm> kDraftAlgorithmNames[] = {
    {DraftAlgorithm::kNone, "none"},
    {DraftAlgorithm::kNgram, "ngram"},
};
constexpr std::span<const EnumName<DraftAlgorithm>> enum_names(DraftAlgorithm) {
  return kDraftAlgorithmNames;
}

/// What the flags say of the engine. Flags write into the options of the part that reads them; stage_config() and
/// head_options() add what follows from other flags, the model and the memory. The parser has checked every value.
struct EngineOptions {
  std::filesystem::path model_path;                   ///< the folder of config.json, or a GGUF file
  std::filesystem::path weights_path;                 ///< the folder of the weights; empty: model_path
  std::shared_ptr<model::RangeSource> weight_ranges;  ///< fills the weights' files; null: they are complete
  int32_t context_length = 0;                         ///< tokens of prompt and output; 0: the model's own
  int32_t pp_size = 1;
  int32_t tp_size = 1;          ///< tensor-parallel ranks of each stage; 0: one per NUMA node
  int32_t dp_size = 1;          ///< rings
  bool enable_ep = false;       ///< the rings divide the experts of the model among them
  int32_t step_lookahead = 24;  ///< steps that rings with shared experts run beyond the last work, at most
  sched::LoadBalanceMethod load_balance = sched::LoadBalanceMethod::kCacheAware;
  int32_t async_batch_depth = 0;  ///< plans in flight beyond one per stage
  model::LayerPartition layer_partition;
  DraftAlgorithm draft_algorithm = DraftAlgorithm::kNone;
  int64_t max_total_tokens = 0;     ///< of the KV cache; 0: from StageConfig::memory_fraction
  bool hierarchical_cache = false;  ///< adds a host tier
  double host_cache_ratio = 2.0;    ///< host pages per device page
  double host_cache_gb = 0;         ///< over all stages of a node, in place of the ratio; 0: the ratio counts
  sched::StageConfig stage;
  sched::HeadOptions head{.scheduler = {.chunked_prefill_size = 512, .draft_tokens = 8},
                          .max_queued = 1024,
                          .watchdog = std::chrono::seconds(300),
                          .prefetch_timeout = std::chrono::seconds(1)};
  NodeOptions node;
};

/// Opens the weights of the model. Errors: those of Checkpoint::open.
[[nodiscard]] Result<std::unique_ptr<model::Checkpoint>> open_checkpoint(const EngineOptions& options);
/// Sets the options so that every prompt is computed in one piece and without cached prefixes. Each row of an encoder
/// depends on all others. Error: kInvalidArgument with a flag that asks for cached prefixes.
[[nodiscard]] Result<void> adapt_to_encoder(const model::ModelConfig& config, EngineOptions& options);
/// Returns the configuration of every stage: the flags of `options.stage` and what follows from other flags.
/// `sampling_vocab`: ids that can be sampled.
[[nodiscard]] sched::StageConfig stage_config(const EngineOptions& options, uint32_t sampling_vocab);
/// Returns the pages of the KV cache where `capacity` of them fit the memory and sequences have up to `longest` tokens.
/// 0: no sequence fits.
[[nodiscard]] uint32_t pool_pages(const EngineOptions& options, int32_t longest, uint64_t capacity);
/// Returns for how many sequences the window groups have room in addition to `page_count` pages of the first one; 0: as
/// many as the pages suggest. Where --max-total-tokens says how long the running sequences can be together, all of
/// these run at once if they are short, as far as memory holds the windows and states of `capacity` sequences.
[[nodiscard]] uint32_t window_sequences(const EngineOptions& options, std::span<const WindowSpec> windows,
                                        uint32_t page_count, uint32_t capacity);
/// Returns the fraction of the available memory that the KV cache may take. It is --mem-fraction-static, or 1 where
/// --max-total-tokens says how much is wanted; 0: the device's default.
[[nodiscard]] double memory_fraction(const EngineOptions& options);
/// Returns the head's options over pools of these sizes, for requests of up to `max_context` tokens where the pool
/// holds them. The caller adds what the processors and the model say.
[[nodiscard]] sched::HeadOptions head_options(const EngineOptions& options, const model::ModelConfig& config,
                                              cache::PoolSizes pages, uint32_t max_context);

}  // namespace millrace::app
