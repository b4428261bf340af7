#include "cuda/kv_codes.cuh"
#include "cuda/rotary.cuh"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kLanes;
/// Heads of a row that share the computation of its angles.
constexpr int kBlockHeads = 16;
constexpr uint32_t kNan = 0x7FC0;

struct RotaryParams {
  const float* qkv = nullptr;
  int32_t head_count = 0;
  DeviceRotary rotary;
  HeadNorms norms;
  DeviceBatch batch;
  DeviceKvCache cache;
  int32_t layer = 0;
  uint16_t* q = nullptr;
};

/// Returns the inverse of a head's root mean square.
__device__ float norm_factor(const float* head, float epsilon, int32_t dim, int lane) {
  float squares = 0.0f;
  for (int32_t i = lane; i < dim; i += kLanes) squares += head[i] * head[i];
  return 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(dim) + epsilon);
}

/// The LayerNorm of a head, without its weights.
struct LayerNormed {
  const float* head = nullptr;
  float mean = 0.0f;
  float factor = 1.0f;
  __device__ LayerNormed(const float* from, float epsilon, int32_t dim, int lane) : head(from) {
    float sum = 0.0f;
    for (int32_t i = lane; i < dim; i += kLanes) sum += head[i];
    mean = warp_sum(sum) / static_cast<float>(dim);
    float squares = 0.0f;
    for (int32_t i = lane; i < dim; i += kLanes) squares += (head[i] - mean) * (head[i] - mean);
    factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(dim) + epsilon);
  }
  __device__ float operator[](int32_t i) const { return (head[i] - mean) * factor; }
};

/// Rotates the channels that `value(i)` returns. `store(i, x)` receives channel i.
template <class Value, class Store>
__device__ void rotate_channels(const RotaryParams& r, const float* cos, const float* sin, int lane, const Value& value,
                                const Store& store) {
  const int32_t half = r.rotary.rotary_dim / 2;
  for (int32_t i = lane; i < half; i += kLanes) {
    const float x = value(i);
    const float y = value(i + half);
    store(i, x * cos[i] - y * sin[i]);
    store(i + half, y * cos[i] + x * sin[i]);
  }
  for (int32_t i = 2 * half + lane; i < r.cache.head_dim; i += kLanes) store(i, value(i));
}

/// Normalises and rotates one head and multiplies it by `scale`. `store(i, x)` receives channel i.
template <class Store>
__device__ void rotate_head(const RotaryParams& r, const float* head, const float* norm, const float* cos,
                            const float* sin, float scale, int lane, const Store& store) {
  const int32_t dim = r.cache.head_dim;
  if (norm != nullptr && r.norms.kind == tensor::HeadNorm::kLayer) {
    const LayerNormed normed(head, r.norms.epsilon, dim, lane);
    rotate_channels(
        r, cos, sin, lane, [&](int32_t i) { return normed[i] * norm[i]; },
        [&](int32_t i, float x) { store(i, x * scale); });
    return;
  }
  const float factor = norm == nullptr ? 1.0f : norm_factor(head, r.norms.epsilon, dim, lane);
  if (norm != nullptr && r.norms.kind == tensor::HeadNorm::kRotatedRms) {
    // The rotation changes no sum of squares.
    rotate_channels(
        r, cos, sin, lane, [&](int32_t i) { return head[i] * factor; },
        [&](int32_t i, float x) { store(i, x * norm[i] * scale); });
    return;
  }
  rotate_channels(
      r, cos, sin, lane, [&](int32_t i) { return norm == nullptr ? head[i] : head[i] * factor * norm[i]; },
      [&](int32_t i, float x) { store(i, x * scale); });
}

/// Returns the weights of a head's norm.
__device__ const float* norm_of_head(const RotaryParams& r, const float* norm, int32_t head) {
  const bool has_own = norm != nullptr && r.norms.kind == tensor::HeadNorm::kLayer;
  return has_own ? norm + head * r.cache.head_dim : norm;
}

/// Stores the channels of a head in bf16.
struct StoreBf16 {
  uint16_t* out = nullptr;
  __device__ void operator()(int32_t i, float value) const { out[i] = float_to_bf16(value); }
};

/// A value of one head, and the factor of its norm.
struct HeadValue {
  const float* data = nullptr;
  float factor = 1.0f;
  __device__ HeadValue(const RotaryParams& r, const float* key, int lane)
      : data(r.norms.values_are_keys ? key : key + r.cache.kv_head_count * r.cache.head_dim) {
    if (r.norms.of_values) factor = norm_factor(data, r.norms.epsilon, r.cache.head_dim, lane);
  }
  __device__ float operator[](int32_t i) const { return data[i] * factor; }
};

/// Returns whether a value is non-finite. Only rows that attend to this position may become NaN. Masked values are
/// multiplied by zero, which a NaN survives; so the fault moves to the key, whose masked scores are ignored.
__device__ bool has_fault(const HeadValue& value, int32_t dim, int lane) {
  bool fault = false;
  for (int32_t i = lane; i < dim; i += kLanes) fault = fault || (float_to_bf16(value[i]) & 0x7F80u) == 0x7F80u;
  return __ballot_sync(kAllLanes, fault) != 0;
}

