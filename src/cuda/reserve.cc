#include "cuda/reserve.h"

#include <fmt/core.h>

#include <algorithm>
#include <stdexcept>

#include "cuda/error.h"
#include "cuda/graph_cache.h"
#include "cuda/indexer_kernels.h"
#include "cuda/kv_cache.h"
#include "cuda/latent_kernels.h"
#include "cuda/recurrent_kernels.h"
#include "cuda/sampling.h"
#include "cuda/upload_batch.h"
#include "cuda/weights.h"
#include "tensor/padded_context.h"

namespace millrace::cuda {
namespace {

/// List entries per sampled row: biases, banned tokens and, with penalties, history. One full-length history also has
/// room.
constexpr size_t kListEntries = 1024;
/// Uploads of one piece of work before the logits: a batch and one of the tail rows for each of two cache groups, the
/// tokens, the positions and types of an encoder, the tail rows, two batches of rows of all rings. More cache groups
/// make further ones when first used.
constexpr size_t kBatchUploads = 10;
/// Uploads per block of logits: its rows, the sampling inputs, the scoring inputs.
constexpr size_t kBlockUploads = 3;
constexpr size_t kBlockDownloads = 2;

size_t max_gemm_scratch(const tensor::WorkBounds& bounds) {
  size_t most = 0;
  for (const tensor::PackedWeight* weight : bounds.weights) {
    const auto& found = *static_cast<const CudaWeight*>(weight);
    // Smaller batches count too, since few rows sometimes need more than many.
    for (int32_t rows = bounds.rows; rows > 0; rows /= 2) most = std::max(most, gemm_scratch_bytes(found, rows));
  }
  return most;
}

size_t max_spread_scratch(const tensor::WorkBounds& bounds) {
  size_t most = 0;
  for (const tensor::PackedWeight* weight : bounds.weights)
    most = std::max(most, spread_scratch_bytes(*static_cast<const CudaWeight*>(weight), bounds.rows));
  return most;
}

/// Returns the layout of the cache of a layer's heads, which in some models differ from those of other layers.
DeviceKvCache cache_of(const tensor::AttentionShape& attention, DeviceKvCache cache) {
  cache.kv_head_count = attention.kv_head_count;
  cache.head_dim = attention.head_dim;
  return cache;
}

size_t max_attention_scratch(const tensor::WorkBounds& bounds, const DeviceKvCache& cache, MatrixInstruction products) {
  const int32_t sequences = GraphCache::bucket(bounds.sequences);
  const int32_t splits = split_bound(int64_t{sequences} * splits_of(1, bounds.context), static_cast<size_t>(sequences));
  const auto batch_of = [&](int32_t rows) {
    return BatchBounds{.rows = bounds.rows, .sequences = sequences, .sequence_rows = rows, .splits = splits};
  };
  size_t most = 0;
  for (const tensor::LatentShape& latent : bounds.latent_attention) {
    for (int32_t rows = bounds.rows; rows > 0; rows /= 2)
      most = std::max(most, latent_attention_workspace_bytes(latent, batch_of(rows), products));
  }
  if (const tensor::IndexerShape& indexer = bounds.indexer; indexer.head_count > 0) {
    BatchBounds batch = batch_of(bounds.rows);
    batch.context = tensor::padded_context(bounds.context, indexer.chosen_count);  // as graphs pad it
    most = std::max(most, choose_tokens_workspace_bytes(indexer, batch));
    for (const tensor::LatentShape& latent : bounds.latent_attention)
      most = std::max(most, sparse_latent_attention_workspace_bytes(latent, indexer.chosen_count, batch, products));
  }
  for (const tensor::AttentionShape& attention : bounds.attention) {
    const AttentionSizes sizes{
        .head_count = attention.head_count, .scale = attention.scale, .sliding_window = attention.sliding_window};
    for (int32_t rows = bounds.rows; rows > 0; rows /= 2)
      most = std::max(most, attention_workspace_bytes(sizes, cache_of(attention, cache), batch_of(rows)));
  }
  return most;
}

size_t max_expert_scratch(const tensor::WorkBounds& bounds) {
  size_t most = 0;
  for (const tensor::Experts* experts : bounds.experts) {
    const DeviceExperts& found = static_cast<const CudaExperts*>(experts)->get();
    most = std::max(most, fused_moe_workspace_bytes(found, std::max(bounds.rows, bounds.expert_rows)));
  }
  return most;
}

/// Checks that a block of attention over `what` fits the device's shared memory.
void check_shared_bytes(const Device& device, const std::string& what, size_t wanted) {
  int most = 0;
  check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device.ordinal),
        "cudaDeviceGetAttribute");
  if (wanted <= static_cast<size_t>(most)) return;
  throw std::runtime_error(
      fmt::format("CUDA: attention over {} takes {} bytes of shared memory per block, device {} ({}) has {}", what,
                  wanted, device.ordinal, describe_device(device.ordinal), most));
}

