// The launch functions of cuda/kernels.h as plain loops that a stream of the fake runtime runs: what the host side of
// the backend is tested over where the kernels themselves are not the matter.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "cpu/kv_codes.h"
#include "cuda/emulator/emulator.h"
#include "cuda/kernels.h"
#include "cuda/weight_layout.h"
#include "cuda_backend/plain_numbers.h"
#include "cuda_backend/plain_rows.h"
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

/// A row of x as a GEMM reads it: with kE4M3Both rounded to E4M3, 128 inputs with one scale.
class PlainRow {
 public:
  PlainRow(const uint16_t* x, const DeviceWeight& weight) : x_(x) {
    if (weight.format.codes != WeightCodes::kE4M3Both) return;
    for (int32_t first = 0; first < weight.in_features; first += kFp8StepInputs) {
      float largest = 0.0f;
      for (int32_t i = 0; i < kFp8StepInputs; ++i) largest = std::max(largest, std::abs(to_float(x[first + i])));
      const float scale = largest / 448.0f;
      for (int32_t i = 0; i < kFp8StepInputs; ++i) {
        rounded_.push_back(to_bf16(scale == 0.0f ? 0.0f : nearest_e4m3(to_float(x[first + i]) / scale) * scale));
      }
    }
    x_ = rounded_.data();
  }
  [[nodiscard]] const uint16_t* data() const { return x_; }

 private:
  static float nearest_e4m3(float value) {
    int exponent = 0;
    (void)std::frexp(value, &exponent);
    const float step = std::ldexp(1.0f, std::max(exponent, -5) - 4);
    return std::clamp(std::nearbyint(value / step) * step, -448.0f, 448.0f);
  }

