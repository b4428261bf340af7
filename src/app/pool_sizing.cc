#include "app/pool_sizing.h"

#include <algorithm>

#include "base/log.h"
#include "model/cache_groups.h"

namespace millrace::app {
namespace {

/// Returns the pages of the host tier where the device has `page_count`; 0: there is no host tier.
uint32_t host_page_count(const EngineOptions& options, const RingMemory& memory, uint32_t page_count) {
  if (!options.hierarchical_cache) return 0;
  const double pages = options.host_cache_gb > 0 ? options.host_cache_gb * 1e9 / memory.largest_node_ratio /
                                                       std::max(1.0, memory.node.page_bytes(page_count))
                                                 : options.host_cache_ratio * page_count;
  return static_cast<uint32_t>(std::clamp(pages, 1.0, 0x1p31));
}

}  // namespace

double largest_node_ratio(std::span<const cluster::NodePart> parts, std::span<const model::LayerRange> ranges) {
  const auto layers_of = [&](const cluster::NodePart& part) {
    const size_t last = part.first_stage + part.stage_count - 1;
    return static_cast<double>(ranges[last].end - ranges[part.first_stage].begin) * part.rank_count;
  };
  const double first_layers = std::max(1.0, layers_of(parts.front()));
  double ratio = 1;
  for (const cluster::NodePart& part : parts) ratio = std::max(ratio, layers_of(part) / first_layers);
  return ratio;
}

Result<cache::PoolSizes> choose_pool_sizes(const EngineOptions& options, const model::ModelConfig& config,
                                           const RingMemory& memory) {
  const cluster::LoadedRing& limits = memory.limits;
  const bool shares_memory = options.hierarchical_cache && options.host_cache_gb <= 0 && memory.node.on_host();
  const double pages_each = shares_memory ? 1 + options.host_cache_ratio : 1;
  const auto with_host_pages = [&](uint64_t pages) {
    return static_cast<uint64_t>(static_cast<double>(pages) / pages_each);
  };
  const uint32_t wanted = pool_pages(options, config.context_length(), with_host_pages(memory.page_capacity));
  const auto device = static_cast<uint32_t>(std::min<uint64_t>(wanted, with_host_pages(limits.page_capacity)));
  if (device == 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "no room for a KV cache page of {} tokens: raise --max-total-tokens or --mem-fraction-static",
                      options.stage.page_size);
  }
  if (device < wanted) {
    log::warn("--max-total-tokens {}: the memory of the smallest node holds {} tokens", options.max_total_tokens,
              uint64_t{device} * options.stage.page_size);
  }
  const uint32_t wanted_host = host_page_count(options, memory, device);
  const auto host = static_cast<uint32_t>(std::min<uint64_t>(wanted_host, limits.host_page_capacity));
  if (host < wanted_host) log::warn("the host tier has {} pages instead of {}, for lack of memory", host, wanted_host);
  const auto sequences = static_cast<uint32_t>(with_host_pages(limits.sequence_capacity));
  return cache::PoolSizes{
      .device = device,
      .host = wanted_host == 0 ? 0 : std::max(host, 1u),
      .sequences = window_sequences(options, model::CacheGroups(config).windows(), device, sequences)};
}

}  // namespace millrace::app
