#include "cpu/kv_blocks.h"

#include <algorithm>
#include <cstring>

namespace millrace::cpu {
namespace {

/// Readable zeros for groups after the last key: 16 keys of f32 channels.
alignas(64) constexpr std::byte kZeroGroup[kGroupKeys * kMaxKeyDim * 4] = {};

size_t half_bytes(const CpuKvCache& cache) {
  return kBlockGroups * (cache.group_bytes() + cache.value_group_bytes());
}

size_t gathered_bytes(const CpuKvCache& cache) {
  return (cache.has_codes() ? 1 : 2) * half_bytes(cache);
}

/// Returns the bytes of two V groups, of a group of codes, or of 16 latents that were codes.
size_t partial_bytes(const CpuKvCache& cache) {
  if (cache.latent_codes() != nullptr) return cache.group_bytes();
  return cache.codes() != nullptr ? cache.codes()->group_bytes() : 2 * cache.value_group_bytes();
}

}  // namespace

size_t KvBlocks::scratch_bytes(const CpuKvCache& cache) {
  return gathered_bytes(cache) + partial_bytes(cache);
}

KvBlocks::KvBlocks(const Kernels& kernels, const tensor::BatchLayout& batch, const CpuKvCache& cache, int32_t layer,
                   std::byte* scratch)
    : kernels_(kernels),
      batch_(batch),
      cache_(cache),
      layer_(layer),
      gathered_(scratch),
      partial_groups_(scratch + gathered_bytes(cache)) {}

int32_t KvBlocks::key_count(const Position& position) const {
  if (!position.chosen.empty()) return static_cast<int32_t>(position.chosen.size());
  const size_t sequence = position.sequence;
  return batch_.prefix[sequence] + batch_.row_begin[sequence + 1] - batch_.row_begin[sequence];
}

/// Returns the group of the `count` latents that begins at `token`: where it lies, or in the scratch. Zeros follow
/// them.
const std::byte* KvBlocks::tokens_at(const Position& position, int32_t token, int32_t count, std::byte* scratch) const {
  const int32_t page_size = cache_.shape().page_size;
  const PageId* const pages = pages_of(position.sequence);
  const auto latent = [&](int32_t at) { return cache_.key_at(pages[at / page_size], layer_, 0, at % page_size); };
  if (position.chosen.empty() && count == kGroupKeys && page_size % kGroupKeys == 0) return latent(token);
  const size_t bytes = cache_.group_bytes() / kGroupKeys;
  for (int32_t lane = 0; lane < count; ++lane) {
    const int32_t at = position.chosen.empty() ? token + lane : position.chosen[static_cast<size_t>(token + lane)];
    std::memcpy(scratch + static_cast<size_t>(lane) * bytes, latent(at), bytes);
  }
  std::memset(scratch + static_cast<size_t>(count) * bytes, 0, static_cast<size_t>(kGroupKeys - count) * bytes);
  return scratch;
}

/// Builds the groups at `k` and `v` from the `count` tokens that begin at `token`. The other lanes are zeros.
void KvBlocks::gather_group(const Position& position, int32_t token, int32_t count, std::byte* k, std::byte* v) const {
  const int32_t page_size = cache_.shape().page_size;
  const PageId* const pages = pages_of(position.sequence);
  const std::byte* keys[kGroupKeys];
  const std::byte* values[kGroupKeys];
  for (int32_t lane = 0; lane < kGroupKeys; ++lane) {
    const bool known = lane < count;
    const int32_t at =
        known && !position.chosen.empty() ? position.chosen[static_cast<size_t>(token + lane)] : token + lane;
    keys[lane] = known ? cache_.key_at(pages[at / page_size], layer_, position.head, at % page_size) : kZeroGroup;
    values[lane] = known ? cache_.value_at(pages[at / page_size], layer_, position.head, at % page_size) : kZeroGroup;
  }
  interleave(keys, values, k, v);
}

/// Builds groups from 16 keys and values.
void KvBlocks::interleave(const std::byte* const* keys, const std::byte* const* values, std::byte* k,
                          std::byte* v) const {
  kernels_.gather_keys(keys, static_cast<int>(cache_.group_bytes() / kGroupKeys / 4), k, kGroupKeys * 4);
  if (cache_.dtype() == tensor::DType::kBF16) {
    kernels_.gather_values_bf16(values, cache_.padded_value_dim(), v);
  } else {
    const size_t row_bytes = cache_.value_group_bytes() / kGroupKeys;
    for (int32_t lane = 0; lane < kGroupKeys; ++lane) std::memcpy(v + lane * row_bytes, values[lane], row_bytes);
  }
}

/// Returns where the codes of the group at a token begin, to prefetch them; zeros for chosen latents, which lie apart.
const std::byte* KvBlocks::codes_at(const Position& position, int32_t token) const {
  const int32_t offset = token % cache_.shape().page_size;
  const PageId page = pages_of(position.sequence)[token / cache_.shape().page_size];
  if (cache_.latent_codes() == nullptr) return cache_.codes_at(page, layer_, position.head, offset);
  return position.chosen.empty() ? cache_.latent_codes_at(page, layer_, offset) : kZeroGroup;
}

/// Returns the codes of the group that begins at `token`. They are in the scratch where pages have no groups.
const std::byte* KvBlocks::coded_group(const Position& position, int32_t token, int32_t count) const {
  const int32_t page_size = cache_.shape().page_size;
  const PageId* const pages = pages_of(position.sequence);
  if (cache_.grouped()) return cache_.codes_at(pages[token / page_size], layer_, position.head, token % page_size);
  std::memset(partial_groups_, 0, cache_.codes()->group_bytes());
  for (int32_t lane = 0; lane < count; ++lane) {
    const int32_t at = token + lane;
    cache_.codes()->place(cache_.codes_at(pages[at / page_size], layer_, position.head, at % page_size), lane,
                          partial_groups_);
  }
  return partial_groups_;
}

KvBlock KvBlocks::locate(const Position& position, int32_t turn) const {
  const int32_t page_size = cache_.shape().page_size;
  const PageId* const pages = pages_of(position.sequence);
  const int32_t limit = key_count(position);
  const auto half = static_cast<size_t>(turn % 2);
  KvBlock block{.first_key = position.first_key};
  for (int32_t g = 0; g < kBlockGroups; ++g) {
    const int32_t token = position.first_key + g * kGroupKeys;
    const int32_t count = std::min(kGroupKeys, limit - token);
    if (count <= 0) {
      block.k[g] = block.v[g] = kZeroGroup;
    } else if (cache_.has_codes()) {
      block.k[g] = codes_at(position, token);
    } else if (cache_.grouped()) {
      const PageId page = pages[token / page_size];
      const size_t skip = static_cast<size_t>(token % page_size / kGroupKeys) * cache_.group_bytes();
      block.k[g] = cache_.keys(page, layer_, position.head) + skip;
      block.v[g] = cache_.values(page, layer_, position.head) + skip;
      if (count < kGroupKeys) {
        std::byte* const partial_group = partial_groups_ + half * cache_.value_group_bytes();
        std::memcpy(partial_group, block.v[g], cache_.group_bytes());
        cache_.clear_values(partial_group, count);
        block.v[g] = partial_group;
      }
    } else if (keeps_tokens(kernels_, cache_)) {
      std::byte* const scratch = gathered_ + half * half_bytes(cache_) + static_cast<size_t>(g) * cache_.group_bytes();
      block.k[g] = block.v[g] = tokens_at(position, token, count, scratch);
    } else {
      std::byte* const first = gathered_ + half * half_bytes(cache_);
      std::byte* const k = first + static_cast<size_t>(g) * cache_.group_bytes();
      std::byte* const v =
          first + kBlockGroups * cache_.group_bytes() + static_cast<size_t>(g) * cache_.value_group_bytes();
      gather_group(position, token, count, k, v);
      block.k[g] = k;
      block.v[g] = v;
    }
  }
  return block;
}

void KvBlocks::widen(const Position& position, KvBlock& block) const {
  const auto widen_codes = cache_.dtype() == tensor::DType::kBF16 ? kernels_.widen_kv_bf16 : kernels_.widen_kv_f32;
  const int32_t limit = key_count(position);
  for (int32_t g = 0; g < kBlockGroups; ++g) {
    const int32_t token = position.first_key + g * kGroupKeys;
    const int32_t count = std::min(kGroupKeys, limit - token);
    if (count <= 0) continue;
    std::byte* const k = gathered_ + static_cast<size_t>(g) * 2 * cache_.group_bytes();
    std::byte* const v = k + cache_.group_bytes();
    widen_codes(cache_.codes()->describe(coded_group(position, token, count), count), k, v);
    block.k[g] = k;
    block.v[g] = v;
  }
}

/// Widens the block's latents to groups of tokens, or to tokens that it gathers into groups.
void KvBlocks::widen_latents(const Position& position, KvBlock& block) const {
  const int32_t page_size = cache_.shape().page_size;
  const PageId* const pages = pages_of(position.sequence);
  const bool keeps = keeps_tokens(kernels_, cache_);
  const size_t row_bytes = cache_.group_bytes() / kGroupKeys;
  const int32_t limit = key_count(position);
  for (int32_t g = 0; g < kBlockGroups; ++g) {
    const int32_t token = position.first_key + g * kGroupKeys;
    const int32_t count = std::min(kGroupKeys, limit - token);
    if (count <= 0) continue;
    std::byte* const k = gathered_ + static_cast<size_t>(g) * (cache_.group_bytes() + cache_.value_group_bytes());
    std::byte* const latents = keeps ? k : partial_groups_;
    const std::byte* tokens[kGroupKeys];
    for (int32_t lane = 0; lane < count; ++lane) {
      const int32_t at = position.chosen.empty() ? token + lane : position.chosen[static_cast<size_t>(token + lane)];
      tokens[lane] = cache_.latent_codes_at(pages[at / page_size], layer_, at % page_size);
    }
    kernels_.widen_latents(cache_.latent_codes()->describe({tokens, static_cast<size_t>(count)}, cache_.padded_dim()),
                           latents);
    std::memset(latents + static_cast<size_t>(count) * row_bytes, 0,
                static_cast<size_t>(kGroupKeys - count) * row_bytes);
    block.k[g] = block.v[g] = k;
    if (keeps) continue;
    for (int32_t lane = 0; lane < kGroupKeys; ++lane) tokens[lane] = latents + static_cast<size_t>(lane) * row_bytes;
    std::byte* const v = k + cache_.group_bytes();
    interleave(tokens, tokens, k, v);
    block.v[g] = v;
  }
}

void KvBlocks::complete(const Position& position, const KvBlock& next, KvBlock& block) const {
  const bool has_codes = cache_.has_codes();
  if (has_codes) cache_.has_latents() ? widen_latents(position, block) : widen(position, block);
  for (int g = 0; g < kBlockGroups; ++g) {
    block.next_k[g] = next.k[g];
    // The codes of K and V lie together, as those of latents do. None are larger than a bf16 K group, whose passes
    // prefetch them all.
    block.next_v[g] = has_codes ? block.v[g] : next.v[g];
  }
}

void KvBlocks::prefetch_latents(const Position& position, KvBlock& block) const {
  const int32_t page_size = cache_.shape().page_size;
  if (!cache_.has_latents() || cache_.has_codes() || keeps_tokens(kernels_, cache_)) return;
  if (page_size % kGroupKeys != 0 || !position.chosen.empty()) return;
  const PageId* const pages = pages_of(position.sequence);
  for (int32_t g = 0; g < kBlockGroups; ++g) {
    const int32_t token = position.first_key + g * kGroupKeys;
    if (token < key_count(position)) {
      block.next_k[g] = cache_.key_at(pages[token / page_size], layer_, 0, token % page_size);
    }
  }
}

}  // namespace millrace::cpu
