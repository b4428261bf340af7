// The launch functions of cuda/kernels.h as plain loops that a stream of the fake runtime runs: what the host side of
// the backend is tested over where the kernels themselves are not the matter.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "cuda/emulator/emulator.h"
#include "cuda/kernels.h"
#include "cuda_backend/plain_numbers.h"
#include "cuda_backend/plain_weights.h"

namespace millrace::cuda {
namespace {

float element(const void* source, SourceType type, size_t index) {
  if (type == SourceType::kF32) return static_cast<const float*>(source)[index];
  const uint16_t bits = bf16(source)[index];
  return type == SourceType::kBF16 ? to_float(bits) : tensor::Float16{bits}.to_float();
}

/// Returns the behaviour of wgmma from MILLRACE_EMULATED_WGMMA: absent, wrong (sums are wrong), uneven (a row's bits
/// vary with the batch), or, by default, right.
std::string wgmma_of_the_device() {
  const char* given = std::getenv("MILLRACE_EMULATED_WGMMA");
  return given == nullptr ? "right" : given;
}

/// Calls each(row, feature, x · w) for all rows and all rows of the packed matrix.
template <class Each>
void multiply(const void* x, const DeviceWeight& weight, int32_t rows, int32_t packed_rows, const Each& each) {
  constexpr int32_t kMany = 64;
  const auto inner = static_cast<size_t>(weight.in_features);
  const bool by_wgmma = weight.by == MatrixInstruction::kWgmma;
  const bool wrong = by_wgmma && wgmma_of_the_device() == "wrong";
  const bool uneven = by_wgmma && rows > kMany && wgmma_of_the_device() == "uneven";
  const PlainWeight weights(weight);
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    for (size_t feature = 0; feature < static_cast<size_t>(packed_rows); ++feature) {
      float sum = dot(bf16(x) + row * inner, weights.row(feature), inner);
      if (wrong) sum += 1.0f;
      if (uneven) sum = std::nextafter(sum, 2.0f * sum);
      each(row, feature, sum);
    }
  }
}

/// Calls each(row, feature, x · w) with the sums of the weight's shards added in a binary tree.
template <class Each>
void multiply_shards(const void* x, const DeviceWeight& weight, int32_t rows, const Each& each) {
  const auto inner = static_cast<size_t>(weight.in_features);
  const PlainWeight weights(weight);
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    for (size_t feature = 0; feature < static_cast<size_t>(weight.out_features); ++feature) {
      std::vector<float> sums;
      for (int32_t s = 0; s < weight.shards.count; ++s) {
        const auto begin = static_cast<size_t>(weight.shards.border[s]);
        const auto end = static_cast<size_t>(weight.shards.border[s + 1]);
        sums.push_back(dot(bf16(x) + row * inner + begin, weights.row(feature) + begin, end - begin));
      }
      each(row, feature, tree_sum(sums));
    }
  }
}

/// Returns the K, or V, of one token and head in a page.
uint16_t* kv_at(const DeviceKvCache& cache, uint32_t page, int32_t layer, bool value, int32_t head, int32_t token) {
  const auto stride = static_cast<size_t>(channel_stride(cache.head_dim));
  const auto side = static_cast<size_t>(cache.kv_head_count * cache.page_size) * stride;
  std::byte* begin = static_cast<std::byte*>(cache.data) + page * kv_page_bytes(cache) +
                     static_cast<size_t>(layer) * kv_layer_bytes(cache);
  return reinterpret_cast<uint16_t*>(begin) + (value ? side : 0) +
         static_cast<size_t>(head * cache.page_size + token) * stride;
}

/// Calls each(row, sequence, position) for every row of a sequence.
template <class Each>
void each_row(const DeviceBatch& batch, const Each& each) {
  for (int32_t s = 0; s < *batch.sequence_count; ++s) {
    for (int32_t row = batch.row_begin[s]; row < batch.row_begin[s + 1]; ++row) {
      each(row, s, batch.prefix[s] + row - batch.row_begin[s]);
    }
  }
}

/// Checks that the bounds, which size grids, hold the batch at the time of running.
void check_bounds(const char* op, const DeviceBatch& batch, const BatchBounds& bounds) {
  const int32_t count = *batch.sequence_count;
  int32_t longest = 0;
  for (int32_t s = 0; s < count; ++s) longest = std::max(longest, batch.row_begin[s + 1] - batch.row_begin[s]);
  CHECK(count <= bounds.sequences && batch.row_begin[count] <= bounds.rows && longest <= bounds.sequence_rows &&
            batch.split_begin[count] <= bounds.splits,
        "{}: launched for {} sequences, {} rows, {} of one, {} splits; found {}, {}, {}, {}", op, bounds.sequences,
        bounds.rows, bounds.sequence_rows, bounds.splits, count, batch.row_begin[count], longest,
        batch.split_begin[count]);
}

