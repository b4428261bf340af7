#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "app/devices.h"
#include "async/real_runtime.h"
#include "base/result.h"
#include "model/stage_model.h"
#include "app/page_storage.h"
#include "sched/stage/local_stages.h"
#include "sched/stage/model_runner.h"
#include "tensor/backend.h"

namespace millrace::app {

/// What the stages of one node need to know to be loaded.
struct NodeStagesOptions {
  std::vector<model::StageSpan> spans;  ///< of this node's stages
  StageId first;                        ///< the first one's index in the ring
  std::string dtype = "auto";           ///< auto, bf16, f32
  DeviceKind device = DeviceKind::kCpu;
  bool cuda_graphs = true;
  std::string cuda_products = "auto";  ///< instruction of products on a GPU: auto, wgmma, mma
  bool divide_gpu = false;             ///< stages that share a GPU get equal parts of its multiprocessors
  std::string nccl = "auto";           ///< activations to other nodes' GPUs: auto, on, off
  std::string cpu_isa = "auto";        ///< of the CPU kernels; auto: the best there is
  std::string quantization = "none";   ///< none (as the checkpoint is), w8, w8a8, w8a8_int8, mxint8
  int32_t threads = 0;                 ///< over all stages of the node; 0: one per CPU
  bool pin_threads = false;            ///< each of them on a CPU of its own
  int32_t max_batch_tokens = 0;
  int32_t page_size = 0;
  int32_t context_length = 0;  ///< tokens of the longest sequence
  int32_t max_running = 0;
  int32_t max_draft_rows = 0;  ///< of a micro-batch
  StorageOptions storage;
  const std::atomic<bool>* interrupted = nullptr;  ///< once it is true, loading ends between two tensors

  /// Throws ErrorException (kAborted) where nobody waits for the stages any more.
  void check_interrupted() const;
};

/// Threads that one of `stage_count` stages on this node computes with; `threads` over all of them, 0: one per CPU.
[[nodiscard]] int32_t threads_per_stage(int32_t threads, int32_t stage_count);

/// The model as these stages hold it: quantised when they are told so. Errors: --quantization.
[[nodiscard]] Result<model::ModelConfig> stage_config(model::ModelConfig config, const NodeStagesOptions& node);

/// The backend of the `index`th of `stage_count` stages that share this node's threads or GPUs. Errors: --device,
/// --dtype, --cpu-isa, --pin-threads.
[[nodiscard]] Result<std::unique_ptr<tensor::Backend>> make_stage_backend(const NodeStagesOptions& node,
                                                                          int32_t stage_count, int32_t index);

/// The stages that this process hosts, from weights to loops: a thread, a backend and a StageModel each. The
/// destructor joins their threads, so the loops must have ended.
class NodeStages {
 public:
  /// Loads the weights and shows the progress. `checkpoint` outlives the stages. Errors name the tensor or flag;
  /// kAborted when it was interrupted.
  [[nodiscard]] static Result<std::unique_ptr<NodeStages>> load(const model::Checkpoint& checkpoint,
                                                                const model::ModelConfig& config,
                                                                const NodeStagesOptions& options);
  ~NodeStages();
  NodeStages(const NodeStages&) = delete;
  NodeStages& operator=(const NodeStages&) = delete;

  /// What the numbers of this node's stages come from: "bf16 cpu avx2", "bf16 cpu avx2, w8".
  [[nodiscard]] std::string compute() const;
  /// Whether the caches lie in memory of the host, as the host tier does.
  [[nodiscard]] bool on_host() const { return parts_.front().backend->is_host(); }
  /// What the devices of the first and of the last stage have to offer as ends of channels.
  [[nodiscard]] tensor::ChannelSupport first_channels() const;
  [[nodiscard]] tensor::ChannelSupport last_channels() const;
  /// Pages, over all stages of the node, in `fraction` of the memory that is available now; 0: the device's default.
  [[nodiscard]] uint64_t page_capacity(double fraction) const;
  /// Whether so many pages have room on the devices, and in memory of the host if they are of the host tier; an error
  /// says how much is missing. Caches in memory of the host get it page by page, as it is used: there the log says so.
  [[nodiscard]] Result<void> check_room(uint64_t page_count) const;
  [[nodiscard]] Result<void> check_host_room(uint64_t host_page_count) const;
  /// Bytes of such a page over all stages of the node, before make_stages().
  [[nodiscard]] uint64_t page_bytes(int32_t page_size) const;
  /// With a store: per stage what the content of its pages follows from, its weights and how it computes.
  [[nodiscard]] std::vector<std::string> contents() const;
  /// Allocates the caches, opens the stores and makes the loops' host. `control` outlives it. `fingerprint`: of the
  /// contents() of all stages of the ring, since a page follows from the layers before it too.
  [[nodiscard]] Result<void> make_stages(async::Runtime& control, const sched::RingConfig& shape,
                                         const std::string& fingerprint);
  /// Undoes make_stages(), but for the weights: it may be called anew, with another shape. No loop runs. Blocks until
  /// the links that end have done so.
  void destroy_stages();
  [[nodiscard]] bool made() const { return stages_ != nullptr; }
  [[nodiscard]] sched::LocalStages& stages() { return *stages_; }
  /// Waits until the stages' threads have no work left.
  void join();

 private:
  struct Part {
    std::unique_ptr<tensor::Backend> backend;
    std::unique_ptr<model::StageModel> model;  // until the runner takes it, as the store
    sched::ModelRunner* runner = nullptr;      // of stages_
    std::unique_ptr<cache::PageStore> store;
    std::unique_ptr<async::IoThread> thread;
    std::string fingerprint;                                // when there is a store
    std::shared_ptr<const tensor::GraphStats> graph_stats;  // where the device may record them
  };

  NodeStages(const model::ModelConfig& config, const NodeStagesOptions& options);
  [[nodiscard]] std::string stage_name(size_t index) const;
  [[nodiscard]] size_t output_buffers(size_t part, const sched::RingConfig& shape) const;
  [[nodiscard]] std::string stages_name() const;
  void log_graph_stats() const;
  [[nodiscard]] Result<void> load_all(const model::Checkpoint& checkpoint);
  [[nodiscard]] Result<void> make_backends();
  [[nodiscard]] Result<void> check_weights_fit() const;
  [[nodiscard]] Result<void> allocate_cache(size_t index, const sched::StageBounds& bounds);
  /// Memory of devices by name, shared by the stages on each.
  struct Shared {
    uint64_t available_bytes = 0;
    uint64_t page_bytes = 0;  // over the stages in it
  };
  [[nodiscard]] std::map<std::string, Shared> memories() const;

  const model::ModelConfig config_;
  const NodeStagesOptions options_;
  std::vector<Part> parts_;
  std::unique_ptr<sched::LocalStages> stages_;
};

}  // namespace millrace::app
