#pragma once

#include <cstdint>

#include "tensor/collective.h"

namespace millrace::sched {

/// The columns of the activations that one rank receives from the stage before, or sends to the next one. Stages with
/// equal numbers of ranks exchange slices: rank r sends the columns [r · H/T, (r+1) · H/T) to rank r, and the receivers
/// gather them. Every link then carries one T-th of the bytes. Otherwise whole rows travel, which all ranks of a stage
/// have.
class ActivationSlices {
 public:
  /// `neighbour_ranks` is the number of ranks of the other stage, `hidden_size` the columns of a whole row.
  ActivationSlices(tensor::RankPosition position, int32_t neighbour_ranks, int64_t hidden_size);

  /// Returns whether slices travel. With one rank, or columns that T does not divide, whole rows do.
  [[nodiscard]] bool sliced() const { return sliced_; }
  /// Returns the columns that travel per row.
  [[nodiscard]] int64_t columns() const { return sliced_ ? hidden_size_ / position_.size : hidden_size_; }
  [[nodiscard]] size_t row_bytes(tensor::DType dtype) const {
    return static_cast<size_t>(columns()) * tensor::size_of(dtype);
  }
  /// Returns the rank of the stage before from which this rank receives.
  [[nodiscard]] int32_t source_rank() const { return position_.rank % neighbour_ranks_; }

  /// Packs this rank's columns of `hidden` [T, H] into `slice` [T, columns()]. Called inside submitted work, and only
  /// where slices travel.
  void pack(tensor::Backend& backend, tensor::Matrix hidden, tensor::Matrix slice) const;
  /// Gathers the slices [T, columns()] of all ranks into `hidden` [T, H]. Called by all ranks inside submitted work,
  /// and only where slices travel.
  void gather(tensor::Collective& collective, tensor::Matrix slice, tensor::Matrix hidden) const;

 private:
  void check(tensor::Matrix hidden, tensor::Matrix slice) const;

  const tensor::RankPosition position_;
  const int32_t neighbour_ranks_;
  const int64_t hidden_size_;
  const bool sliced_;
};

}  // namespace millrace::sched
