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

/// How a pair enters its row's sum over the shards of experts (tensor::expert_shards). Sums of subtrees that wait for
/// their other half have levels, from 0 on.
struct PairSum {
  uint8_t level = 0;      ///< level of the shard's sum
  bool starts = false;    ///< the pair is the first of its row in its shard
  uint8_t completed = 0;  ///< levels below that are complete with this pair, and added
  bool ends = false;      ///< the pair is the last of its row: level 0 has the row's sum
};
inline constexpr int kMaxPairLevels = 4;  ///< of the shards 0 to 6, three subtrees wait for shard 7

/// The rows that each of a rank's experts computes. A pair is a row with one of its experts. Pairs are ordered by
/// expert number, then by row.
struct Routes {
  std::vector<int32_t> topk_ids;    // [rows, k] experts, by falling choice value
  std::vector<float> weights;       // [rows, k]
  std::vector<int32_t> pair_index;  // [rows, k]; -1: an expert of another rank
  std::vector<int32_t> pair_row;    // [pairs]
  std::vector<float> pair_weight;   // [pairs]
  std::vector<PairSum> pair_sum;    // [pairs]
  std::vector<int32_t> group_of;    // [experts] index into groups, of those that are there
  std::vector<int32_t> last_pair;   // [rows] scratch
  std::vector<uint8_t> last_shard;  // [rows] scratch
  std::vector<uint8_t> waiting;     // [rows] scratch
  std::vector<ExpertGroup> groups;  // ascending
  std::vector<int32_t> order;       // [threads, 2, experts] scratch
  std::vector<float> scores;        // [threads, 3, experts] scratch

  /// Allocates for `rows` rows, so that route() allocates nothing.
  void reserve(int64_t rows, int32_t experts, int32_t experts_per_row, int threads);
};

/// Finds the experts of each row of logits (f32) [rows, experts] and their weights (see tensor::Routing). A row with a
/// NaN goes to the first experts with NaN weights. Only the experts of the rank that owns `shards` get pairs.
void route(Device& device, const tensor::Matrix& logits, const tensor::Routing& routing,
           const tensor::SumShards& shards, Routes& routes);

}  // namespace millrace::cpu
