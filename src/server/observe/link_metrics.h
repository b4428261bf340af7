#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/link.h"

namespace millrace::server {

/// Appends the metrics of the ends of TCP links, in Prometheus' text form; nothing when there is none.
void append_link_metrics(std::string& out, const std::vector<comm::LinkStats>& links);
/// Appends the metrics of the control port, where the head's node listens for the others; nothing without such a port.
void append_control_metrics(std::string& out, std::optional<uint64_t> refusals);

}  // namespace millrace::server
