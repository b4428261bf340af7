#pragma once

#include <cstdint>
#include <vector>

#include "cpu/kernels.h"
#include "tensor/backend.h"

namespace millrace::cpu {

struct Device;

/// An expert that is active in a batch, with its rows.
struct ExpertGroup {
  int32_t expert = 0;
  int32_t begin = 0;  ///< first of its pairs
  int32_t count = 0;
  // Members of fused_moe:
  size_t x_offset = 0;          ///< offset in scratch of the LHS operand of gate and up
  size_t activated_offset = 0;  ///< offset in scratch of the LHS operand of down
  int64_t first_block = 0;      ///< first block of gate and up, counted over all groups
};

/// The rows that each expert computes. A pair is a row with one of its experts. Pairs are ordered by expert number,
/// then by row.
struct Routes {
  std::vector<int32_t> topk_ids;    // [rows, k] experts, by falling logit
  std::vector<float> weights;       // [rows, k]
  std::vector<int32_t> pair_index;  // [rows, k]
  std::vector<int32_t> pair_row;    // [rows · k]
  std::vector<float> pair_weight;   // [rows · k]
  std::vector<int32_t> group_of;    // [experts] index into groups, of those that are there
  std::vector<ExpertGroup> groups;  // ascending
  std::vector<int32_t> order;       // [threads, experts] scratch
  std::vector<float> terms;         // [threads, experts] scratch

  /// Allocates for `rows` rows, so that route() allocates nothing.
  void reserve(int64_t rows, int32_t experts, int32_t experts_per_row, int threads);
};

/// Finds the experts of each row of logits (f32) [rows, experts] and their weights (see tensor::Routing). A row with a
/// NaN goes to the first experts with NaN weights.
void route(Device& device, const tensor::Matrix& logits, const tensor::Routing& routing, Routes& routes);

}  // namespace millrace::cpu
