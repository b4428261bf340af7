#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "tensor/backend.h"

namespace millrace::model {

/// The batch of the rows that rings with shared experts exchange: one sequence without pages, since experts only ask
/// for its rows. It is uploaded once per step and number of rows. Owned by a FeedForward, whose rules of calls hold.
class ExchangedBatch {
 public:
  /// Returns the batch of `rows` rows, valid in this step until a call with another number.
  [[nodiscard]] const tensor::UploadedBatch& of(int64_t rows, tensor::Backend& backend) {
    if (!uploaded_ || row_begin_[1] != rows) {
      row_begin_[1] = static_cast<int32_t>(rows);
      uploaded_ = backend.upload(
          tensor::BatchLayout{.row_begin = row_begin_, .prefix = prefix_, .page_begin = page_begin_, .pages = {}});
    }
    return *uploaded_;
  }
  /// Forgets the uploads of the last step, which are no longer valid. Called before the first of() of each step.
  void forget() { uploaded_.reset(); }

 private:
  std::array<int32_t, 2> row_begin_{};
  std::array<int32_t, 1> prefix_{};
  std::array<int32_t, 2> page_begin_{};
  std::optional<tensor::UploadedBatch> uploaded_;  // refers to the arrays
};

}  // namespace millrace::model
