#include "cuda/latent_ops.h"

#include <cstring>

#include "base/check.h"
#include "cuda/indexer_kernels.h"
#include "cuda/operands.h"
#include "tensor/slices.h"

namespace millrace::cuda {
namespace {

using tensor::DType;
using tensor::HostTensor;
using tensor::LatentShape;

/// Returns the bytes of a transposed matrix.
std::vector<std::byte> transposed_bytes(const HostTensor& matrix) {
  const auto rows = static_cast<size_t>(matrix.shape[0]);
  const auto cols = static_cast<size_t>(matrix.shape[1]);
  const size_t element = tensor::size_of(matrix.dtype);
  std::vector<std::byte> bytes(matrix.bytes());
  for (size_t row = 0; row < rows; ++row) {
    for (size_t col = 0; col < cols; ++col)
      std::memcpy(&bytes[(col * rows + row) * element], matrix.data + (row * cols + col) * element, element);
  }
  return bytes;
}

DeviceRotary rotary_of(const tensor::RotaryTable& rotary, int32_t wanted) {
  CHECK(rotary.rotary_dim == wanted, "{} rotary channels, wanted {}", rotary.rotary_dim, wanted);
  return cuda::rotary_of(rotary);
}

/// Returns the layout of a cache, which must have layer `layer` of such latents.
const DeviceKvCache& latents_in(const tensor::KvCache& cache, const LatentShape& shape, int32_t layer) {
  const tensor::KvCacheShape& found = cache.shape();
  CHECK(found.latent_dim == shape.latent_dim && found.head_dim == shape.key_dim() && layer >= 0 &&
            layer < found.layer_count,
        "layer {} of {} with latents of {} and keys of {}, wanted {} and {}", layer, found.layer_count,
        found.latent_dim, found.head_dim, shape.latent_dim, shape.key_dim());
  return as_cuda(cache).layout();
}

/// Returns the layout of a cache, which must have layer `layer` with the keys of such an indexer.
const DeviceKvCache& index_keys_in(const tensor::KvCache& cache, const tensor::IndexerShape& shape, int32_t layer) {
  const tensor::KvCacheShape& found = cache.shape();
  CHECK(found.index_dim == shape.head_dim && layer >= 0 && layer < found.layer_count,
        "layer {} of {} with keys of an indexer of {}, wanted {}", layer, found.layer_count, found.index_dim,
        shape.head_dim);
  return as_cuda(cache).layout();
}

}  // namespace

std::unique_ptr<CudaLatentExpansion> pack_latent_expansion(WeightLoader& loader, const HostTensor& kv_b,
                                                           const LatentShape& shape) {
  const int64_t rows = shape.nope_dim + shape.value_dim;
  const tensor::Shape wanted{shape.head_count * rows, int64_t{shape.latent_dim}};
  CHECK(kv_b.shape == wanted, "{}: {}, wanted {}", kv_b.name, kv_b.shape.to_string(), wanted.to_string());
  std::vector<std::vector<std::byte>> bytes;
  std::vector<HostTensor> queries;
  std::vector<HostTensor> values;
  for (int64_t first = 0; first < wanted[0]; first += rows) {
    bytes.push_back(transposed_bytes(tensor::row_slice(kv_b, {first, first + shape.nope_dim})));
    queries.push_back({.name = kv_b.name,
                       .dtype = kv_b.dtype,
                       .shape = {int64_t{shape.latent_dim}, int64_t{shape.nope_dim}},
                       .data = bytes.back().data()});
    values.push_back(tensor::row_slice(kv_b, {first + shape.nope_dim, first + rows}));
  }
  return std::make_unique<CudaLatentExpansion>(loader.pack_each(queries), loader.pack_each(values), shape.head_count);
}

void store_latents(Device& device, tensor::Matrix kv, const LatentShape& shape, const tensor::RotaryTable& rotary,
                   const tensor::DeviceVector& norm, float norm_epsilon, const tensor::UploadedBatch& batch,
                   tensor::KvCache& cache, int32_t layer) {
  const CudaBatch& uploaded = as_cuda(batch);
  check_matrix("kv", kv, DType::kF32, uploaded.bounds.rows, shape.key_dim());
  CHECK(norm.size() == shape.latent_dim, "the norm of a latent has {} weights, wanted {}", norm.size(),
        shape.latent_dim);
  store_latent(device.compute.get(), floats(kv), shape, rotary_of(rotary, shape.rope_dim), values_of(&norm),
               norm_epsilon, uploaded.device, uploaded.bounds, latents_in(cache, shape, layer), layer);
}

void attend_to_latents(Device& device, tensor::Matrix q, const LatentShape& shape, const tensor::RotaryTable& rotary,
                       const tensor::LatentExpansion& expansion, const tensor::UploadedBatch& batch,
                       const tensor::KvCache& cache, int32_t layer, tensor::Matrix out) {
  const CudaBatch& uploaded = as_cuda(batch);
  const auto& expands = static_cast<const CudaLatentExpansion&>(expansion);
  check_matrix("q", q, DType::kF32, uploaded.bounds.rows, shape.query_width());
  check_matrix("out", out, DType::kBF16, q.rows, shape.output_width());
  CHECK(expands.heads() == shape.head_count, "an expansion of {} heads, wanted {}", expands.heads(), shape.head_count);
  const size_t bytes = latent_attention_workspace_bytes(shape, uploaded.bounds, device.products);
  std::byte* const scratch = device.scratch(device.attention_scratch, bytes);
  latent_attention(device.compute.get(), floats(q), shape, rotary_of(rotary, shape.rope_dim), expands.get(),
                   uploaded.device, uploaded.bounds, latents_in(cache, shape, layer), layer, device.products, out.data,
                   scratch, bytes);
}

void attend_to_chosen(Device& device, tensor::Matrix q, const LatentShape& shape, const tensor::RotaryTable& rotary,
                      const tensor::LatentExpansion& expansion, tensor::IntMatrix chosen,
                      const tensor::UploadedBatch& batch, const tensor::KvCache& cache, int32_t layer,
                      tensor::Matrix out) {
  const CudaBatch& uploaded = as_cuda(batch);
  const auto& expands = static_cast<const CudaLatentExpansion&>(expansion);
  check_matrix("q", q, DType::kF32, uploaded.bounds.rows, shape.query_width());
  check_matrix("out", out, DType::kBF16, q.rows, shape.output_width());
  CHECK(expands.heads() == shape.head_count, "an expansion of {} heads, wanted {}", expands.heads(), shape.head_count);
  CHECK(chosen.rows == q.rows && chosen.cols > 0, "chosen tokens [{}, {}] for {} rows", chosen.rows, chosen.cols,
        q.rows);
  const auto count = static_cast<int32_t>(chosen.cols);
  const size_t bytes = sparse_latent_attention_workspace_bytes(shape, count, uploaded.bounds, device.products);
  std::byte* const scratch = device.scratch(device.attention_scratch, bytes);
  sparse_latent_attention(device.compute.get(), floats(q), shape, rotary_of(rotary, shape.rope_dim), expands.get(),
                          chosen.data, count, uploaded.device, uploaded.bounds, latents_in(cache, shape, layer), layer,
                          device.products, out.data, scratch, bytes);
}

void store_index_keys(Device& device, tensor::Matrix key, const tensor::IndexerShape& shape,
                      const tensor::RotaryTable& rotary, const tensor::DeviceVector& norm,
                      const tensor::DeviceVector& norm_bias, float norm_epsilon, const tensor::UploadedBatch& batch,
                      tensor::KvCache& cache, int32_t layer) {
  const CudaBatch& uploaded = as_cuda(batch);
  check_matrix("key", key, DType::kF32, uploaded.bounds.rows, shape.head_dim);
  CHECK(norm.size() == shape.head_dim && norm_bias.size() == shape.head_dim,
        "the norm of an indexer's key has {} weights and {} biases, wanted {}", norm.size(), norm_bias.size(),
        shape.head_dim);
  store_index_key(device.compute.get(), floats(key), shape, rotary_of(rotary, shape.rope_dim), values_of(&norm),
                  values_of(&norm_bias), norm_epsilon, uploaded.device, uploaded.bounds,
                  index_keys_in(cache, shape, layer), layer);
}

void choose_by_index(Device& device, tensor::Matrix q, tensor::Matrix weights, const tensor::IndexerShape& shape,
                     const tensor::RotaryTable& rotary, const tensor::UploadedBatch& batch,
                     const tensor::KvCache& cache, int32_t layer, tensor::IntMatrix chosen) {
  const CudaBatch& uploaded = as_cuda(batch);
  check_matrix("q", q, DType::kF32, uploaded.bounds.rows, shape.query_width());
  check_matrix("weights", weights, DType::kF32, q.rows, shape.head_count);
  CHECK(chosen.rows == q.rows && chosen.cols == shape.chosen_count, "chosen tokens [{}, {}], wanted [{}, {}]",
        chosen.rows, chosen.cols, q.rows, shape.chosen_count);
  const size_t bytes = choose_tokens_workspace_bytes(shape, uploaded.bounds);
  std::byte* const scratch = device.scratch(device.attention_scratch, bytes);
  choose_tokens(device.compute.get(), floats(q), floats(weights), shape, rotary_of(rotary, shape.rope_dim),
                uploaded.device, uploaded.bounds, index_keys_in(cache, shape, layer), layer, chosen.data, scratch,
                bytes);
}

}  // namespace millrace::cuda
