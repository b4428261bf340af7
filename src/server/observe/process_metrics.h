#pragma once

#include <string>

namespace millrace::server {

/// Appends the lines of the log that were dropped, and the process metrics of Prometheus' client libraries: resident
/// memory, CPU time, open descriptors, start time. Reads /proc at each call, and leaves out what cannot be read.
void append_process_metrics(std::string& out);

}  // namespace millrace::server
