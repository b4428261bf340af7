#pragma once

#include "async/runtime.h"
#include "comm/link.h"

namespace millrace::comm {

/// Creates a link between two threads of one process, which hands payloads over without a copy. `capacity` bounds the
/// messages of each kind that wait in the inbox. The ring's window keeps below it; one more message breaks the link.
/// Both Runtimes must outlive both ends.
[[nodiscard]] Link make_in_process_link(async::Runtime& sender, async::Runtime& receiver, size_t capacity);

}  // namespace millrace::comm