uint32_t page_of(const DeviceBatch& batch, const DeviceKvCache& cache, int32_t sequence, int32_t position) {
  return batch.pages[batch.page_begin[sequence] + position / cache.page_size];
}

/// Returns the factor of the queries at a position.
float query_factor(const DeviceRotary& rotary, int32_t position) {
  const auto period = static_cast<float>(rotary.query_period);
  return 1.0f + rotary.query_beta * std::log(1.0f + std::floor(static_cast<float>(position) / period));
}

/// Returns one head [head_dim], normalised and rotated to its position.
std::vector<float> turned(const float* head, int32_t head_dim, const DeviceRotary& rotary, const float* norm,
                          float epsilon, int32_t position) {
  std::vector<float> values(head, head + head_dim);
  if (norm != nullptr) {
    float squares = 0.0f;
    for (const float value : values) squares += value * value;
    const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(head_dim) + epsilon);
    for (size_t i = 0; i < values.size(); ++i) values[i] *= inverse * norm[i];
  }
  const auto half = static_cast<size_t>(rotary.rotary_dim / 2);
  for (size_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(static_cast<float>(position) * rotary.inverse_frequency[i]);
    const auto cos = static_cast<float>(std::cos(angle)) * rotary.attention_factor;
    const auto sin = static_cast<float>(std::sin(angle)) * rotary.attention_factor;
    const float x = values[i];
    const float y = values[i + half];
    values[i] = x * cos - y * sin;
    values[i + half] = y * cos + x * sin;
  }
  return values;
}

void store(const std::vector<float>& values, uint16_t* to) {
  std::transform(values.begin(), values.end(), to, to_bf16);
}

/// A query head of one row.
struct Query {
  int32_t sequence = 0;
  int32_t position = 0;
  int32_t last_key = 0;
  int32_t head = 0;
  const uint16_t* q = nullptr;  // [head_dim]
};

/// Computes one query head over its keys, in the order of positions.
void attend(const Query& query, const AttentionSizes& sizes, const DeviceBatch& batch, const DeviceKvCache& cache,
            int32_t layer, uint16_t* out) {
  const auto dim = static_cast<size_t>(cache.head_dim);
  const int32_t kv_head = query.head / (sizes.head_count / cache.kv_head_count);
  const int32_t first = sizes.sliding_window > 0 ? std::max(0, query.position - sizes.sliding_window + 1) : 0;
  const auto at = [&](bool value, int32_t key) {
    return kv_at(cache, page_of(batch, cache, query.sequence, key), layer, value, kv_head, key % cache.page_size);
  };
  std::vector<float> weights;
  for (int32_t key = first; key <= query.last_key; ++key) {
    const float score = dot(query.q, at(false, key), dim) * sizes.scale;
    weights.push_back(sizes.soft_cap > 0.0f ? sizes.soft_cap * std::tanh(score / sizes.soft_cap) : score);
  }
  float max = *std::max_element(weights.begin(), weights.end());
  float total = 0.0f;
  if (sizes.sinks != nullptr) {
    max = std::max(max, sizes.sinks[query.head]);
    total = std::exp(sizes.sinks[query.head] - max);
  }
  std::vector<float> sums(dim, 0.0f);
  for (int32_t key = first; key <= query.last_key; ++key) {
    const float weight = std::exp(weights[static_cast<size_t>(key - first)] - max);
    const uint16_t* value = at(true, key);
    total += weight;
    for (size_t i = 0; i < dim; ++i) sums[i] += weight * to_float(value[i]);
  }
  for (float& sum : sums) sum /= total;
  store(sums, out);
}

}  // namespace

size_t packed_weight_bytes(int32_t out_features, int32_t in_features, bool gate_up) {
  return size_t{2} * static_cast<size_t>(out_features) * static_cast<size_t>(in_features) * (gate_up ? 2 : 1);
}

// Gate and up features alternate.
void pack_weight(cudaStream_t stream, const void* source, SourceType type, int32_t rows, int32_t in_features,
                 int32_t first_feature, PackAs as, void* packed) {
  emulator::emulated_enqueue(stream, [=] {
    const auto inner = static_cast<size_t>(in_features);
    for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
      const size_t feature = static_cast<size_t>(first_feature) + row;
      const size_t to = as == PackAs::kRows ? feature : 2 * feature + (as == PackAs::kUp ? 1 : 0);
      for (size_t i = 0; i < inner; ++i) {
        bf16(packed)[to * inner + i] = to_bf16(element(source, type, row * inner + i));
      }
    }
  });
}

