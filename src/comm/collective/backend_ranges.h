#pragma once

#include <cstdint>
#include <functional>

#include "base/parallel_for.h"
#include "tensor/backend.h"

namespace millrace::comm {

/// Calls body(begin, end) for ranges that cover [0, items), on host memory. `values` is the number of values in all
/// items. From 32K values on, the threads of a backend on the host help. Elsewhere threads are started for the call,
/// from 1M values on.
template <class Body>
void for_backend_ranges(tensor::Backend& backend, int64_t items, int64_t values, const Body& body) {
  constexpr int64_t kManyValues = int64_t{32} << 10;
  constexpr int64_t kValuesWorthThreads = int64_t{1} << 20;
  constexpr int32_t kThreads = 4;
  if (backend.is_host() && values >= kManyValues) return backend.for_ranges(items, std::cref(body));
  if (backend.is_host() || values < kValuesWorthThreads) return body(int64_t{0}, items);
  const int64_t block = (items + kThreads - 1) / kThreads;
  parallel_for({.count = items, .block = block, .threads = kThreads, .thread_name = "expert rows"}, std::cref(body));
}

}  // namespace millrace::comm
