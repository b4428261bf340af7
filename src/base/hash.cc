#include "base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace millrace {

uint64_t hash_bytes(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace millrace
