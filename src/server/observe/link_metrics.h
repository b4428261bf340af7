#pragma once

#include <string>
#include <vector>

#include "comm/link.h"

namespace millrace::server {

/// Appends what /metrics says about the ends of TCP links, in Prometheus' text form; nothing when there is none.
void append_link_metrics(std::string& out, const std::vector<comm::LinkStats>& links);

}  // namespace millrace::server
