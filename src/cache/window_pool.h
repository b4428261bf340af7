#pragma once

#include <cstdint>

#include "base/group_kind.h"
#include "cache/page_pool.h"

namespace millrace::cache {

/// A window group: how far its layers see, and the sizes of its pools.
struct WindowPool {
  uint32_t window = 0;  ///< tokens that a token sees, itself included; of a state group: state_window()
  PoolSizes pages;
  GroupKind kind = GroupKind::kWindow;
  friend bool operator==(const WindowPool&, const WindowPool&) = default;
};

/// Returns the window of a state group: a sequence keeps the page of its newest token and the one before it, which is a
/// snapshot at a page boundary.
[[nodiscard]] constexpr uint32_t state_window(uint32_t page_size) {
  return page_size + 1;
}

}  // namespace millrace::cache
