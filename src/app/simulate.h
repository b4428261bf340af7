#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "base/result.h"
#include "model/quantization.h"
#include "sched/scheduler/chunking.h"
#include "sched/scheduler/queue_policy.h"
#include "sim/service_goal.h"
#include "sim/workload.h"
#include "tensor/kv_dtype.h"

namespace CLI {
class App;
}

namespace millrace::app {

/// What the plot of a sweep has on its horizontal axis.
enum class PlotAxis : uint8_t { kPp, kChunk, kSmoothing };

inline constexpr EnumName<PlotAxis> kPlotAxisNames[] = {
    {PlotAxis::kPp, "pp"},
    {PlotAxis::kChunk, "chunk"},
    {PlotAxis::kSmoothing, "smoothing"},
};
constexpr std::span<const EnumName<PlotAxis>> enum_names(PlotAxis) {
  return kPlotAxisNames;
}

/// The flags of `millrace simulate`. Lists make a sweep over every combination. simulate() fills the empty ones with
/// the default value, or for a `sweep` with values that are worth comparing.
struct SimulateFlags {
  std::filesystem::path cluster;
  bool sweep = false;
  std::vector<int32_t> pp_sizes;
  std::vector<int32_t> tp_sizes;
  std::vector<sched::Chunking> chunkings;
  std::vector<uint32_t> chunk_sizes;
  std::vector<double> smoothings;
  std::vector<int32_t> async_batch_depths{0};
  sched::QueuePolicy policy = sched::QueuePolicy::kFcfs;
  bool plain_batch_queue = false;    ///< decode is not spread over the window
  std::filesystem::path model_path;  ///< what this model needs is reported, in place of a workload; empty: none
  model::Quantization quantization = model::Quantization::kNone;  ///< of that model, as the next ones
  tensor::KvDType kv_dtype = tensor::KvDType::kAuto;
  int32_t context_length = 0;  ///< tokens of the sequences; 0: the model's
  std::vector<uint32_t> sequences{1, 8, 64};
  double memory_fraction = 0.9;  ///< of what weights leave, for the KV cache
  uint32_t page_size = 64;
  sim::WorkloadOptions workload;
  std::filesystem::path requests;  ///< a result file of bench/load that replaces `workload`; empty: none
  double client_latency_ms = 1;    ///< with a limit of concurrency; see Workload::client_latency_s
  sim::ServiceGoal goal;
  std::filesystem::path result_file;  ///< the table as JSON; empty: none
  std::filesystem::path plot;         ///< empty: none
  std::filesystem::path trace;        ///< the last combination for Perfetto; empty: none
  PlotAxis plot_x = PlotAxis::kPp;
};

/// Declares the flags on the subcommand.
void add_simulate_flags(CLI::App& command, SimulateFlags& flags);

/// Runs the sweep and prints a table; writes the plot and the trace that were asked for. With a model, reports what it
/// needs instead. Errors name the file or flag.
[[nodiscard]] Result<void> simulate(const SimulateFlags& flags);

}  // namespace millrace::app
