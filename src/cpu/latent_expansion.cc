#include "cpu/latent_expansion.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "cpu/transposed_codes.h"
#include "tensor/slices.h"

namespace millrace::cpu {
namespace {

using tensor::CodeMatrix;
using tensor::Fp8Matrix;
using tensor::HostTensor;
using tensor::LatentShape;
using tensor::TermRange;

/// Returns the bytes of a transposed matrix [rows, cols] whose rows are `row_bytes` apart.
std::vector<std::byte> transposed(const std::byte* from, int64_t rows, int64_t cols, int64_t row_bytes,
                                  size_t element) {
  std::vector<std::byte> bytes(static_cast<size_t>(rows * cols) * element);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col)
      std::memcpy(&bytes[static_cast<size_t>(col * rows + row) * element],
                  from + row * row_bytes + col * static_cast<int64_t>(element), element);
  }
  return bytes;
}

/// Returns the rows of a head in kv_b.
int64_t head_rows(const LatentShape& shape) {
  return int64_t{shape.nope_dim} + shape.value_dim;
}

/// Calls body(keys, values) with the rows of each head in kv_b.
template <class Body>
void for_each_head(const LatentShape& shape, const Body& body) {
  for (int32_t head = 0; head < shape.head_count; ++head) {
    const int64_t first = head * head_rows(shape);
    body(TermRange{first, first + shape.nope_dim}, TermRange{first + shape.nope_dim, first + head_rows(shape)});
  }
}

/// Checks the shape of a matrix that has `rows` rows per head.
void check_shape(const std::string& name, const tensor::Shape& found, const LatentShape& shape, int64_t rows,
                 int64_t cols) {
  const tensor::Shape wanted = {shape.head_count * rows, cols};
  CHECK(found == wanted, "{}: {}, wanted {}", name, found.to_string(), wanted.to_string());
}

/// Returns whether blocks divide each head into whole groups of rows.
bool has_row_groups(const Fp8Matrix& kv_b, const LatentShape& shape) {
  return tensor::rows_per_scale(kv_b, head_rows(shape)) % kW8GroupElements == 0 ||
         std::ssize(kv_b.scales) == kv_b.column_blocks;
}

/// Returns a head's rows for the key as columns, whose scales have groups of `group` columns. Groups are counted from
/// the head's first row, so that all heads have the same. `codes` holds the codes.
Fp8Matrix transposed(const Fp8Matrix& keys, int64_t group, std::vector<std::byte>& codes) {
  codes = transposed(keys.codes, keys.rows, keys.cols, keys.row_bytes, 1);
  Fp8Matrix queries{.name = keys.name,
                    .rows = keys.cols,
                    .cols = keys.rows,
                    .codes = codes.data(),
                    .row_bytes = keys.rows,
                    .scales = {},
                    .column_blocks = (keys.rows + group - 1) / group,
                    .block_rows = keys.block_cols,
                    .block_cols = group};
  for (int64_t col = 0; col < keys.cols; col += keys.block_cols) {
    for (int64_t row = 0; row < keys.rows; row += group) queries.scales.push_back(keys.scale(row, col));
  }
  return queries;
}

}  // namespace

CpuLatentExpansion::CpuLatentExpansion(Device& device, const HostTensor& kv_b, const LatentShape& shape) {
  check_shape(kv_b.name, kv_b.shape, shape, head_rows(shape), shape.latent_dim);
  const size_t element = tensor::size_of(kv_b.dtype);
  for_each_head(shape, [&](TermRange key_rows, TermRange value_rows) {
    const HostTensor keys = tensor::row_slice(kv_b, key_rows);
    const std::vector<std::byte> bytes = transposed(keys.data, shape.nope_dim, shape.latent_dim,
                                                    shape.latent_dim * static_cast<int64_t>(element), element);
    const HostTensor queries{.name = kv_b.name,
                             .dtype = kv_b.dtype,
                             .shape = {int64_t{shape.latent_dim}, int64_t{shape.nope_dim}},
                             .data = bytes.data()};
    queries_.push_back(pack_weight(device, {&queries, 1}));
    const HostTensor values = tensor::row_slice(kv_b, value_rows);
    values_.push_back(pack_weight(device, {&values, 1}));
  });
}

