#pragma once

#include <cstdint>

namespace millrace::cpu {

/// One row of a source that becomes a column of a panel; null where a panel ends after the last feature.
template <class Matrix>
struct SourceRow {
  const Matrix* matrix = nullptr;
  int64_t row = 0;
};

}  // namespace millrace::cpu
