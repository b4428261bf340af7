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

/// Returns the largest number up to INT32_MAX for which `fits` holds, as it does for 0 and for all below.
template <class Fits>
uint64_t largest(const Fits& fits) {
  uint64_t found = 0;
  uint64_t exceeds = uint64_t{INT32_MAX} + 1;
  while (exceeds - found > 1) {
    const uint64_t middle = found + (exceeds - found) / 2;
    (fits(static_cast<uint32_t>(middle)) ? found : exceeds) = middle;
  }
  return found;
}

/// Returns the bytes of one tier's pools.
uint64_t pool_bytes(const sched::StageBounds& bounds, std::span<const uint64_t> page_bytes,
                    uint32_t cache::PoolSizes::* tier) {
  uint64_t bytes = 0;
  for (size_t group = 0; group < bounds.group_count(); ++group) bytes += bounds.pools(group).*tier * page_bytes[group];
  return bytes;
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

std::vector<uint64_t> NodeMemory::all_page_bytes() const {
  std::vector<uint64_t> page_bytes;
  for (const MemoryUser& stage : stages_) add_page_bytes(stage, page_bytes);
  return page_bytes;
}

/// Returns the device bytes of all groups' pools.
uint64_t NodeMemory::bytes_of(cache::PoolSizes first, std::span<const uint64_t> page_bytes) const {
  uint64_t bytes = first.device * page_bytes.front();
  const auto pools = cache::divide_pools(windows(), first, needs_);
  for (size_t i = 0; i < pools.size(); ++i) bytes += pools[i].pages.device * page_bytes[i + 1];
  return bytes;
}

/// Returns the largest number of pages of the first group for which all pools fit.
uint64_t NodeMemory::max_pages(uint64_t bytes, std::span<const uint64_t> page_bytes) const {
  if (windows().empty()) return bytes / std::max<uint64_t>(1, page_bytes.front());
  return largest([&](uint32_t pages) { return bytes_of({.device = pages}, page_bytes) <= bytes; });
}

/// Returns the largest number of sequences whose windows and states fit in addition to `page_count` pages of the first
/// group.
uint64_t NodeMemory::max_sequences(uint32_t page_count, uint64_t bytes, std::span<const uint64_t> page_bytes) const {
  return largest([&](uint32_t sequences) {
    return sequences == 0 || bytes_of({.device = page_count, .sequences = sequences}, page_bytes) <= bytes;
  });
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
  const cache::PoolSizes first{.device = static_cast<uint32_t>(page_count)};
  return static_cast<double>(bytes_of(first, all_page_bytes())) / static_cast<double>(page_count);
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

uint32_t NodeMemory::sequence_capacity(uint32_t wanted_pages, double fraction, uint32_t sharers) const {
  if (wanted_pages == 0 || windows().empty()) return INT32_MAX;
  if (fraction <= 0 || fraction >= 1) fraction = on_host() ? kFractionOfHost : kFractionOfGpu;
  const uint64_t usual = cache::expected_sequences(windows(), wanted_pages, needs_);
  uint64_t smallest = INT32_MAX;
  for (const auto& [name, device] : devices()) {
    const uint64_t bytes = device.available_bytes / sharers;
    const auto part = static_cast<uint64_t>(fraction * static_cast<double>(bytes));
    uint64_t fits = max_sequences(wanted_pages, part, device.page_bytes);
    // What the pages alone ask for is not refused here: check_room() says what is missing.
    if (fits < usual) fits = on_host() ? usual : std::min(usual, max_sequences(wanted_pages, bytes, device.page_bytes));
    smallest = std::min(smallest, fits);
  }
  return static_cast<uint32_t>(smallest);
}

uint64_t NodeMemory::host_page_capacity() const {
  const double bytes = kUsableFraction * static_cast<double>(Machine().available_memory());
  const uint64_t page_count = std::max<uint64_t>(1, page_capacity(0));
  return static_cast<uint64_t>(bytes / std::max(1.0, page_bytes(page_count)));
}

Result<void> NodeMemory::check_room(const sched::StageBounds& bounds) const {
  for (const auto& [name, device] : devices()) {
    const uint64_t wanted = pool_bytes(bounds, device.page_bytes, &cache::PoolSizes::device);
    log::info("{}: the KV cache takes up to {:.1f} MB of {:.1f} MB that are available", name, to_megabytes(wanted),
              to_megabytes(device.available_bytes));
    if (wanted <= device.available_bytes) continue;
    if (on_host()) {
      log::warn(
          "a KV cache of {} pages of {} tokens takes {:.1f} MB when all are in use, {:.1f} MB of memory are "
          "available: lower --max-total-tokens",
          bounds.page_count, page_size_, to_megabytes(wanted), to_megabytes(device.available_bytes));
      continue;
    }
    return make_error(ErrorCode::kExhausted,
                      "{}: a KV cache of {} pages of {} tokens takes {:.1f} MB, {:.1f} MB are free after weights and "
                      "scratch: {:.1f} MB are missing",
                      name, bounds.page_count, page_size_, to_megabytes(wanted), to_megabytes(device.available_bytes),
                      to_megabytes(wanted - device.available_bytes));
  }
  return {};
}

Result<void> NodeMemory::check_host_room(const sched::StageBounds& bounds) const {
  const uint64_t wanted = pool_bytes(bounds, all_page_bytes(), &cache::PoolSizes::host);
  const uint64_t available = Machine().available_memory();
  if (wanted <= available) return {};
  return make_error(ErrorCode::kExhausted,
                    "a host tier of {} pages of {} tokens takes {:.1f} MB, {:.1f} MB of memory are available: "
                    "lower --hicache-size or --hicache-ratio",
                    bounds.host_page_count, page_size_, to_megabytes(wanted), to_megabytes(available));
}

}  // namespace millrace::app
