#include "model/residual_stream.h"

#include "model/needed_features.h"

namespace millrace::model {

using tensor::DType;
using tensor::Matrix;

ResidualStream::ResidualStream(const ModelConfig& config, tensor::Backend& backend, const RankLayout& layout,
                               int64_t max_rows)
    : config_(config), backend_(backend), ranks_(layout.position.size) {
  const auto rows = [&](DType dtype, int64_t cols) {
    return backend_.allocate(Matrix{.dtype = dtype, .rows = max_rows, .cols = cols}.bytes());
  };
  normed_ = rows(backend_.compute_dtype(), config_.hidden_size);
  if (has_ranks() || layout.shares_experts() || needs(config, tensor::Feature::kScaledSums))
    sums_ = rows(DType::kF32, config_.hidden_size);
  if (has_ranks()) {
    magnitudes_ = rows(DType::kF32, 1);
    rank_magnitudes_ = rows(DType::kF32, ranks_);
  }
}

void ResidualStream::norm(Matrix hidden, const tensor::DeviceVector& weight, const tensor::DeviceVector* bias,
                          Matrix out) {
  switch (config_.norm) {
    case NormKind::kRms:
    case NormKind::kRmsPlusOne: return backend_.rms_norm(hidden, weight, config_.norm_epsilon, out);
    case NormKind::kLayer:
    case NormKind::kLayerInPlace:
      return backend_.layer_norm(hidden, weight, bias, config_.norm_epsilon, config_.norm == NormKind::kLayerInPlace,
                                 out);
  }
}

Matrix ResidualStream::normed(int64_t rows) const {
  return {.data = normed_.data(), .dtype = backend_.compute_dtype(), .rows = rows, .cols = config_.hidden_size};
}

Matrix ResidualStream::input(Matrix hidden, const tensor::DeviceVector* weight, const tensor::DeviceVector* bias) {
  const Matrix input = normed(hidden.rows);
  if (weight != nullptr) {
    norm(hidden, *weight, bias, input);
  } else {
    backend_.convert(hidden, input);
  }
  return input;
}

void ResidualStream::add_product(Matrix x, const tensor::PackedWeight& weight, const BlockEnd& end, Matrix hidden) {
  if (!has_ranks() && end.is_plain()) return backend_.matmul_add(x, weight, end.bias, hidden);
  const Matrix whole = sums(hidden.rows);
  multiply(x, weight, whole);
  add(whole, end, hidden);
}

void ResidualStream::multiply(Matrix x, const tensor::PackedWeight& weight, Matrix sums) {
  if (!has_ranks()) return backend_.matmul(x, weight, nullptr, sums);
  if (!weight.has_row_scales()) {
    backend_.matmul(x, weight, nullptr, sums);
    return add_over_ranks(sums);
  }
  const Matrix own{.data = magnitudes_.data(), .dtype = DType::kF32, .rows = x.rows, .cols = 1};
  const Matrix all{.data = rank_magnitudes_.data(), .dtype = DType::kF32, .rows = x.rows, .cols = ranks_};
  const tensor::IntMatrix integers{.data = reinterpret_cast<int32_t*>(sums.data), .rows = sums.rows, .cols = sums.cols};
  backend_.row_magnitudes(x, own);
  collective_->all_gather(own, all);
  backend_.matmul_integers(x, weight, all, integers);
  collective_->all_reduce(integers);
  backend_.scale_integers(integers, weight, all, sums);
}

Matrix ResidualStream::sums(int64_t rows) const {
  return {.data = sums_.data(), .dtype = DType::kF32, .rows = rows, .cols = config_.hidden_size};
}

void ResidualStream::add(Matrix sums, const BlockEnd& end, Matrix hidden) {
  if (end.is_plain()) return backend_.add_sums(sums, end.bias, hidden);
  backend_.add_scaled_sums(sums, end.bias, end.norm, config_.norm_epsilon, end.multiplier, hidden);
}

void ResidualStream::add_over_ranks(Matrix sums) {
  if (has_ranks()) collective_->all_reduce(sums);
}

}  // namespace millrace::model
