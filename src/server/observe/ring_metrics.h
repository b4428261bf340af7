#pragma once

#include <string>

namespace millrace::sched {
struct EngineStatus;
struct RingSnapshot;
}  // namespace millrace::sched

namespace millrace::server {

/// Appends the ring's metrics, in Prometheus' text form.
void append_ring_metrics(std::string& out, const sched::RingSnapshot& ring, const sched::EngineStatus& status,
                         std::string_view model_name);

}  // namespace millrace::server