  std::vector<uint16_t> rounded_;
  const uint16_t* x_;
};

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
    const PlainRow inputs(bf16(x) + row * inner, weight);
    for (size_t feature = 0; feature < static_cast<size_t>(packed_rows); ++feature) {
      float sum = dot(inputs.data(), weights.row(feature), inner);
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
    const PlainRow inputs(bf16(x) + row * inner, weight);
    for (size_t feature = 0; feature < static_cast<size_t>(weight.out_features); ++feature) {
      std::vector<float> sums;
      for (int32_t s = 0; s < weight.shards.count; ++s) {
        const auto begin = static_cast<size_t>(weight.shards.border[s]);
        const auto end = static_cast<size_t>(weight.shards.border[s + 1]);
        sums.push_back(dot(inputs.data() + begin, weights.row(feature) + begin, end - begin));
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

/// The tokens of a head in a cache of codes, each [K codes][V codes][K scales][V scales].
class PlainCodes {
 public:
  explicit PlainCodes(const DeviceKvCache& cache)
      : cache_(cache),
        is_int8_(cache.element == KvElement::kInt8),
        layout_(is_int8_ ? tensor::KvDType::kInt8 : tensor::KvDType::kFp8E4M3, code_stride(cache.head_dim), 1) {}

  void store(uint32_t page, int32_t layer, int32_t head, int32_t token, std::vector<float> key,
             std::vector<float> value) const {
    key.resize(static_cast<size_t>(code_stride(cache_.head_dim)));
    value.resize(key.size());
    // Only rows that see the position may become NaN, so a fault of the value moves to the key.
    const auto has_fault = [](float x) { return !(std::abs(x) < cpu::kMinCodedFault); };
    if (std::ranges::any_of(value, has_fault)) {
      std::ranges::fill(key, std::nanf(""));
      std::ranges::fill(value, 0.0f);
    }
    layout_.encode(key, value, at(page, layer, head, token));
  }
  /// Returns the key or value [head_dim] in bf16.
  std::vector<uint16_t> load(uint32_t page, int32_t layer, bool value, int32_t head, int32_t token) const {
    const auto stride = static_cast<size_t>(code_stride(cache_.head_dim));
    const auto count = static_cast<size_t>(kv_scale_count(cache_));
    const std::byte* const begin = at(page, layer, head, token);
    const auto* const codes = reinterpret_cast<const uint8_t*>(begin) + (value ? stride : 0);
    const uint16_t* const scales = bf16(begin + 2 * stride) + (value ? count : 0);
    std::vector<uint16_t> values;
    for (size_t i = 0; i < static_cast<size_t>(cache_.head_dim); ++i) {
      const float scale = to_float(scales[is_int8_ ? i / kInt8ScaleChannels : 0]);
      values.push_back(to_bf16(code_number(cache_.element, codes[i]) * scale));
    }
    return values;
  }

 private:
  [[nodiscard]] std::byte* at(uint32_t page, int32_t layer, int32_t head, int32_t token) const {
    return static_cast<std::byte*>(cache_.data) + page * kv_page_bytes(cache_) +
           static_cast<size_t>(layer) * kv_layer_bytes(cache_) +
           static_cast<size_t>(head * cache_.page_size + token) * layout_.token_bytes();
  }

  DeviceKvCache cache_;
  bool is_int8_;
  cpu::KvCodeLayout layout_;
};

/// Returns one head [head_dim] after a norm with these weights; null: no norm.
std::vector<float> normed(const float* head, int32_t head_dim, const float* norm, float epsilon) {
  std::vector<float> values(head, head + head_dim);
  if (norm == nullptr) return values;
  float squares = 0.0f;
  for (const float value : values) squares += value * value;
  const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(head_dim) + epsilon);
  for (size_t i = 0; i < values.size(); ++i) values[i] *= inverse * norm[i];
  return values;
}

/// Returns a head after a LayerNorm.
std::vector<float> layer_normed(const float* head, int32_t head_dim, const float* norm, float epsilon) {
  double mean = 0.0;
  for (int32_t i = 0; i < head_dim; ++i) mean += double{head[i]} / head_dim;
  double variance = 0.0;
  for (int32_t i = 0; i < head_dim; ++i) variance += (head[i] - mean) * (head[i] - mean) / head_dim;
  std::vector<float> values;
  for (int32_t i = 0; i < head_dim; ++i)
    values.push_back(static_cast<float>((head[i] - mean) / std::sqrt(variance + double{epsilon})) * norm[i]);
  return values;
}

/// Returns head `index` [head_dim] of q or k, normalised with its weights and rotated to its position.
std::vector<float> turned(const float* head, int32_t index, int32_t head_dim, const DeviceRotary& rotary,
                          const HeadNorms& norms, const float* norm, int32_t position) {
  const bool is_layer = norm != nullptr && norms.kind == tensor::HeadNorm::kLayer;
  const bool is_late = norm != nullptr && norms.kind == tensor::HeadNorm::kRotatedRms;
  std::vector<float> values = is_layer ? layer_normed(head, head_dim, norm + index * head_dim, norms.epsilon)
                                       : normed(head, head_dim, is_late ? nullptr : norm, norms.epsilon);
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
  return is_late ? normed(values.data(), head_dim, norm, norms.epsilon) : values;
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
  int32_t first = sizes.sliding_window > 0 ? std::max(0, query.position - sizes.sliding_window + 1) : 0;
  if (sizes.chunk_size > 0) first = query.position - query.position % sizes.chunk_size;
  const auto at = [&](bool value, int32_t key) -> std::vector<uint16_t> {
    const uint32_t page = page_of(batch, cache, query.sequence, key);
    const int32_t token = key % cache.page_size;
    if (cache.element != KvElement::kBf16) return PlainCodes(cache).load(page, layer, value, kv_head, token);
    const uint16_t* const found = kv_at(cache, page, layer, value, kv_head, token);
    return {found, found + dim};
  };
  std::vector<float> weights;
  for (int32_t key = first; key <= query.last_key; ++key) {
    const float score = dot(query.q, at(false, key).data(), dim) * sizes.scale;
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
    const std::vector<uint16_t> value = at(true, key);
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

size_t matmul_workspace_bytes(const DeviceWeight&, int32_t rows) {
  return static_cast<size_t>(rows);
}

void matmul(cudaStream_t stream, const void* x, const DeviceWeight& weight, const float* bias, int32_t rows, void* out,
            OutputType type, void*) {
  emulator::emulated_enqueue(stream, [=] {
    const auto columns = static_cast<size_t>(weight.columns > 0 ? weight.columns : weight.out_features);
    const auto first = static_cast<size_t>(weight.first_column);
    multiply(x, weight, rows, weight.out_features, [&](size_t row, size_t feature, float sum) {
      const float value = sum + (bias == nullptr ? 0.0f : bias[first + feature]);
      if (type == OutputType::kF32) {
        static_cast<float*>(out)[row * columns + first + feature] = value;
      } else {
        bf16(out)[row * columns + first + feature] = to_bf16(value);
      }
    });
  });
}

void matmul_add(cudaStream_t stream, const void* x, const DeviceWeight& weight, const float* bias, int32_t rows,
                float* hidden, void*) {
  emulator::emulated_enqueue(stream, [=] {
    const auto columns = static_cast<size_t>(weight.columns > 0 ? weight.columns : weight.out_features);
    const auto first = static_cast<size_t>(weight.first_column);
    multiply(x, weight, rows, weight.out_features, [&](size_t row, size_t feature, float sum) {
      hidden[row * columns + first + feature] += sum + (bias == nullptr ? 0.0f : bias[first + feature]);
    });
  });
}

size_t dequantizing_workspace_bytes(const DeviceWeight&, int32_t rows) {
  return static_cast<size_t>(rows);
}

size_t fp8_workspace_bytes(const DeviceWeight&, int32_t rows) {
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
                     const HeadNorms& norms, const DeviceBatch& batch, const BatchBounds& bounds,
                     const DeviceKvCache& cache, int32_t layer, void* q) {
  emulator::emulated_enqueue(stream, [=] {
    check_bounds("rotary_store_kv", batch, bounds);
    const int32_t dim = cache.head_dim;
    const int32_t kept = norms.queries_only ? 0 : norms.values_are_keys ? 1 : 2;
    const int32_t all_heads = head_count + kept * cache.kv_head_count;
    const std::vector<float> ones(static_cast<size_t>(dim), 1.0f);
    each_row(batch, [&](int32_t row, int32_t sequence, int32_t position) {
      const float* heads = qkv + static_cast<size_t>(row * all_heads * dim);
      for (int32_t head = 0; head < head_count; ++head) {
        std::vector<float> query = turned(heads + head * dim, head, dim, rotary, norms, norms.q, position);
        for (float& value : query) value *= query_factor(rotary, position);
        store(query, bf16(q) + (row * head_count + head) * dim);
      }
      if (norms.queries_only) return;
      const uint32_t page = page_of(batch, cache, sequence, position);
      const int32_t token = position % cache.page_size;
      for (int32_t head = 0; head < cache.kv_head_count; ++head) {
        const float* key = heads + (head_count + head) * dim;
        const std::vector<float> rotated = turned(key, head, dim, rotary, norms, norms.k, position);
        std::vector<float> value = normed(norms.values_are_keys ? key : key + cache.kv_head_count * dim, dim,
                                          norms.of_values ? ones.data() : nullptr, norms.epsilon);
        if (cache.element != KvElement::kBf16) {
          PlainCodes(cache).store(page, layer, head, token, rotated, std::move(value));
          continue;
        }
        store(rotated, kv_at(cache, page, layer, false, head, token));
        store(value, kv_at(cache, page, layer, true, head, token));
      }
    });
  });
}

size_t attention_shared_bytes(const DeviceKvCache&) {
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
