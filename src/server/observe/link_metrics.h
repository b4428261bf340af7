#pragma once

#include <string>
#include <vector>

#include "cache/cache_counts.h"
#include "comm/link.h"

namespace millrace::server {

/// Appends what /metrics says about the ends of TCP links, in Prometheus' text form; nothing when there is none.
void append_link_metrics(std::string& out, const std::vector<comm::LinkStats>& links);
/// The same of the stages' page stores.
void append_store_metrics(std::string& out, const std::vector<cache::StageStoreStats>& stores);

}  // namespace millrace::server
