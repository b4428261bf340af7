#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpu/kernels.h"

namespace millrace::cpu {

/// Finds the largest scores of rows, one after the other, exactly. One thread's scratch; it keeps its memory between
/// rows.
class TokenChoice {
 public:
  /// Writes the positions of the chosen.size() largest scores in ascending order, of equal scores the lower position.
  /// NaN counts as the largest. There are more scores than that; they are overwritten.
  void choose(const Kernels& kernels, std::span<float> scores, std::span<int32_t> chosen);

 private:
  std::vector<uint32_t> counts_;
  std::vector<int32_t> candidates_;
  std::vector<float> bucket_;
};

}  // namespace millrace::cpu
