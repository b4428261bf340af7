#include "cuda/kv_codes.cuh"
#include "cuda/latent_kernels.h"
#include "cuda/rotary.cuh"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kLanes;  ///< one row each
constexpr uint16_t kNan = 0x7FC0;

struct StoreParams {
  const float* kv = nullptr;  // [rows, key_dim]
  int32_t rows = 0;
  int32_t latent_dim = 0;
  int32_t key_dim = 0;
  DeviceRotary rotary;
  const float* norm = nullptr;  // [latent_dim]
  float epsilon = 0.0f;
  DeviceBatch batch;
  DeviceKvCache cache;
  int32_t layer = 0;
};

/// A latent after its norm.
struct NormedLatent {
  const float* values = nullptr;
  const float* norm = nullptr;
  float factor = 1.0f;
  __device__ float operator[](int32_t i) const { return values[i] * factor * norm[i]; }
};

/// Returns whether a page cannot store a latent. Only rows that attend to this position may become NaN. Values that a
/// row does not see are multiplied by zero, which a NaN survives; so a fault of the latent moves to the key, whose
/// masked scores are ignored.
__device__ bool has_fault(const StoreParams& p, const NormedLatent& latent, int lane) {
  if (p.cache.element != KvElement::kBf16)
    return largest_magnitude_bits(latent, 0, p.latent_dim, lane) >= kCodedFaultBits;
  bool fault = false;
  for (int32_t i = lane; i < p.latent_dim; i += kLanes)
    fault = fault || (float_to_bf16(latent[i]) & 0x7F80u) == 0x7F80u;
  return __ballot_sync(kAllLanes, fault) != 0;
}

/// Stores a latent as codes, or as zeros where it has a fault.
__device__ void store_latent_codes(const StoreParams& p, const NormedLatent& latent, bool fault, int lane,
                                   std::byte* token) {
  auto* const codes = reinterpret_cast<uint8_t*>(token);
  auto* const scales = reinterpret_cast<uint16_t*>(token + latent_scales_offset(p.cache));
  const int32_t width = latent_scale_channels(p.cache);
  const int32_t used = fault ? 0 : ceil_div(p.latent_dim, width);
  if (fault) {
    for (int32_t i = lane; i < code_stride(p.latent_dim); i += kLanes) codes[i] = 0;
  } else {
    encode(p.cache.element, latent, lane,
           {.codes = codes, .scales = scales, .count = p.latent_dim, .scale_channels = width});
  }
  const int32_t stride = channel_stride(ceil_div(p.latent_dim, width));
  for (int32_t i = used + lane; i < stride; i += kLanes) scales[i] = 0;
}

/// Grid: [blocks of kWarps rows].
__global__ void __launch_bounds__(kThreads) store_latent_kernel(StoreParams p) {
  const int lane = threadIdx.x % kLanes;
  const int warp = threadIdx.x / kLanes;
  const int32_t row = static_cast<int32_t>(blockIdx.x) * kWarps + warp;
  const int32_t s = row < p.rows ? sequence_of(p.batch, row) : -1;
  if (s < 0) return;
  const int32_t position = p.batch.prefix[s] + row - p.batch.row_begin[s];
  const int32_t half = p.rotary.rotary_dim / 2;
  auto* const cos_table = reinterpret_cast<float*>(shared_memory()) + warp * 2 * half;  // [half]
  float* const sin_table = cos_table + half;
  compute_angles(p.rotary, position, lane, kLanes, cos_table, sin_table);

  const float* const latent = p.kv + static_cast<size_t>(row) * p.key_dim;
  float squares = 0.0f;
  for (int32_t i = lane; i < p.latent_dim; i += kLanes) squares += latent[i] * latent[i];
  const float factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(p.latent_dim) + p.epsilon);
  const NormedLatent normed{latent, p.norm, factor};
  const bool fault = has_fault(p, normed, lane);
  const uint32_t page = p.batch.pages[p.batch.page_begin[s] + position / p.cache.page_size];
  std::byte* const token = latent_in_page(p.cache, page, p.layer, position % p.cache.page_size);
  auto* key_out = reinterpret_cast<uint16_t*>(token) + p.latent_dim;
  int32_t padding = channel_stride(p.key_dim) - p.key_dim;
  if (p.cache.element == KvElement::kBf16) {
    auto* const out = reinterpret_cast<uint16_t*>(token);
    for (int32_t i = lane; i < p.latent_dim; i += kLanes) out[i] = fault ? uint16_t{0} : float_to_bf16(normed[i]);
  } else {
    store_latent_codes(p, normed, fault, lane, token);
    key_out = reinterpret_cast<uint16_t*>(token + code_stride(p.latent_dim));
    padding = channel_stride(2 * half) - 2 * half;
  }
  const float* const key = latent + p.latent_dim;
  __syncwarp();
  for (int32_t i = lane; i < half; i += kLanes) {
    const float x = key[i];
    const float y = key[i + half];
    key_out[i] = fault ? kNan : float_to_bf16(x * cos_table[i] - y * sin_table[i]);
    key_out[i + half] = fault ? kNan : float_to_bf16(y * cos_table[i] + x * sin_table[i]);
  }
  for (int32_t i = lane; i < padding; i += kLanes) key_out[2 * half + i] = 0;
}

}  // namespace

void store_latent(cudaStream_t stream, const float* kv, const tensor::LatentShape& shape, const DeviceRotary& rotary,
                  const float* norm, float norm_epsilon, const DeviceBatch& batch, const BatchBounds& bounds,
                  const DeviceKvCache& cache, int32_t layer) {
  launch<store_latent_kernel>({.name = "store_latent",
                               .grid = dim3(ceil_div(bounds.rows, kWarps)),
                               .block = dim3(kThreads),
                               .shared_bytes = kWarps * static_cast<size_t>(rotary.rotary_dim) * sizeof(float)},
                              stream,
                              StoreParams{.kv = kv,
                                          .rows = bounds.rows,
                                          .latent_dim = shape.latent_dim,
                                          .key_dim = shape.key_dim(),
                                          .rotary = rotary,
                                          .norm = norm,
                                          .epsilon = norm_epsilon,
                                          .batch = batch,
                                          .cache = cache,
                                          .layer = layer});
}

}  // namespace millrace::cuda
