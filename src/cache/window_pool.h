#pragma once

#include <cstdint>

#include "cache/page_pool.h"

namespace millrace::cache {

/// A window group: how far its layers see, and the sizes of its pools.
struct WindowPool {
  uint32_t window = 0;  ///< tokens that a token sees, itself included
  PoolSizes pages;
  friend bool operator==(const WindowPool&, const WindowPool&) = default;
};

}  // namespace millrace::cache
