#include "cpu/latent_expansion.h"

#include <cstring>

#include "base/check.h"
#include "tensor/slices.h"

namespace millrace::cpu {
namespace {

/// Returns the bytes of a transposed matrix.
std::vector<std::byte> transposed(const tensor::HostTensor& matrix) {
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

}  // namespace

CpuLatentExpansion::CpuLatentExpansion(Device& device, const tensor::HostTensor& kv_b,
                                       const tensor::LatentShape& shape) {
  const int64_t rows = shape.nope_dim + shape.value_dim;
  CHECK(kv_b.shape == tensor::Shape({shape.head_count * rows, int64_t{shape.latent_dim}}), "{}: {}, wanted {}",
        kv_b.name, kv_b.shape.to_string(),
        tensor::Shape({shape.head_count * rows, int64_t{shape.latent_dim}}).to_string());
  for (int32_t head = 0; head < shape.head_count; ++head) {
    const int64_t first = head * rows;
    const tensor::HostTensor keys = tensor::row_slice(kv_b, {first, first + shape.nope_dim});
    const std::vector<std::byte> bytes = transposed(keys);
    const tensor::HostTensor queries{.name = kv_b.name,
                                     .dtype = kv_b.dtype,
                                     .shape = {int64_t{shape.latent_dim}, int64_t{shape.nope_dim}},
                                     .data = bytes.data()};
    queries_.push_back(pack_weight(device, {&queries, 1}));
    const tensor::HostTensor values = tensor::row_slice(kv_b, {first + shape.nope_dim, first + rows});
    values_.push_back(pack_weight(device, {&values, 1}));
  }
}

}  // namespace millrace::cpu
