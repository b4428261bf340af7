#pragma once

#include <cstdint>
#include <optional>
#include <tuple>

#include "async/runtime.h"
#include "cache/pool_division.h"
#include "model/quantization.h"
#include "sched/stage/ring_config.h"
#include "tensor/dtype.h"
#include "tensor/isa.h"
#include "tensor/kv_dtype.h"

namespace millrace::sched {

/// What every stage of a ring has in common. Flags of the head's node fill it, assignments carry it to the other nodes,
/// and stages are loaded and built from it.
struct StageConfig {
  uint32_t rank_count = 1;        ///< tensor-parallel ranks of each stage
  uint32_t expert_ring = 0;       ///< the ring's number among those that divide the experts of the model among them
  uint32_t expert_rings = 1;      ///< rings that do so, also in other processes; 1: this ring has all experts
  uint32_t page_size = 64;        ///< tokens
  uint32_t max_batch_tokens = 0;  ///< rows of the largest micro-batch
  uint32_t max_running = 64;      ///< sequences that run at once
  uint32_t max_draft_rows = 0;    ///< rows that drafts may take of a micro-batch
  uint32_t window = 1;            ///< plans in flight
  uint32_t context_length = 0;    ///< tokens of the longest sequence; 0: the model's own
  uint32_t expected_tokens = 0;   ///< length of a typical sequence, by which cache groups share memory; 0: unknown
  uint32_t wanted_pages = 0;      ///< pages of the first cache group that are asked for; 0: as memory allows
  bool shares_prefixes = true;    ///< sequences stay cached for others
  uint32_t sampling_vocab = 0;    ///< ids that can be sampled
  double memory_fraction = 0;     ///< part of the memory available at start for the KV cache; 0: the device's default
  tensor::DType dtype = tensor::DType::kBF16;                     ///< of GEMMs and of attention
  tensor::KvDType kv_dtype = tensor::KvDType::kAuto;              ///< of the KV cache
  tensor::DType reduce_dtype = tensor::DType::kF32;               ///< of sums between ranks on several nodes
  std::optional<tensor::Isa> isa;                                 ///< of the CPU kernels; empty: each node's own choice
  model::Quantization quantization = model::Quantization::kNone;  ///< of projections; kNone: as the checkpoint
  async::Duration watchdog{};   ///< a run that takes longer fails its stage; 0: no limit
  bool has_store = false;       ///< every stage has a page store after its host tier
  bool has_output_head = true;  ///< the last stage loads the output head; else the ring only pools

  [[nodiscard]] bool shares_experts() const { return expert_rings > 1; }
  friend bool operator==(const StageConfig&, const StageConfig&) = default;
};

/// The members of StageConfig in the order of the wire. Encoder and decoder go through it.
inline constexpr auto kStageConfigFields = std::tuple(
    &StageConfig::rank_count, &StageConfig::expert_ring, &StageConfig::expert_rings, &StageConfig::page_size,
    &StageConfig::max_batch_tokens, &StageConfig::max_running, &StageConfig::max_draft_rows, &StageConfig::window,
    &StageConfig::context_length, &StageConfig::expected_tokens, &StageConfig::wanted_pages,
    &StageConfig::shares_prefixes, &StageConfig::sampling_vocab, &StageConfig::memory_fraction, &StageConfig::dtype,
    &StageConfig::kv_dtype, &StageConfig::reduce_dtype, &StageConfig::isa, &StageConfig::quantization,
    &StageConfig::watchdog, &StageConfig::has_store, &StageConfig::has_output_head);

/// Returns what the sizes of window pools follow from.
[[nodiscard]] inline cache::PoolNeeds pool_needs(const StageConfig& stage) {
  return {.page_size = stage.page_size,
          .plan_tokens = stage.max_batch_tokens,
          .max_running = stage.max_running,
          .shares_prefixes = stage.shares_prefixes,
          .longest_tokens = stage.context_length,
          .expected_tokens = stage.expected_tokens};
}

/// Returns the shape of a ring of `stage_count` stages, once the sizes of its page pools are agreed. `windows` are
/// those of the model's window groups.
[[nodiscard]] inline RingConfig ring_config(const StageConfig& stage, uint32_t stage_count, uint32_t vocab_size,
                                            cache::PoolSizes pages, std::span<const WindowSpec> windows) {
  return {.stage_count = stage_count,
          .rank_count = stage.rank_count,
          .window = stage.window,
          .bounds = {.slot_count = stage.max_running,
                     .page_size = stage.page_size,
                     .page_count = pages.device,
                     .max_batch_tokens = stage.max_batch_tokens,
                     .vocab_size = vocab_size,
                     .host_page_count = pages.host,
                     .sampling_vocab = stage.sampling_vocab,
                     .has_output_head = stage.has_output_head,
                     .windows = cache::divide_pools(windows, pages, pool_needs(stage))},
          .watchdog = stage.watchdog};
}

}  // namespace millrace::sched