__device__ void store_key_value(const RotaryParams& r, const float* key, const float* norm, const float* cos,
                                const float* sin, int lane, uint16_t* key_out, uint16_t* value_out) {
  const int32_t dim = r.cache.head_dim;
  const HeadValue value(r, key, lane);
  const bool fault = has_fault(value, dim, lane);
  if (fault) {
    for (int32_t i = lane; i < dim; i += kLanes) key_out[i] = kNan;
  } else {
    rotate_head(r, key, norm, cos, sin, 1.0f, lane, StoreBf16{key_out});
  }
  for (int32_t i = lane; i < dim; i += kLanes) value_out[i] = fault ? uint16_t{0} : float_to_bf16(value[i]);
  for (int32_t i = dim + lane; i < channel_stride(dim); i += kLanes) key_out[i] = value_out[i] = 0;
}

/// Stores a key and its value as codes. `heads` [2][head_dim] is the warp's shared memory.
__device__ void store_coded_key_value(const RotaryParams& r, const float* key, const float* norm, const float* cos,
                                      const float* sin, int lane, const CodedToken& token, float* heads) {
  const int32_t dim = r.cache.head_dim;
  const HeadValue value(r, key, lane);
  float* const normed = heads + dim;
  rotate_head(r, key, norm, cos, sin, 1.0f, lane, [heads](int32_t i, float x) { heads[i] = x; });
  for (int32_t i = lane; i < dim; i += kLanes) normed[i] = value[i];
  __syncwarp();
  store_codes(r.cache, token, heads, normed, lane);
  __syncwarp();
}

__global__ void __launch_bounds__(kThreads) rotary_store_kv_kernel(RotaryParams r) {
  const auto row = static_cast<int32_t>(blockIdx.x);
  const int32_t s = sequence_of(r.batch, row);
  if (s < 0) return;
  const int32_t position = r.batch.prefix[s] + row - r.batch.row_begin[s];
  const int32_t half = r.rotary.rotary_dim / 2;
  auto* const cos_table = reinterpret_cast<float*>(shared_memory());  // [half]
  float* const sin_table = cos_table + half;
  compute_angles(r.rotary, position, threadIdx.x, kThreads, cos_table, sin_table);
  __syncthreads();
  const int32_t dim = r.cache.head_dim;
  const int32_t kv_heads = r.cache.kv_head_count;
  const int32_t slot = position % r.cache.page_size;
  const uint32_t page = r.batch.pages[r.batch.page_begin[s] + position / r.cache.page_size];
  const int32_t kept = r.norms.queries_only ? 0 : r.norms.values_are_keys ? 1 : 2;  // keys, values or both
  const int32_t heads = r.head_count + kept * kv_heads;                             // of qkv
  const float* const in = r.qkv + static_cast<size_t>(row) * heads * dim;
  const int lane = threadIdx.x % kLanes;
  const float query_scale = query_factor(r.rotary, position);
  const int32_t first = static_cast<int32_t>(blockIdx.y) * kBlockHeads;
  const int32_t end = min(first + kBlockHeads, r.head_count + (r.norms.queries_only ? 0 : kv_heads));
  for (int32_t head = first + static_cast<int32_t>(threadIdx.x) / kLanes; head < end; head += kWarps) {
    const float* const from = in + head * dim;
    if (head < r.head_count) {
      uint16_t* const to = r.q + (static_cast<size_t>(row) * r.head_count + head) * dim;
      rotate_head(r, from, norm_of_head(r, r.norms.q, head), cos_table, sin_table, query_scale, lane, StoreBf16{to});
      continue;
    }
    const int32_t kv_head = head - r.head_count;
    const float* const norm = norm_of_head(r, r.norms.k, kv_head);
    if (r.cache.element != KvElement::kBf16) {
      float* const own = sin_table + half + threadIdx.x / kLanes * 2 * dim;
      store_coded_key_value(r, from, norm, cos_table, sin_table, lane,
                            coded_token(r.cache, page, r.layer, kv_head, slot), own);
      continue;
    }
    const size_t at = static_cast<size_t>(slot) * channel_stride(dim);
    store_key_value(r, from, norm, cos_table, sin_table, lane,
                    head_in_page(r.cache, page, r.layer, KeyOrValue::kKey, kv_head) + at,
                    head_in_page(r.cache, page, r.layer, KeyOrValue::kValue, kv_head) + at);
  }
}

}  // namespace

void rotary_store_kv(cudaStream_t stream, const float* qkv, int32_t head_count, const DeviceRotary& rotary,
                     const HeadNorms& norms, const DeviceBatch& batch, const BatchBounds& bounds,
                     const DeviceKvCache& cache, int32_t layer, void* q) {
  const int32_t units = ceil_div(head_count + (norms.queries_only ? 0 : cache.kv_head_count), kBlockHeads);
  const int32_t code_values = cache.element == KvElement::kBf16 ? 0 : 2 * kWarps * cache.head_dim;
  launch<rotary_store_kv_kernel>({.name = "rotary_store_kv",
                                  .grid = dim3(bounds.rows, units),
                                  .block = dim3(kThreads),
                                  .shared_bytes = (rotary.rotary_dim + code_values) * sizeof(float)},
                                 stream,
                                 RotaryParams{.qkv = qkv,
                                              .head_count = head_count,
                                              .rotary = rotary,
                                              .norms = norms,
                                              .batch = batch,
                                              .cache = cache,
                                              .layer = layer,
                                              .q = static_cast<uint16_t*>(q)});
}

}  // namespace millrace::cuda
