#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tensor/collective.h"

namespace millrace::comm {

/// Opens a device's own collectives (Backend::open_collective) between ranks of one process, in the order of their
/// backends, which outlive the ends. Each is opened on a thread of its own, since opening may wait for all. `name` and
/// `max_bytes` are those of CollectiveOptions. Throws std::runtime_error.
[[nodiscard]] std::vector<std::unique_ptr<tensor::Collective>> open_device_collectives(
    const std::string& name, const std::vector<tensor::Backend*>& backends, size_t max_bytes);

}  // namespace millrace::comm
