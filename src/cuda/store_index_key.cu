#include "cuda/batch.cuh"
#include "cuda/indexer_kernels.h"
#include "cuda/rotary.cuh"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kLanes;  ///< one row each
constexpr uint16_t kNan = 0x7FC0;

struct IndexKeyParams {
  const float* key = nullptr;  // [rows, dim]
  int32_t rows = 0;
  int32_t dim = 0;
  DeviceRotary rotary;
  const float* norm = nullptr;  // [dim]
  const float* bias = nullptr;  // [dim]
  double epsilon = 0.0;
  DeviceBatch batch;
  DeviceKvCache cache;
  int32_t layer = 0;
};

/// Returns the bytes of shared memory of a row: its angles and its key.
size_t row_bytes(const IndexKeyParams& p) {
  return static_cast<size_t>(p.rotary.rotary_dim + p.dim) * sizeof(float);
}

/// Grid: [blocks of kWarps rows]. Sums are f64, as those of layer_norm.
__global__ void __launch_bounds__(kThreads) store_index_key_kernel(IndexKeyParams p) {
  const int lane = threadIdx.x % kLanes;
  const int warp = threadIdx.x / kLanes;
  const int32_t row = static_cast<int32_t>(blockIdx.x) * kWarps + warp;
  const int32_t s = row < p.rows ? sequence_of(p.batch, row) : -1;
  if (s < 0) return;
  const int32_t position = p.batch.prefix[s] + row - p.batch.row_begin[s];
  const int32_t half = p.rotary.rotary_dim / 2;
  auto* const cos_table = reinterpret_cast<float*>(shared_memory()) + warp * (2 * half + p.dim);  // [half]
  float* const sin_table = cos_table + half;
  float* const values = sin_table + half;  // [dim]
  compute_angles(p.rotary, position, lane, kLanes, cos_table, sin_table);

  const float* const key = p.key + static_cast<size_t>(row) * p.dim;
  const auto count = static_cast<double>(p.dim);
  double sum = 0.0;
  for (int32_t i = lane; i < p.dim; i += kLanes) sum += static_cast<double>(key[i]);
  const double mean = warp_sum(sum) / count;
  double squares = 0.0;
  for (int32_t i = lane; i < p.dim; i += kLanes) {
    const double distance = static_cast<double>(key[i]) - mean;
    squares += distance * distance;
  }
  const double inverse = 1.0 / sqrt(warp_sum(squares) / count + p.epsilon);
  for (int32_t i = lane; i < p.dim; i += kLanes)
    values[i] = static_cast<float>((static_cast<double>(key[i]) - mean) * inverse) * p.norm[i] + p.bias[i];
  __syncwarp();
  const auto rotated = [&](int32_t i) {
    if (i >= 2 * half) return float_to_bf16(values[i]);
    const int32_t pair = i < half ? i : i - half;
    const float x = values[pair];
    const float y = values[pair + half];
    return i < half ? float_to_bf16(x * cos_table[pair] - y * sin_table[pair])
                    : float_to_bf16(y * cos_table[pair] + x * sin_table[pair]);
  };
  // A key that is not finite becomes NaN, the largest score, so that every row that could see it does.
  bool fault = false;
  for (int32_t i = lane; i < p.dim; i += kLanes) fault = fault || (rotated(i) & 0x7F80u) == 0x7F80u;
  fault = __ballot_sync(kAllLanes, fault) != 0;

  const uint32_t page = p.batch.pages[p.batch.page_begin[s] + position / p.cache.page_size];
  uint16_t* const out = index_key_in_page(p.cache, page, p.layer, position % p.cache.page_size);
  for (int32_t i = lane; i < channel_stride(p.dim); i += kLanes)
    out[i] = i >= p.dim ? uint16_t{0} : fault ? kNan : rotated(i);
}

}  // namespace

void store_index_key(cudaStream_t stream, const float* key, const tensor::IndexerShape& shape,
                     const DeviceRotary& rotary, const float* norm, const float* norm_bias, float norm_epsilon,
                     const DeviceBatch& batch, const BatchBounds& bounds, const DeviceKvCache& cache, int32_t layer) {
  const IndexKeyParams p{.key = key,
                         .rows = bounds.rows,
                         .dim = shape.head_dim,
                         .rotary = rotary,
                         .norm = norm,
                         .bias = norm_bias,
                         .epsilon = static_cast<double>(norm_epsilon),
                         .batch = batch,
                         .cache = cache,
                         .layer = layer};
  launch<store_index_key_kernel>({.name = "store_index_key",
                                  .grid = dim3(ceil_div(bounds.rows, kWarps)),
                                  .block = dim3(kThreads),
                                  .shared_bytes = kWarps * row_bytes(p)},
                                 stream, p);
}

}  // namespace millrace::cuda
