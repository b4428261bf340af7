#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace millrace {

/// What parallel_for() divides among threads: `count` items in blocks of `block`, of which the last may be smaller.
struct ParallelBlocks {
  int64_t count = 0;
  int64_t block = 1;
  int32_t threads = 0;  // the maximum, the caller's thread included; 0: one per processor
  std::string_view thread_name;
};

/// Calls body(begin, end) once for each block of items, on the calling thread and on others that end before the return.
/// Which thread takes a block is arbitrary. After an exception no new block starts, and the first one is rethrown.
void parallel_for(const ParallelBlocks& blocks, const std::function<void(int64_t begin, int64_t end)>& body);

}  // namespace millrace
