#pragma once

#include <cstdint>

namespace millrace {

/// What the layers of a cache group keep of a sequence.
enum class GroupKind : uint8_t {
  kFull,    ///< keys and values of all tokens
  kWindow,  ///< keys and values of the last tokens
  kState,   ///< a state of fixed size, and snapshots of it at page boundaries
};

/// What a cache group after the first one keeps of a sequence.
struct WindowSpec {
  uint32_t window = 0;  ///< of a window group: tokens that a token sees, itself included
  GroupKind kind = GroupKind::kWindow;
  /// The bytes of a token in a window group, in hundredths of those of a token in the first group.
  uint32_t token_percent = 100;
  /// The tokens whose keys and values in the first group weigh as much as one state of a state group.
  uint32_t state_tokens = 2048;
  friend bool operator==(const WindowSpec&, const WindowSpec&) = default;
};

}  // namespace millrace
