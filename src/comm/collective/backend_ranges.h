#pragma once

#include <cstdint>
#include <functional>

#include "tensor/backend.h"

namespace millrace::comm {

/// Calls body(begin, end) for ranges that cover [0, items), which have so many `values` together. Other threads of the
/// backend help from 32K values on, or from 1M values on where the backend starts threads for each call.
template <class Body>
void for_backend_ranges(tensor::Backend& backend, int64_t items, int64_t values, const Body& body) {
  const int64_t many = backend.is_host() ? int64_t{32} << 10 : int64_t{1} << 20;
  if (values >= many) {
    backend.for_ranges(items, std::cref(body));
  } else {
    body(int64_t{0}, items);
  }
}

}  // namespace millrace::comm
