// The ops of an indexer as plain loops; see plain_kernels.cc.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "cuda/emulator/emulator.h"
#include "cuda/indexer_kernels.h"
#include "cuda_backend/plain_numbers.h"
#include "cuda_backend/plain_rows.h"

namespace millrace::cuda {
namespace {

/// Returns the indexer's key of a token in a page.
uint16_t* index_key_at(const DeviceKvCache& cache, uint32_t page, int32_t layer, int32_t token) {
  std::byte* begin = static_cast<std::byte*>(cache.data) + page * kv_page_bytes(cache) +
                     static_cast<size_t>(layer) * kv_layer_bytes(cache);
  return bf16(begin + cache.page_size * latent_token_bytes(cache)) +
         static_cast<size_t>(token * channel_stride(cache.index_dim));
}

/// Returns a score by which tokens are ordered; NaN is the largest.
float score_of(const std::vector<uint16_t>& query, const float* weights, const tensor::IndexerShape& shape,
               const uint16_t* key) {
  const auto dim = static_cast<size_t>(shape.head_dim);
  float sum = 0.0f;
  for (int32_t head = 0; head < shape.head_count; ++head) {
    const float product = dot(query.data() + static_cast<size_t>(head) * dim, key, dim);
    sum += weights[head] * (product < 0.0f ? 0.0f : product);
  }
  return std::isnan(sum) ? std::numeric_limits<float>::infinity() : sum;
}

}  // namespace

void store_index_key(cudaStream_t stream, const float* key, const tensor::IndexerShape& shape,
                     const DeviceRotary& rotary, const float* norm, const float* norm_bias, float norm_epsilon,
                     const DeviceBatch& batch, const BatchBounds& bounds, const DeviceKvCache& cache, int32_t layer) {
  emulator::emulated_enqueue(stream, [=] {
    check_bounds("store_index_key", batch, bounds);
    each_row(batch, [&](int32_t row, int32_t sequence, int32_t position) {
      const auto dim = static_cast<size_t>(shape.head_dim);
      const float* from = key + static_cast<size_t>(row) * dim;
      uint16_t* to = index_key_at(cache, page_of(batch, cache, sequence, position), layer, position % cache.page_size);
      const double mean = std::accumulate(from, from + dim, 0.0) / static_cast<double>(dim);
      double squares = 0.0;
      for (size_t i = 0; i < dim; ++i) squares += (double{from[i]} - mean) * (double{from[i]} - mean);
      const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(dim) + double{norm_epsilon});
      std::vector<float> values(dim);
      for (size_t i = 0; i < dim; ++i)
        values[i] = static_cast<float>((double{from[i]} - mean) * inverse) * norm[i] + norm_bias[i];
      std::transform(values.begin(), values.end(), to, to_bf16);
      rotate(values.data(), rotary, position, to);
      if (std::any_of(to, to + dim, [](uint16_t bits) { return !std::isfinite(to_float(bits)); }))
        std::fill_n(to, dim, to_bf16(std::numeric_limits<float>::quiet_NaN()));
    });
  });
}

size_t choose_tokens_workspace_bytes(const tensor::IndexerShape&, const BatchBounds& bounds) {
  return static_cast<size_t>(bounds.rows) * static_cast<size_t>(bounds.context) * sizeof(float);
}

void choose_tokens(cudaStream_t stream, const float* q, const float* weights, const tensor::IndexerShape& shape,
                   const DeviceRotary& rotary, const DeviceBatch& batch, const BatchBounds& bounds,
                   const DeviceKvCache& cache, int32_t layer, int32_t* chosen, void*, size_t) {
  emulator::emulated_enqueue(stream, [=] {
    check_bounds("choose_tokens", batch, bounds);
    each_row(batch, [&](int32_t row, int32_t sequence, int32_t position) {
      CHECK(position < bounds.context, "choose_tokens: position {} within {} tokens", position, bounds.context);
      if (position < shape.chosen_count) return;
      const auto width = static_cast<size_t>(shape.query_width());
      const float* from = q + static_cast<size_t>(row) * width;
      std::vector<uint16_t> query(width);
      std::transform(from, from + width, query.begin(), to_bf16);
      for (size_t head = 0; head < width; head += static_cast<size_t>(shape.head_dim))
        rotate(from + head, rotary, position, query.data() + head);
      std::vector<float> scores;
      for (int32_t token = 0; token <= position; ++token)
        scores.push_back(
            score_of(query, weights + static_cast<ptrdiff_t>(row) * shape.head_count, shape,
                     index_key_at(cache, page_of(batch, cache, sequence, token), layer, token % cache.page_size)));
      std::vector<int32_t> order(scores.size());
      std::iota(order.begin(), order.end(), 0);
      std::ranges::sort(order, [&](int32_t a, int32_t b) {
        const float first = scores[static_cast<size_t>(a)];
        const float second = scores[static_cast<size_t>(b)];
        return first > second || (first == second && a < b);
      });
      order.resize(static_cast<size_t>(shape.chosen_count));
      std::ranges::sort(order);
      std::ranges::copy(order, chosen + static_cast<ptrdiff_t>(row) * shape.chosen_count);
    });
  });
}

}  // namespace millrace::cuda
