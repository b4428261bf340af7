#pragma once

#include "async/runtime.h"
#include "comm/link.h"

namespace millrace::comm {

/// A link between two threads of one process: payloads are handed over, never copied. `capacity` bounds the messages of
/// each kind that wait in the inbox; the ring's window keeps below it, and exceeding it breaks the link.
/// Both Runtimes must outlive both ends.
[[nodiscard]] Link make_in_process_link(async::Runtime& sender, async::Runtime& receiver, size_t capacity);

}  // namespace millrace::comm
