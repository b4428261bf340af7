#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cache/page_pool.h"
#include "model/stage_model.h"
#include "sched/stage/stage_config.h"
#include "tensor/backend.h"

namespace millrace::app {

/// One stage of a node as a user of memory. Everything is borrowed.
struct MemoryUser {
  std::string name;  ///< in errors: "stage 2"
  model::StageSpan span;
  tensor::RankPosition position;
  std::optional<tensor::RankPosition> experts;  ///< among the ranks of all rings that share experts, if there are some
  tensor::Backend* backend = nullptr;
  const model::StageModel* model = nullptr;  ///< null before it is loaded
};

/// Refuses, before loading, stages whose weights cannot fit their GPUs, and backends that cannot run the model. A rank
/// counts with its part of the weights and its experts. Stored weights count in their bits, although a GPU decodes some
/// to 16. Formats whose bits only the tensors tell are not checked. Errors name the stage and what is missing.
[[nodiscard]] Result<void> check_weights_fit(const model::ModelConfig& config, const std::vector<MemoryUser>& stages);

/// Counts the memory that the loaded stages of a node have for KV pages, by device. It allocates nothing, and lives for
/// one question on the thread that loads.
class NodeMemory {
 public:
  NodeMemory(std::vector<MemoryUser> stages, const sched::StageConfig& config);

  /// Returns the devices of the stages, each once.
  [[nodiscard]] std::vector<std::string> device_names() const;
  /// Returns whether the KV caches lie in host memory, as the host tier does.
  [[nodiscard]] bool on_host() const { return stages_.front().backend->is_host(); }
  /// Returns the bytes per page over all stages, with its share of the window groups' pools where the first group has
  /// `page_count` pages.
  [[nodiscard]] double page_bytes(uint64_t page_count = 1) const;
  /// Returns the pages, over all stages, in `fraction` of the memory that is available now; 0: the device's default.
  [[nodiscard]] uint64_t page_capacity(double fraction) const;
  /// Returns for how many sequences, over all stages, the window groups have room in addition to `wanted_pages` of the
  /// first one, in `fraction` of the memory that is available now; 0 or 1: the device's default. `sharers` rings share
  /// it. What the pages alone suggest may take all memory.
  [[nodiscard]] uint32_t sequence_capacity(uint32_t wanted_pages, double fraction, uint32_t sharers = 1) const;
  /// Returns the pages that a host tier can have in the host memory that is available now. It leaves some for other
  /// processes.
  [[nodiscard]] uint64_t host_page_capacity() const;
  /// Checks that the pools of all cache groups have room on the devices. An error says how much is missing. Host memory
  /// becomes resident page by page, so there a shortage is a warning in the log.
  [[nodiscard]] Result<void> check_room(const sched::StageBounds& bounds) const;
  /// Checks that the host tier has room in host memory.
  [[nodiscard]] Result<void> check_host_room(const sched::StageBounds& bounds) const;

 private:
  struct Device {
    uint64_t available_bytes = 0;
    std::vector<uint64_t> page_bytes;  // [cache groups], over the stages on it
  };
  [[nodiscard]] std::map<std::string, Device> devices() const;
  [[nodiscard]] const std::vector<WindowSpec>& windows() const;
  void add_page_bytes(const MemoryUser& stage, std::vector<uint64_t>& page_bytes) const;
  /// Returns the bytes of a page of each cache group, over all stages.
  [[nodiscard]] std::vector<uint64_t> all_page_bytes() const;
  [[nodiscard]] uint64_t bytes_of(cache::PoolSizes first, std::span<const uint64_t> page_bytes) const;
  [[nodiscard]] uint64_t max_pages(uint64_t bytes, std::span<const uint64_t> page_bytes) const;
  [[nodiscard]] uint64_t max_sequences(uint32_t page_count, uint64_t bytes, std::span<const uint64_t> page_bytes) const;

  const std::vector<MemoryUser> stages_;
  const uint32_t page_size_;
  const cache::PoolNeeds needs_;
};

}  // namespace millrace::app
