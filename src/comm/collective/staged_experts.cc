#include "comm/collective/staged_experts.h"

#include <string>
#include <utility>

#include "base/check.h"

namespace millrace::comm {
namespace {

using tensor::DType;
using tensor::Matrix;

/// A host copy of a matrix in device memory.
class HostCopy {
 public:
  void reserve(tensor::Backend& backend, DType dtype, int64_t rows, int64_t cols) {
    buffer_ = backend.allocate_host(Matrix{.dtype = dtype, .rows = rows, .cols = cols}.bytes());
  }
  /// Returns the copy's matrix, with the shape of the device's.
  [[nodiscard]] Matrix of(const Matrix& device) const {
    CHECK(device.bytes() <= buffer_.bytes(), "a matrix [{}, {}] of {} bytes, reserved {}", device.rows, device.cols,
          device.bytes(), buffer_.bytes());
    Matrix host = device;
    host.data = buffer_.data();
    return host;
  }

 private:
  tensor::Buffer buffer_;
};

/// Exchanges host copies. A call returns when its copies to the device are launched. The next call overwrites a host
/// copy only after it has waited for the stream, and so for these.
class StagedExperts final : public tensor::ExpertExchange {
 public:
  StagedExperts(std::unique_ptr<tensor::ExpertExchange> exchange, tensor::Backend& backend)
      : backend_(backend), exchange_(std::move(exchange)) {}

  [[nodiscard]] tensor::RankPosition position() const override { return exchange_->position(); }
  void reserve(const tensor::ExchangeBounds& bounds) override;
  [[nodiscard]] bool begin_step(uint64_t step, bool has_rows) override { return exchange_->begin_step(step, has_rows); }
  [[nodiscard]] int64_t dispatch(Matrix x, Matrix router_logits, Matrix all_x, Matrix all_logits) override;
  void combine(Matrix all_sums, Matrix sums) override;
  void abort(const std::string& reason) override { exchange_->abort(reason); }

 private:
  void copy_out(const Matrix& device, const Matrix& host) { backend_.copy_out(device.data, {host.data, host.bytes()}); }
  /// Copies a matrix to the host and waits, for the copies before it too.
  void copy_out_and_wait(const Matrix& device, const Matrix& host) {
    backend_.copy_to_host(device.data, {host.data, host.bytes()});
  }
  /// Copies the first rows of a matrix to the device.
  void copy_in(Matrix host, const Matrix& device, int64_t rows) {
    host.rows = rows;
    backend_.copy_in({host.data, host.bytes()}, device.data);
  }

  tensor::Backend& backend_;
  HostCopy x_;           // compute [rows, hidden]
  HostCopy logits_;      // f32 [rows, experts]
  HostCopy sums_;        // f32 [rows, hidden]
  HostCopy all_x_;       // compute [all rows, hidden]
  HostCopy all_logits_;  // f32 [all rows, experts]
  HostCopy all_sums_;    // f32 [all rows, hidden]
  // This member is the last: other rings read the copies until it is destroyed.
  const std::unique_ptr<tensor::ExpertExchange> exchange_;
};

void StagedExperts::reserve(const tensor::ExchangeBounds& bounds) {
  x_.reserve(backend_, bounds.compute_dtype, bounds.rows, bounds.hidden);
  logits_.reserve(backend_, DType::kF32, bounds.rows, bounds.experts);
  sums_.reserve(backend_, DType::kF32, bounds.rows, bounds.hidden);
  all_x_.reserve(backend_, bounds.compute_dtype, bounds.all_rows, bounds.hidden);
  all_logits_.reserve(backend_, DType::kF32, bounds.all_rows, bounds.experts);
  all_sums_.reserve(backend_, DType::kF32, bounds.all_rows, bounds.hidden);
  exchange_->reserve(bounds);
}

int64_t StagedExperts::dispatch(Matrix x, Matrix router_logits, Matrix all_x, Matrix all_logits) {
  const Matrix own_x = x_.of(x);
  const Matrix own_logits = logits_.of(router_logits);
  copy_out(x, own_x);
  copy_out_and_wait(router_logits, own_logits);
  const Matrix host_x = all_x_.of(all_x);
  const Matrix host_logits = all_logits_.of(all_logits);
  const int64_t rows = exchange_->dispatch(own_x, own_logits, host_x, host_logits);
  copy_in(host_x, all_x, rows);
  copy_in(host_logits, all_logits, rows);
  return rows;
}

void StagedExperts::combine(Matrix all_sums, Matrix sums) {
  const Matrix host_sums = all_sums_.of(all_sums);
  copy_out_and_wait(all_sums, host_sums);
  const Matrix own_sums = sums_.of(sums);
  exchange_->combine(host_sums, own_sums);
  copy_in(own_sums, sums, sums.rows);
}

}  // namespace

std::unique_ptr<tensor::ExpertExchange> stage_experts(std::unique_ptr<tensor::ExpertExchange> exchange,
                                                      tensor::Backend& backend) {
  if (backend.is_host()) return exchange;
  return std::make_unique<StagedExperts>(std::move(exchange), backend);
}

}  // namespace millrace::comm