void convert_to_bf16(cudaStream_t stream, const void* source, SourceType type, size_t count, void* out) {
  emulator::emulated_enqueue(stream, [=] {
    for (size_t i = 0; i < count; ++i) bf16(out)[i] = to_bf16(element(source, type, i));
  });
}

void embed(cudaStream_t stream, const void* table, int32_t vocab, int32_t width, const int32_t* tokens, int32_t rows,
           float* hidden) {
  emulator::emulated_enqueue(stream, [=] {
    for (int32_t row = 0; row < rows; ++row) {
      const int32_t token = tokens[row];
      for (int32_t i = 0; i < width; ++i) {
        hidden[row * width + i] = token < 0 || token >= vocab ? 0.0f : to_float(bf16(table)[token * width + i]);
      }
    }
  });
}

void rms_norm(cudaStream_t stream, const float* hidden, const float* weight, float epsilon, int32_t rows, int32_t width,
              void* out) {
  emulator::emulated_enqueue(stream, [=] {
    for (int32_t row = 0; row < rows; ++row) {
      const float* values = hidden + row * width;
      float squares = 0.0f;
      for (int32_t i = 0; i < width; ++i) squares += values[i] * values[i];
      const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(width) + epsilon);
      for (int32_t i = 0; i < width; ++i) bf16(out)[row * width + i] = to_bf16(values[i] * inverse * weight[i]);
    }
  });
}

bool has_wgmma() {
  int device = 0;
  int major = 0;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  return major == 9 && wgmma_of_the_device() != "absent";
}

size_t matmul_workspace_bytes(int32_t, int32_t, bool, int32_t rows) {
  return static_cast<size_t>(rows);
}

void matmul(cudaStream_t stream, const void* x, const DeviceWeight& weight, const float* bias, int32_t rows, void* out,
            OutputType type, void*) {
  emulator::emulated_enqueue(stream, [=] {
    const auto features = static_cast<size_t>(weight.out_features);
    multiply(x, weight, rows, weight.out_features, [&](size_t row, size_t feature, float sum) {
      const float value = sum + (bias == nullptr ? 0.0f : bias[feature]);
      if (type == OutputType::kF32) {
        static_cast<float*>(out)[row * features + feature] = value;
      } else {
        bf16(out)[row * features + feature] = to_bf16(value);
      }
    });
  });
}

void matmul_add(cudaStream_t stream, const void* x, const DeviceWeight& weight, const float* bias, int32_t rows,
                float* hidden, void*) {
  emulator::emulated_enqueue(stream, [=] {
    const auto features = static_cast<size_t>(weight.out_features);
    multiply(x, weight, rows, weight.out_features, [&](size_t row, size_t feature, float sum) {
      hidden[row * features + feature] += sum + (bias == nullptr ? 0.0f : bias[feature]);
    });
  });
}

size_t dequantizing_workspace_bytes(const DeviceWeight&, int32_t rows) {
  return static_cast<size_t>(rows);
}

size_t sharded_workspace_bytes(const DeviceWeight&, int32_t rows) {
  return static_cast<size_t>(rows);
}

void sharded_matmul(cudaStream_t stream, const void* x, const DeviceWeight& weight, const float* bias, int32_t rows,
                    void* out, OutputType type, void*) {
  emulator::emulated_enqueue(stream, [=] {
    const auto features = static_cast<size_t>(weight.out_features);
    multiply_shards(x, weight, rows, [&](size_t row, size_t feature, float sum) {
      const float value = sum + (bias == nullptr ? 0.0f : bias[feature]);
      if (type == OutputType::kF32) {
        static_cast<float*>(out)[row * features + feature] = value;
      } else {
        bf16(out)[row * features + feature] = to_bf16(value);
      }
    });
  });
}

void sharded_matmul_add(cudaStream_t stream, const void* x, const DeviceWeight& weight, const float* bias, int32_t rows,
                        float* hidden, void*) {
  emulator::emulated_enqueue(stream, [=] {
    const auto features = static_cast<size_t>(weight.out_features);
    multiply_shards(x, weight, rows, [&](size_t row, size_t feature, float sum) {
      hidden[row * features + feature] += sum + (bias == nullptr ? 0.0f : bias[feature]);
    });
  });
}

