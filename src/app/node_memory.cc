#include "app/node_memory.h"

#include <algorithm>

#include "base/log.h"
#include "base/machine.h"
#include "model/tensor_list.h"
#include "model/weights.h"
#include "sched/stage/model_runner.h"

namespace millrace::app {
namespace {

/// Default parts of the available memory for the KV cache. A GPU is the server's alone, a host is not.
constexpr double kFractionOfHost = 0.5;
constexpr double kFractionOfGpu = 0.9;
/// Part of the available host memory that a host tier may take, since other processes use some before it is made.
constexpr double kUsableFraction = 0.95;

double to_megabytes(uint64_t bytes) {
  return static_cast<double>(bytes) / 1e6;
}

}  // namespace

Result<void> check_weights_fit(const model::ModelConfig& config, const std::vector<MemoryUser>& stages) {
  for (const MemoryUser& stage : stages) {
    const auto usable = model::check_backend(config, *stage.backend);
    if (usable.has_error()) return make_error(usable.error().code, "{}: {}", stage.name, usable.error().message);
  }
  std::map<std::string, uint64_t> taken;  // by the stages before, by device
  for (const MemoryUser& stage : stages) {
    const tensor::Backend& backend = *stage.backend;
    if (backend.is_host()) continue;
    const tensor::DeviceMemory memory = backend.memory();
    const uint64_t free = memory.available_bytes - std::min(memory.available_bytes, taken[memory.name]);
    const uint64_t wanted = model::parameter_count(config, stage.span) * tensor::size_of(backend.compute_dtype());
    if (wanted > free) {
      return make_error(ErrorCode::kExhausted,
                        "{}: its weights take {:.1f} MB, {} has {:.1f} MB free: {:.1f} MB are missing", stage.name,
                        to_megabytes(wanted), memory.name, to_megabytes(free), to_megabytes(wanted - free));
    }
    taken[memory.name] += wanted;
  }
  return {};
}

NodeMemory::NodeMemory(std::vector<MemoryUser> stages, uint32_t page_size)
    : stages_(std::move(stages)), page_size_(page_size) {}

std::vector<std::string> NodeMemory::device_names() const {
  std::vector<std::string> names;
  for (const MemoryUser& stage : stages_) {
    std::string name = stage.backend->memory().name;
    if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  }
  return names;
}

uint64_t NodeMemory::page_bytes() const {
  uint64_t bytes = 0;
  for (const MemoryUser& stage : stages_) bytes += stage.model->page_bytes(static_cast<int32_t>(page_size_));
  return bytes;
}

std::map<std::string, NodeMemory::Device> NodeMemory::devices() const {
  std::map<std::string, Device> devices;
  std::map<std::string, uint64_t> reserved;  // for activations and buffers
  for (size_t i = 0; i < stages_.size(); ++i) {
    const MemoryUser& stage = stages_[i];
    const tensor::DeviceMemory memory = stage.backend->memory();
    Device& device = devices[memory.name];
    device.available_bytes = memory.available_bytes;
    device.page_bytes += stage.model->page_bytes(static_cast<int32_t>(page_size_));
    if (stage.backend->is_host()) continue;
    // Only the first stage can follow another node's, and only there NCCL is asked for.
    const bool receives = i == 0 && !stage.span.first && stage.backend->channel_support().unavailable_reason.empty();
    reserved[memory.name] += sched::ModelRunner::device_bytes(*stage.model, receives);
  }
  for (auto& [name, device] : devices) device.available_bytes -= std::min(device.available_bytes, reserved[name]);
  return devices;
}

uint64_t NodeMemory::page_capacity(double fraction) const {
  if (fraction <= 0) fraction = on_host() ? kFractionOfHost : kFractionOfGpu;
  uint64_t smallest = UINT64_MAX;
  for (const auto& [name, device] : devices()) {
    const auto bytes = static_cast<uint64_t>(fraction * static_cast<double>(device.available_bytes));
    smallest = std::min(smallest, bytes / std::max<uint64_t>(1, device.page_bytes));
  }
  return smallest;
}

uint64_t NodeMemory::host_page_capacity() const {
  const double bytes = kUsableFraction * static_cast<double>(Machine().available_memory());
  return static_cast<uint64_t>(bytes) / std::max<uint64_t>(1, page_bytes());
}

Result<void> NodeMemory::check_room(uint64_t page_count) const {
  for (const auto& [name, device] : devices()) {
    const uint64_t wanted = page_count * device.page_bytes;
    if (wanted <= device.available_bytes) continue;
    if (on_host()) {
      log::warn(
          "a KV cache of {} pages of {} tokens takes {:.1f} MB when all are in use, {:.1f} MB of memory are "
          "available: lower --max-total-tokens",
          page_count, page_size_, to_megabytes(wanted), to_megabytes(device.available_bytes));
      continue;
    }
    return make_error(ErrorCode::kExhausted,
                      "{}: a KV cache of {} pages of {} tokens takes {:.1f} MB, {:.1f} MB are free after weights and "
                      "scratch: {:.1f} MB are missing",
                      name, page_count, page_size_, to_megabytes(wanted), to_megabytes(device.available_bytes),
                      to_megabytes(wanted - device.available_bytes));
  }
  return {};
}

Result<void> NodeMemory::check_host_room(uint64_t host_page_count) const {
  const double wanted = static_cast<double>(host_page_count) * static_cast<double>(page_bytes());
  const uint64_t available = Machine().available_memory();
  if (wanted <= static_cast<double>(available)) return {};
  return make_error(ErrorCode::kExhausted,
                    "a host tier of {} pages of {} tokens takes {:.1f} MB, {:.1f} MB of memory are available: "
                    "lower --hicache-size or --hicache-ratio",
                    host_page_count, page_size_, wanted / 1e6, to_megabytes(available));
}

}  // namespace millrace::app
