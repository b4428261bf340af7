#pragma once

#include <cstdint>
#include <vector>

#include "cpu/kernels.h"
#include "tensor/backend.h"

namespace millrace::cpu {

struct Device;

/// An expert that computes anything, and its rows.
struct ExpertGroup {
  int32_t expert = 0;
  int32_t begin = 0;  ///< of its pairs
  int32_t count = 0;
  // fused_moe's own:
  size_t x_offset = 0;          ///< where in scratch the LHS operand of gate and up begins
  size_t activated_offset = 0;  ///< and that of down
  int64_t first_block = 0;      ///< of gate and up, among those of all groups
};

/// Which rows each expert computes. A pair is a row and one of its experts; those of an expert follow one another, in
/// the order of the rows, and experts in that of their numbers.
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

  /// Takes the memory of routes of so many rows, so that route() takes none.
  void reserve(int64_t rows, int32_t experts, int32_t experts_per_row, int threads);
};

/// Finds the experts of each row of logits (f32) [rows, experts] and their weights (see tensor::Routing). A row with a
/// NaN goes to the first experts, with weights that are NaN.
void route(Device& device, const tensor::Matrix& logits, const tensor::Routing& routing, Routes& routes);

}  // namespace millrace::cpu
