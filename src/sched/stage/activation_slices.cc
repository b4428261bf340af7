#include "sched/stage/activation_slices.h"

#include "base/check.h"

namespace millrace::sched {

ActivationSlices::ActivationSlices(tensor::RankPosition position, int32_t neighbour_ranks, int64_t hidden_size)
    : position_(position),
      neighbour_ranks_(neighbour_ranks),
      hidden_size_(hidden_size),
      sliced_(position.size > 1 && position.size == neighbour_ranks && hidden_size % position.size == 0) {
  CHECK(neighbour_ranks >= 1 && position.rank < position.size, "rank {} of {} next to a stage of {} ranks",
        position.rank, position.size, neighbour_ranks);
}

void ActivationSlices::check(tensor::Matrix hidden, tensor::Matrix slice) const {
  CHECK(sliced_, "whole rows travel between {} and {} ranks", position_.size, neighbour_ranks_);
  CHECK(hidden.cols == hidden_size_ && slice.cols == columns() && hidden.rows == slice.rows,
        "slices [{}, {}] of activations [{}, {}], wanted {} of {} columns", slice.rows, slice.cols, hidden.rows,
        hidden.cols, columns(), hidden_size_);
}

void ActivationSlices::pack(tensor::Backend& backend, tensor::Matrix hidden, tensor::Matrix slice) const {
  check(hidden, slice);
  backend.copy_columns(hidden, position_.rank * columns(), slice, 0, columns());
}

void ActivationSlices::gather(tensor::Collective& collective, tensor::Matrix slice, tensor::Matrix hidden) const {
  check(hidden, slice);
  collective.all_gather(slice, hidden);
}

}  // namespace millrace::sched
