#pragma once

#include <span>

#include "cpu/kernels.h"
#include "cpu/kv_cache.h"

namespace millrace::cpu {

inline constexpr int32_t kMaxKeyDim = 640;  ///< channels of a key that KvBlocks can locate

/// Gives one thread's pass of attention the keys and values of a layer, 64 at a time. Groups are used where they lie in
/// the cache, gathered from tokens, or widened from codes, all as the cache requires. It owns nothing: cache, batch and
/// scratch outlive it.
class KvBlocks {
 public:
  /// The keys of one KV head that share a turn.
  struct Position {
    size_t sequence = 0;
    int32_t head = 0;
    int32_t first_key = 0;
    /// The tokens whose latents are the keys, in place of all of the sequence. Empty: all are.
    std::span<const int32_t> chosen = {};
  };

  /// Returns the bytes of `scratch`.
  [[nodiscard]] static size_t scratch_bytes(const CpuKvCache& cache);
  KvBlocks(const Kernels& kernels, const tensor::BatchLayout& batch, const CpuKvCache& cache, int32_t layer,
           std::byte* scratch);

  /// Returns whether the blocks of a cache are latents in the order of tokens, for attention_block_latents.
  [[nodiscard]] static bool keeps_tokens(const Kernels& kernels, const CpuKvCache& cache) {
    return cache.has_latents() && cache.dtype() == tensor::DType::kBF16 && kernels.attention_block_latents != nullptr;
  }

  /// Locates the keys of one turn. Tokens are gathered into the `turn % 2`th half of the scratch, which the previous
  /// turn's block does not read. A cache of codes gives addresses to prefetch only.
  [[nodiscard]] KvBlock locate(const Position& position, int32_t turn) const;
  /// Makes a located block ready for use until the next call, and lets its passes prefetch the next one.
  void complete(const Position& position, const KvBlock& next, KvBlock& block) const;
  /// Makes a block's passes prefetch the latents of a later block where they lie, before they are gathered. Chosen
  /// tokens are not prefetched. Does nothing where keeps_tokens().
  void prefetch_latents(const Position& position, KvBlock& block) const;

 private:
  [[nodiscard]] int32_t key_count(const Position& position) const;
  [[nodiscard]] const PageId* pages_of(size_t sequence) const {
    return batch_.pages.data() + batch_.page_begin[sequence];
  }
  [[nodiscard]] const std::byte* tokens_at(const Position& position, int32_t token, int32_t count,
                                           std::byte* scratch) const;
  void gather_group(const Position& position, int32_t token, int32_t count, std::byte* k, std::byte* v) const;
  [[nodiscard]] const std::byte* codes_at(const Position& position, int32_t token) const;
  [[nodiscard]] const std::byte* coded_group(const Position& position, int32_t token, int32_t count) const;
  void widen(const Position& position, KvBlock& block) const;
  void widen_latents(const Position& position, KvBlock& block) const;
  void interleave(const std::byte* const* keys, const std::byte* const* values, std::byte* k, std::byte* v) const;

  const Kernels& kernels_;
  const tensor::BatchLayout& batch_;
  const CpuKvCache& cache_;
  const int32_t layer_;
  std::byte* const gathered_;  // [2][K [4 groups] | V [4 groups]]; one half in a cache of codes
  // [2], the last V group, cleared beyond the last key; or a group of codes; or 16 latents that were codes
  std::byte* const partial_groups_;
};

}  // namespace millrace::cpu
