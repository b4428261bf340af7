#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/link.h"

namespace millrace::server {

/// Appends what /metrics says about the ends of TCP links, in Prometheus' text form; nothing when there is none.
void append_link_metrics(std::string& out, const std::vector<comm::LinkStats>& links);
/// What came to the port where the head's node hears the others; nothing when there is no such port.
void append_control_metrics(std::string& out, std::optional<uint64_t> refusals);

}  // namespace millrace::server
