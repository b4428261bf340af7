#pragma once

#include <string>

namespace millrace::server {

/// Appends what Prometheus' clients say of their process: resident memory, CPU time, descriptors, when it was started.
/// Reads /proc at each call; what cannot be read is left out.
void append_process_metrics(std::string& out);

}  // namespace millrace::server
