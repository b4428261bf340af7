#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/node_memory.h"
#include "app/node_ranks.h"
#include "app/node_stages_options.h"
#include "async/real_runtime.h"
#include "base/result.h"
#include "cluster/messages.h"
#include "model/stage_model.h"
#include "sched/stage/local_stages.h"
#include "sched/stage/stage_config.h"
#include "tensor/backend.h"

namespace millrace::sched {
class LocalStages;
class ModelRunner;
}  // namespace millrace::sched

namespace millrace::app {

/// Returns the model as a stage with `--quantization wanted` computes it. Errors: --quantization.
[[nodiscard]] Result<model::ModelConfig> quantized_config(model::ModelConfig config, model::Quantization wanted);

/// Returns what the sums between a stage's ranks add to the name of its arithmetic; empty: nothing, they are exact.
[[nodiscard]] std::string rounding_of_sums(uint32_t rank_count, tensor::DType reduce_dtype);

class NodeStages;

/// Returns a node's report of its stages, with what fits the fraction of the memory available now that `stage` gives to
/// the KV cache. Stages that exist have their pages and are reported without.
[[nodiscard]] cluster::Loaded loaded_report(const NodeStages& node, const sched::StageConfig& stage);

/// The stages that this process hosts, from weights to loops: each rank has a thread, a backend and a StageModel. Owned
/// by the engine or the worker and used on the thread that loads. The destructor joins the ranks' threads, so the loops
/// must have ended.
class NodeStages {
 public:
  /// Loads the weights and shows the progress. A rank that computes what a rank of an `earlier` ring of this process
  /// does, near the same memory, uses the weights of that one. `checkpoint` outlives the stages. Errors name the tensor
  /// or flag; kAborted when it was interrupted.
  [[nodiscard]] static Result<std::unique_ptr<NodeStages>> load(const model::Checkpoint& checkpoint,
                                                                const model::ModelConfig& config,
                                                                const NodeStagesOptions& options,
                                                                std::span<const NodeStages* const> earlier = {});
  ~NodeStages();
  NodeStages(const NodeStages&) = delete;
  NodeStages& operator=(const NodeStages&) = delete;

  /// Returns the arithmetic of this node's stages: "bf16 cpu avx2", "bf16 cpu avx2, w8".
  [[nodiscard]] std::string compute() const;
  /// Returns whether the KV caches lie in host memory, as the host tier does.
  [[nodiscard]] bool on_host() const { return parts_.front().backend->is_host(); }
  /// Returns what the device of the first stage's leader, or of the last one's, offers as an end of a channel.
  [[nodiscard]] tensor::ChannelSupport first_channels() const;
  [[nodiscard]] tensor::ChannelSupport last_channels() const;
  /// Returns the accounting of KV pages. Only before make_stages().
  [[nodiscard]] NodeMemory memory() const;
  /// Returns what the pages of the ranks here follow from, with a page store: weights and arithmetic.
  [[nodiscard]] model::PageContents contents() const;
  /// Allocates the caches, opens the stores and makes the loops' host. `control` outlives it. `fingerprint` names
  /// stored pages: it is that of the contents() of all stages of the ring, since a page follows from the layers before
  /// it too. Without one there are no stores. After an error nothing is made, and it may be called again.
  [[nodiscard]] Result<void> make_stages(async::Runtime& control, const sched::RingConfig& shape,
                                         const std::string& fingerprint);
  /// Undoes make_stages() and keeps the weights, so that it may be called again with another shape. No loop runs.
  /// Blocks until links that are ending have ended.
  void destroy_stages();
  [[nodiscard]] bool made() const { return stages_ != nullptr; }
  [[nodiscard]] sched::LocalStages& stages() { return *stages_; }
  /// Waits until the ranks' threads have no work left.
  void join();

 private:
  /// One rank of a stage.
  struct Part {
    std::unique_ptr<tensor::Backend> backend;
    std::unique_ptr<model::StageModel> model;               // until the runner takes it, as the stores
    sched::ModelRunner* runner = nullptr;                   // of stages_
    std::vector<std::unique_ptr<cache::PageStore>> stores;  // [cache groups]
    std::unique_ptr<async::IoThread> thread;
    std::vector<size_t> numa_nodes;                         // where all of its threads run; empty: anywhere
    std::optional<int32_t> weights_ring;                    // whose weights it uses; empty: it has packed its own
    std::optional<model::StageFingerprint> fingerprint;     // when there is a store
    std::shared_ptr<const tensor::GraphStats> graph_stats;  // where the device may record them
  };

  NodeStages(const model::ModelConfig& config, const NodeStagesOptions& options);
  [[nodiscard]] std::vector<MemoryUser> memory_users() const;
  [[nodiscard]] size_t output_buffers(size_t part, const sched::RingConfig& shape) const;
  void log_graph_stats() const;
  [[nodiscard]] Result<void> make_backends();
  [[nodiscard]] Result<void> load_all(const model::Checkpoint& checkpoint, std::span<const NodeStages* const> earlier);
  [[nodiscard]] const NodeStages* find_weights(size_t index, std::span<const NodeStages* const> earlier) const;
  [[nodiscard]] Result<void> share_weights(size_t index, const NodeStages& ring);
  [[nodiscard]] Result<void> prepare(size_t index);
  [[nodiscard]] Result<void> try_make_stages(async::Runtime& control, const sched::RingConfig& shape,
                                             const std::string& fingerprint);
  [[nodiscard]] std::unique_ptr<sched::ModelRunner> make_runner(size_t index, const sched::RingConfig& shape);
  void release_pools();
  [[nodiscard]] Result<void> allocate_cache(size_t index, const sched::StageBounds& bounds);
  [[nodiscard]] Result<void> open_store(size_t index, const sched::StageBounds& bounds, const std::string& fingerprint);

  const model::ModelConfig config_;
  const NodeStagesOptions options_;
  const NodeRanks ranks_;
  std::vector<Part> parts_;  // [ranks_]
  std::unique_ptr<sched::LocalStages> stages_;
};

}  // namespace millrace::app