CpuLatentExpansion::CpuLatentExpansion(Device& device, const Fp8Matrix& kv_b, const LatentShape& shape) {
  check_shape(kv_b.name, {kv_b.rows, kv_b.cols}, shape, head_rows(shape), shape.latent_dim);
  const bool has_groups = has_row_groups(kv_b, shape);
  const bool keeps_queries = has_groups || kv_b.column_blocks == 1;
  const int64_t group = std::min<int64_t>(shape.nope_dim, tensor::rows_per_scale(kv_b, head_rows(shape)));
  for_each_head(shape, [&](TermRange key_rows, TermRange value_rows) {
    const Fp8Matrix values = tensor::row_slice(kv_b, value_rows);
    values_.push_back(pack_fp8_weight(device, {&values, 1}));
    const Fp8Matrix keys = tensor::row_slice(kv_b, key_rows);
    if (!keeps_queries) return add_decoded_queries(device, keys.name, tensor::decode(keys), keys.rows, keys.cols);
    std::vector<std::byte> codes;
    Fp8Matrix queries = transposed(keys, has_groups ? group : keys.rows, codes);
    if (!has_groups) {
      for (int64_t row = 0; row < keys.rows; ++row) query_factors_.push_back(keys.scale(row, 0));
      std::ranges::fill(queries.scales, 1.0f);
    }
    queries_.push_back(pack_fp8_weight(device, {&queries, 1}));
  });
}

CpuLatentExpansion::CpuLatentExpansion(Device& device, const CodeMatrix& queries, const CodeMatrix& values,
                                       const LatentShape& shape) {
  check_shape(queries.name, {queries.rows, queries.cols}, shape, shape.latent_dim, shape.nope_dim);
  check_shape(values.name, {values.rows, values.cols}, shape, shape.value_dim, shape.latent_dim);
  for (int64_t head = 0; head < shape.head_count; ++head) {
    const auto add = [&](const CodeMatrix& all, int64_t rows, std::vector<std::unique_ptr<CpuPackedWeight>>& packed) {
      const CodeMatrix own = tensor::row_slice(all, {head * rows, (head + 1) * rows});
      packed.push_back(pack_code_weight(device, {&own, 1}));
    };
    add(queries, shape.latent_dim, queries_);
    add(values, shape.value_dim, values_);
  }
}

CpuLatentExpansion::CpuLatentExpansion(Device& device, const CodeMatrix& kv_b, const LatentShape& shape) {
  check_shape(kv_b.name, {kv_b.rows, kv_b.cols}, shape, head_rows(shape), shape.latent_dim);
  const bool keeps_codes = can_transpose_codes(kv_b);
  if (keeps_codes) query_groups_ = kv_b.groups();
  for_each_head(shape, [&](TermRange key_rows, TermRange value_rows) {
    add_queries(device, tensor::row_slice(kv_b, key_rows), keeps_codes);
    const CodeMatrix values = tensor::row_slice(kv_b, value_rows);
    values_.push_back(pack_code_weight(device, {&values, 1}));
  });
}

void CpuLatentExpansion::add_queries(Device& device, const CodeMatrix& keys, bool keeps_codes) {
  if (keeps_codes) {
    const TransposedCodes turned = transposed_codes(keys);
    const CodeMatrix queries = turned.codes.view();
    queries_.push_back(pack_code_weight(device, {&queries, 1}));
    query_factors_.insert(query_factors_.end(), turned.factors.begin(), turned.factors.end());
    return;
  }
  std::vector<float> decoded(static_cast<size_t>(keys.rows * keys.cols));
  for (int64_t row = 0; row < keys.rows; ++row)
    tensor::read_floats(keys, row, 0, keys.cols, decoded.data() + row * keys.cols);
  add_decoded_queries(device, keys.name, decoded, keys.rows, keys.cols);
}

void CpuLatentExpansion::add_decoded_queries(Device& device, const std::string& name, const std::vector<float>& keys,
                                             int64_t rows, int64_t cols) {
  const std::vector<std::byte> bytes = transposed(reinterpret_cast<const std::byte*>(keys.data()), rows, cols,
                                                  cols * static_cast<int64_t>(sizeof(float)), sizeof(float));
  const HostTensor queries{.name = name, .dtype = tensor::DType::kF32, .shape = {cols, rows}, .data = bytes.data()};
  queries_.push_back(pack_weight(device, {&queries, 1}));
}

}  // namespace millrace::cpu