/// Checks the model's sizes at start rather than at the first prompt.
void check_model(const Device& device, const tensor::WorkBounds& bounds, const DeviceKvCache& cache) {
  if (bounds.vocab > kMaxVocab) {
    throw std::runtime_error(fmt::format("CUDA: a vocabulary of {} ids, wanted at most {}", bounds.vocab, kMaxVocab));
  }
  for (const tensor::LatentShape& latent : bounds.latent_attention) {
    if (latent.latent_dim > kMaxLatentDim || latent.key_dim() > kMaxLatentKeyDim) {
      throw std::runtime_error(
          fmt::format("CUDA: attention over latents of {} values with keys of {}, wanted at most "
                      "{} and {}",
                      latent.latent_dim, latent.key_dim(), kMaxLatentDim, kMaxLatentKeyDim));
    }
    check_shared_bytes(device, fmt::format("latents of {} values", latent.latent_dim),
                       latent_attention_shared_bytes(latent));
  }
  if (bounds.indexer.head_dim > kMaxIndexDim) {
    throw std::runtime_error(
        fmt::format("CUDA: an indexer of {} channels, wanted at most {}", bounds.indexer.head_dim, kMaxIndexDim));
  }
  if (bounds.state_rows > kMaxStateRows) {
    throw std::runtime_error(
        fmt::format("CUDA: recurrent states of {} rows, wanted at most {}", bounds.state_rows, kMaxStateRows));
  }
  for (const tensor::AttentionShape& attention : bounds.attention) {
    if (attention.head_dim > kMaxHeadDim) {
      throw std::runtime_error(
          fmt::format("CUDA: attention over heads of {} channels, wanted at most {}", attention.head_dim, kMaxHeadDim));
    }
    check_shared_bytes(device, fmt::format("heads of {} channels", attention.head_dim),
                       attention_shared_bytes(cache_of(attention, cache)));
  }
}

}  // namespace

void reserve_scratch(Device& device, Submissions& submissions, const tensor::WorkBounds& bounds,
                     tensor::KvDType stored) {
  const DeviceKvCache cache = layout_of(bounds.cache, stored);
  check_model(device, bounds, cache);
  const auto rows = static_cast<size_t>(bounds.rows);
  const auto sequences = static_cast<size_t>(GraphCache::bucket(bounds.sequences));
  const auto context = static_cast<size_t>(bounds.context);
  const auto page_size = static_cast<size_t>(bounds.cache.page_size);
  (void)device.scratch(device.gemm_scratch, max_gemm_scratch(bounds));
  if (const size_t spread = max_spread_scratch(bounds); spread > 0) (void)device.scratch(device.spread_scratch, spread);
  (void)device.scratch(device.attention_scratch, max_attention_scratch(bounds, cache, device.products));
  (void)device.scratch(device.expert_scratch, max_expert_scratch(bounds));
  const size_t batch_pages = static_cast<size_t>(bounds.sequences) * ((context + page_size - 1) / page_size);
  const size_t batch = uploaded_batch_bytes(sequences, batch_pages);
  const size_t lookups = rows * static_cast<size_t>(bounds.row_lookups);
  std::vector<size_t> uploads(kBatchUploads, std::max(batch, lookups * sizeof(int32_t)));
  std::vector<size_t> downloads;
  if (bounds.logit_rows > 0) {
    const auto drawn = static_cast<size_t>(bounds.logit_rows);
    const auto blocks = static_cast<size_t>(bounds.logit_blocks);
    const size_t lists = drawn * kListEntries + context;
    const size_t largest = std::max(sample_input_bytes(drawn, lists, bounds.vocab), score_input_bytes(drawn));
    for (size_t& upload : uploads) upload = std::max(upload, largest);  // a stage that embeds nothing has one fewer
    uploads.insert(uploads.end(), kBlockUploads * blocks, largest);
    downloads.assign(kBlockDownloads * blocks, sample_output_bytes(drawn, kMaxTopLogprobs));
    (void)device.scratch(device.sample_scratch, sample_workspace_bytes(bounds.logit_rows, bounds.vocab));
    (void)device.scratch(device.sample_results, sample_output_bytes(drawn, kMaxTopLogprobs));
  }
  submissions.reserve(uploads, downloads);
}

}  // namespace millrace::cuda
