#pragma once

#include <string>

namespace millrace::log {

/// Begins each message of the calling thread with `label` and a colon; an empty one ends that.
void label_thread(std::string label);
/// Returns the label of the calling thread.
[[nodiscard]] const std::string& thread_label();

}  // namespace millrace::log
