#include "app/worker.h"

#include <atomic>
#include <optional>

#include "app/devices.h"
#include "app/node_stages.h"
#include "app/signals.h"
#include "async/real_runtime.h"
#include "base/log.h"
#include "cluster/member.h"
#include "cluster/node_link.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/tensor_list.h"

namespace millrace::app {
namespace {

/// Loads and holds the stages of this node, for its Member.
class Host final : public cluster::StageHost {
 public:
  Host(async::Runtime& control, const model::ModelConfig& config, const model::Checkpoint& checkpoint,
       const EngineOptions& options, const std::atomic<bool>& interrupted)
      : control_(control),
        config_(config),
        checkpoint_(checkpoint),
        threads_(options.threads),
        pin_threads_(options.pin_threads),
        device_(options.device),
        cuda_graphs_(options.cuda_graphs),
        cuda_products_(options.cuda_products),
        divide_gpu_(options.divide_gpu),
        nccl_(options.nccl),
        cpu_isa_(options.cpu_isa),
        storage_(options.storage),
        interrupted_(interrupted) {}

  Result<cluster::Loaded> load(const cluster::Assignment& assignment) override {
    if (assignment.has_store && !storage_.enabled()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "the ring keeps pages in a store: start this node with --enable-hierarchical-cache and "
                        "--hicache-storage-backend too");
    }
    if (!node_ || what_weights_follow_from(assignment) != what_weights_follow_from(*loaded_)) {
      node_.reset();
      capacity_.reset();
      auto node = load_node(assignment);
      if (node.has_error()) return node.error();
      node_ = std::move(*node);
    } else if (assignment.memory_fraction != loaded_->memory_fraction) {
      destroy();
      capacity_.reset();
    }
    loaded_ = assignment;
    // Measured once: afterwards the caches themselves take the memory.
    if (!capacity_) capacity_ = node_->page_capacity(assignment.memory_fraction);
    return cluster::Loaded{*capacity_, node_->compute(), node_->first_channels(), node_->last_channels(),
                           node_->contents()};
  }

  Result<sched::LocalStages*> stages(const cluster::Assignment& assignment, cluster::PoolSizes pages,
                                     const std::string& fingerprint) override {
    if (!node_) return make_error(ErrorCode::kInternal, "nothing is loaded");
    const Purpose purpose{what_loops_follow_from(assignment), pages, fingerprint};
    if (purpose != made_for_) destroy();
    if (!node_->made()) {
      const auto made = node_->make_stages(control_, cluster::ring_shape(assignment, config_, pages), fingerprint);
      if (made.has_error()) {
        node_.reset();  // some of its stages may be made and others not
        return made.error();
      }
      made_for_ = purpose;
    }
    return &node_->stages();
  }

  void join() {
    if (node_) node_->join();
  }

 private:
  /// What the stages have been made for.
  struct Purpose {
    cluster::Assignment assignment;
    cluster::PoolSizes pages;
    std::string fingerprint;
    friend bool operator==(const Purpose&, const Purpose&) = default;
  };

  /// What the loops around the weights are made from, which is all but the head's identity and what it has decided
  /// on already.
  static cluster::Assignment what_loops_follow_from(cluster::Assignment assignment) {
    assignment.ring_id = 0;
    assignment.memory_fraction = 0;
    return assignment;
  }
  static cluster::Assignment what_weights_follow_from(cluster::Assignment assignment) {
    assignment = what_loops_follow_from(std::move(assignment));
    assignment.stage_count = 0;
    assignment.window = 0;
    assignment.sampling_vocab = 0;
    assignment.watchdog_ns = 0;
    return assignment;
  }

  Result<std::unique_ptr<NodeStages>> load_node(const cluster::Assignment& assignment) {
    NodeStagesOptions options;
    for (const model::LayerRange& range : assignment.layers) {
      const bool last = range.end == config_.layer_count;
      options.spans.push_back({range, range.begin == 0, last});
    }
    options.first = StageId(assignment.first_stage);
    options.dtype = assignment.dtype;
    const auto device = choose_device(device_, assignment.dtype);
    if (device.has_error()) return device.error();
    options.device = *device;
    options.cuda_graphs = cuda_graphs_;
    options.cuda_products = cuda_products_;
    options.divide_gpu = divide_gpu_;
    options.nccl = nccl_;
    options.cpu_isa = assignment.cpu_isa == "auto" ? cpu_isa_ : assignment.cpu_isa;
    options.quantization = assignment.quantization;
    options.threads = threads_;
    options.pin_threads = pin_threads_;
    options.max_batch_tokens = static_cast<int32_t>(assignment.max_batch_tokens);
    options.max_running = static_cast<int32_t>(assignment.max_running);
    options.max_draft_rows = static_cast<int32_t>(assignment.max_draft_rows);
    options.page_size = static_cast<int32_t>(assignment.page_size);
    options.context_length = config_.context_length();
    if (assignment.has_store) options.storage = storage_;
    options.interrupted = &interrupted_;
    return NodeStages::load(checkpoint_, config_, options);
  }

  void destroy() {
    if (node_->made()) node_->destroy_stages();
    made_for_.reset();
  }

  async::Runtime& control_;
  const model::ModelConfig& config_;
  const model::Checkpoint& checkpoint_;
  const int32_t threads_;
  const bool pin_threads_;
  const std::string device_;
  const bool cuda_graphs_;
  const std::string cuda_products_;
  const bool divide_gpu_;
  const std::string nccl_;
  const std::string cpu_isa_;  // where the head does not say
  std::unique_ptr<NodeStages> node_;
  std::optional<cluster::Assignment> loaded_;  // set with node_
  std::optional<uint64_t> capacity_;
  const StorageOptions storage_;
  const std::atomic<bool>& interrupted_;
  std::optional<Purpose> made_for_;
};

}  // namespace

Result<void> run_worker(const ServeFlags& flags) {
  Signals signals;
  auto config = model::read_config(flags.engine.model_path);
  if (config.has_error()) return config.error();
  auto checkpoint = model::Checkpoint::open(flags.engine.model_path);
  if (checkpoint.has_error()) return checkpoint.error();
  RETURN_IF_ERROR(model::untie_separate_head(**checkpoint, *config));

  async::IoThread control("control");
  std::atomic<bool> interrupted = false;
  Host host(control.runtime(), *config, **checkpoint, flags.engine, interrupted);
  cluster::MemberOptions options;
  options.coordinator = flags.cluster.address;
  options.node_rank = static_cast<uint32_t>(flags.cluster.node_rank);
  options.node_count = static_cast<uint32_t>(flags.cluster.node_count);
  options.config = *config;
  options.transfer_timeout =
      std::chrono::duration_cast<std::chrono::milliseconds>(duration_of(flags.engine.nccl_timeout_s));
  options.timing.silence_limit = duration_of(flags.engine.ring_timeout_s);
  cluster::Member member(control.runtime(), options, host);
  async::TaskGroup tasks(control.runtime());
  asio::post(control.context(), [&] { tasks.spawn("member", member.run()); });

  log::info("{}: leaving the ring when it does not need this node any more", signal_name(signals.wait()));
  interrupted = true;
  asio::post(control.context(), [&] { tasks.spawn("drain", member.drain(flags.drain_timeout)); });
  control.join();
  host.join();
  if (const auto reason = lost_device()) return Error{ErrorCode::kUnavailable, *reason};
  log::info("stopped");
  return {};
}

}  // namespace millrace::app
