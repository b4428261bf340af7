#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "base/ids.h"
#include "tensor/backend.h"

namespace millrace::bench {

/// Sequences of `prefix` cached tokens that each compute `rows` more. Pages are in random order, or in the order of a
/// fresh pool.
struct Work {
  int32_t sequences, prefix, rows, page_size;
  bool shuffled = true;
};

/// The rows and pages of such sequences.
struct Layout {
  std::vector<int32_t> row_begin = {0};
  std::vector<int32_t> prefix;
  std::vector<int32_t> page_begin = {0};
  std::vector<PageId> pages;
  [[nodiscard]] tensor::BatchLayout view() const {
    return {.row_begin = row_begin, .prefix = prefix, .page_begin = page_begin, .pages = pages};
  }
};

inline Layout make_layout(const Work& work) {
  Layout layout;
  const int32_t pages = (work.prefix + work.rows + work.page_size - 1) / work.page_size;
  for (int32_t s = 0; s < work.sequences; ++s) {
    layout.prefix.push_back(work.prefix);
    layout.row_begin.push_back(layout.row_begin.back() + work.rows);
    layout.page_begin.push_back(layout.page_begin.back() + pages);
  }
  for (int32_t page = 0; page < work.sequences * pages; ++page) layout.pages.emplace_back(static_cast<uint32_t>(page));
  if (work.shuffled) std::shuffle(layout.pages.begin(), layout.pages.end(), std::mt19937(1));
  return layout;
}

}  // namespace millrace::bench