void spread_shards(cudaStream_t stream, const void* x, const DeviceShards& from, const DeviceShards& to, int32_t rows,
                   void* out) {
  emulator::emulated_enqueue(stream, [=] {
    const int32_t width = to.border[to.count];
    for (int32_t row = 0; row < rows; ++row) {
      const uint16_t* const source = bf16(x) + row * from.border[from.count];
      uint16_t* const target = bf16(out) + row * width;
      std::fill_n(target, width, uint16_t{0});
      for (int32_t s = 0; s < from.count; ++s)
        std::copy(source + from.border[s], source + from.border[s + 1], target + to.border[s]);
    }
  });
}

void add_sums(cudaStream_t stream, const float* sums, const float* bias, int32_t rows, int32_t width, float* hidden) {
  emulator::emulated_enqueue(stream, [=] {
    for (int32_t i = 0; i < rows * width; ++i) hidden[i] += sums[i] + (bias == nullptr ? 0.0f : bias[i % width]);
  });
}

void matmul_silu_mul(cudaStream_t stream, const void* x, const DeviceWeight& weight, int32_t rows, void* out, void*) {
  emulator::emulated_enqueue(stream, [=] {
    const auto features = static_cast<size_t>(weight.out_features);
    float gate = 0.0f;
    multiply(x, weight, rows, 2 * weight.out_features, [&](size_t row, size_t feature, float sum) {
      if (feature % 2 == 0) {
        gate = sum;
      } else {
        bf16(out)[row * features + feature / 2] = to_bf16(gate / (1.0f + std::exp(-gate)) * sum);
      }
    });
  });
}

void rotary_store_kv(cudaStream_t stream, const float* qkv, int32_t head_count, const DeviceRotary& rotary,
                     const float* q_norm, const float* k_norm, float norm_epsilon, const DeviceBatch& batch,
                     const BatchBounds& bounds, const DeviceKvCache& cache, int32_t layer, void* q) {
  emulator::emulated_enqueue(stream, [=] {
    check_bounds("rotary_store_kv", batch, bounds);
    const int32_t dim = cache.head_dim;
    each_row(batch, [&](int32_t row, int32_t sequence, int32_t position) {
      const float* heads = qkv + static_cast<size_t>(row * (head_count + 2 * cache.kv_head_count) * dim);
      for (int32_t head = 0; head < head_count; ++head) {
        std::vector<float> query = turned(heads + head * dim, dim, rotary, q_norm, norm_epsilon, position);
        for (float& value : query) value *= query_factor(rotary, position);
        store(query, bf16(q) + (row * head_count + head) * dim);
      }
      const uint32_t page = page_of(batch, cache, sequence, position);
      const int32_t token = position % cache.page_size;
      for (int32_t head = 0; head < cache.kv_head_count; ++head) {
        const float* key = heads + (head_count + head) * dim;
        const float* value = key + cache.kv_head_count * dim;
        store(turned(key, dim, rotary, k_norm, norm_epsilon, position), kv_at(cache, page, layer, false, head, token));
        store({value, value + dim}, kv_at(cache, page, layer, true, head, token));
      }
    });
  });
}

size_t attention_shared_bytes(int32_t) {
  return 0;
}

size_t attention_workspace_bytes(const AttentionSizes&, const DeviceKvCache&, const BatchBounds& bounds) {
  constexpr size_t kRowBytes = 2048;  // of a split
  return static_cast<size_t>(bounds.splits) * static_cast<size_t>(std::min(bounds.sequence_rows, kMaxSplitKvRows)) *
         kRowBytes;
}

void attention(cudaStream_t stream, const void* q, const AttentionSizes& sizes, const DeviceBatch& batch,
               const BatchBounds& bounds, const DeviceKvCache& cache, int32_t layer, void* out, void*) {
  emulator::emulated_enqueue(stream, [=] {
    check_bounds("attention", batch, bounds);
    each_row(batch, [&](int32_t row, int32_t sequence, int32_t position) {
      const int32_t rows = batch.row_begin[sequence + 1] - batch.row_begin[sequence];
      for (int32_t head = 0; head < sizes.head_count; ++head) {
        const int32_t at = (row * sizes.head_count + head) * cache.head_dim;
        attend({.sequence = sequence,
                .position = position,
                .last_key = sizes.causal ? position : batch.prefix[sequence] + rows - 1,
                .head = head,
                .q = bf16(q) + at},
               sizes, batch, cache, layer, bf16(out) + at);
      }
    });
  });
}

}  // namespace millrace::cuda
