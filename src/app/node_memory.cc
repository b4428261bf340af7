#include "app/node_memory.h"

#include <algorithm>

#include "base/log.h"
#include "base/machine.h"
#include "model/weight_memory.h"
#include "model/weights.h"
#include "sched/stage/model_runner.h"

namespace millrace::app {
namespace {

/// Default parts of the available memory for the KV cache. A GPU is the server's alone, a host is not.
constexpr double kFractionOfHost = 0.5;
constexpr double kFractionOfGpu = 0.9;
/// Part of the available host memory that a host tier may take, since other processes use some before it is made.
constexpr double kUsableFraction = 0.95;

/// The most bits of stored weights that a GPU can keep. It decodes some with fewer to 16, so the check is a minimum.
constexpr int32_t kKeptBits = 8;

double to_megabytes(uint64_t bytes) {
  return static_cast<double>(bytes) / 1e6;
}

}  // namespace

Result<void> check_weights_fit(const model::ModelConfig& config, const std::vector<MemoryUser>& stages) {
  for (const MemoryUser& stage : stages) {
    const auto usable = model::check_backend(config, *stage.backend);
    if (usable.has_error()) return make_error(usable.error().code, "{}: {}", stage.name, usable.error().message);
  }
  if (!model::knows_stored_bits(config)) return {};
  std::map<std::string, uint64_t> taken;  // by the stages before, by device
  for (const MemoryUser& stage : stages) {
    const tensor::Backend& backend = *stage.backend;
    if (backend.is_host()) continue;
    const tensor::DeviceMemory memory = backend.memory();
    const uint64_t free = memory.available_bytes - std::min(memory.available_bytes, taken[memory.name]);
    const model::RankLayout layout = model::rank_layout(config, stage.position, stage.experts);
    const auto wanted = static_cast<uint64_t>(model::weight_memory(config, stage.span, layout, kKeptBits).bytes);
    if (wanted > free) {
      return make_error(ErrorCode::kExhausted,
                        "{}: its weights take {:.1f} MB, {} has {:.1f} MB free: {:.1f} MB are missing", stage.name,
                        to_megabytes(wanted), memory.name, to_megabytes(free), to_megabytes(wanted - free));
    }
    taken[memory.name] += wanted;
  }
  return {};
}

NodeMemory::NodeMemory(std::vector<MemoryUser> stages, const sched::StageConfig& config)
    : stages_(std::move(stages)), page_size_(config.page_size), needs_(sched::pool_needs(config)) {}

const std::vector<WindowSpec>& NodeMemory::windows() const {
  return stages_.front().model->cache_groups().windows();
}

void NodeMemory::add_page_bytes(const MemoryUser& stage, std::vector<uint64_t>& page_bytes) const {
  page_bytes.resize(1 + windows().size());
  for (size_t group = 0; group < page_bytes.size(); ++group) {
    page_bytes[group] += stage.model->page_bytes(static_cast<int32_t>(page_size_), group);
  }
}

/// Returns the bytes of all groups' pools where the first group has `page_count` pages.
uint64_t NodeMemory::bytes_of(uint64_t page_count, std::span<const uint64_t> page_bytes) const {
  uint64_t bytes = page_count * page_bytes.front();
  const auto pools = cache::divide_pools(windows(), {.device = static_cast<uint32_t>(page_count)}, needs_);
  for (size_t i = 0; i < pools.size(); ++i) bytes += pools[i].pages.device * page_bytes[i + 1];
  return bytes;
}

/// Returns the largest number of pages of the first group for which all pools fit.
uint64_t NodeMemory::max_pages(uint64_t bytes, std::span<const uint64_t> page_bytes) const {
  if (windows().empty()) return bytes / std::max<uint64_t>(1, page_bytes.front());
  uint64_t fits = 0;
  uint64_t exceeds = uint64_t{INT32_MAX} + 1;
  while (exceeds - fits > 1) {
    const uint64_t middle = fits + (exceeds - fits) / 2;
    (bytes_of(middle, page_bytes) <= bytes ? fits : exceeds) = middle;
  }
  return fits;
}

std::vector<std::string> NodeMemory::device_names() const {
  std::vector<std::string> names;
  for (const MemoryUser& stage : stages_) {
    std::string name = stage.backend->memory().name;
    if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  }
  return names;
}

double NodeMemory::page_bytes(uint64_t page_count) const {
  std::vector<uint64_t> page_bytes;
  for (const MemoryUser& stage : stages_) add_page_bytes(stage, page_bytes);
  return static_cast<double>(bytes_of(page_count, page_bytes)) / static_cast<double>(page_count);
}

std::map<std::string, NodeMemory::Device> NodeMemory::devices() const {
  std::map<std::string, Device> devices;
  std::map<std::string, uint64_t> reserved;  // for activations and buffers
  for (size_t i = 0; i < stages_.size(); ++i) {
    const MemoryUser& stage = stages_[i];
    const tensor::DeviceMemory memory = stage.backend->memory();
    Device& device = devices[memory.name];
    device.available_bytes = memory.available_bytes;
    add_page_bytes(stage, device.page_bytes);
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
    smallest = std::min(smallest, max_pages(bytes, device.page_bytes));
  }
  return smallest;
}

uint64_t NodeMemory::host_page_capacity() const {
  const double bytes = kUsableFraction * static_cast<double>(Machine().available_memory());
  const uint64_t page_count = std::max<uint64_t>(1, page_capacity(0));
  return static_cast<uint64_t>(bytes / std::max(1.0, page_bytes(page_count)));
}

Result<void> NodeMemory::check_room(uint64_t page_count) const {
  for (const auto& [name, device] : devices()) {
    const uint64_t wanted = bytes_of(page_count, device.page_bytes);
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

Result<void> NodeMemory::check_host_room(cache::PoolSizes pages) const {
  const double wanted = pages.host * page_bytes(std::max(1U, pages.device));
  const uint64_t available = Machine().available_memory();
  if (wanted <= static_cast<double>(available)) return {};
  return make_error(ErrorCode::kExhausted,
                    "a host tier of {} pages of {} tokens takes {:.1f} MB, {:.1f} MB of memory are available: "
                    "lower --hicache-size or --hicache-ratio",
                    pages.host, page_size_, wanted / 1e6, to_megabytes(available));
}

}  // namespace millrace::app
