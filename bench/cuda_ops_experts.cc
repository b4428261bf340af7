// Mixtures of experts on one device.

#include <numeric>
#include <set>

#include "cuda/kernels.h"
#include "cuda_lt.h"
#include "cuda_ops_parts.h"

namespace millrace::bench {
namespace {

/// Alternating sets of rows, each with experts of its own, so that no cache holds the experts of few rows.
constexpr int kTurns = 64;

double expert_weights(const OpsOptions& options) {
  return 3.0 * options.expert_hidden * options.expert_intermediate;
}

/// A layer's experts: equal values, each in its own memory.
class Layer {
 public:
  Layer(cudaStream_t stream, const OpsOptions& options)
      : hidden_(options.expert_hidden),
        intermediate_(options.expert_intermediate),
        experts_(options.experts),
        per_row_(options.experts_per_row),
        by_(options.has_wgmma() ? cuda::MatrixInstruction::kWgmma : cuda::MatrixInstruction::kMma),
        gate_up_(gate_up_bytes() * static_cast<size_t>(experts_)),
        down_(down_bytes() * static_cast<size_t>(experts_)) {
    const DeviceBytes source = random_bf16(static_cast<size_t>(hidden_) * static_cast<size_t>(intermediate_));
    for (size_t i = 0; i < static_cast<size_t>(experts_); ++i) {
      std::byte* const gate_up = gate_up_.as<std::byte>() + i * gate_up_bytes();
      std::byte* const down = down_.as<std::byte>() + i * down_bytes();
      for (const cuda::PackAs as : {cuda::PackAs::kGate, cuda::PackAs::kUp}) {
        cuda::pack_weight(stream, source.as<>(), cuda::SourceType::kBF16, intermediate_, hidden_, 0, as, gate_up);
      }
      cuda::pack_weight(stream, source.as<>(), cuda::SourceType::kBF16, hidden_, intermediate_, 0, cuda::PackAs::kRows,
                        down);
    }
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");  // of the source
  }
  [[nodiscard]] cuda::DeviceExperts device() const {
    return {.gate_up = gate_up_.as<>(),
            .down = down_.as<>(),
            .count = experts_,
            .per_row = per_row_,
            .renormalize = true,
            .hidden = hidden_,
            .intermediate = intermediate_,
            .by = by_};
  }

 private:
  [[nodiscard]] size_t gate_up_bytes() const { return cuda::packed_weight_bytes(intermediate_, hidden_, true); }
  [[nodiscard]] size_t down_bytes() const { return cuda::packed_weight_bytes(hidden_, intermediate_, false); }
  const int32_t hidden_, intermediate_, experts_, per_row_;
  const cuda::MatrixInstruction by_;
  DeviceBytes gate_up_;
  DeviceBytes down_;
};

/// Returns router logits [turns, rows, experts] that choose each expert with equal probability.
std::vector<float> random_logits(const OpsOptions& options, int rows, double& distinct) {
  const auto experts = static_cast<size_t>(options.experts);
  std::minstd_rand engine(3);
  std::vector<float> logits(static_cast<size_t>(kTurns) * static_cast<size_t>(rows) * experts, 0.0f);
  std::vector<int32_t> order(experts);
  std::iota(order.begin(), order.end(), 0);
  distinct = 0.0;
  for (size_t turn = 0; turn < kTurns; ++turn) {
    std::set<int32_t> chosen;
    for (size_t row = turn * static_cast<size_t>(rows); row < (turn + 1) * static_cast<size_t>(rows); ++row) {
      std::shuffle(order.begin(), order.end(), engine);
      for (size_t i = 0; i < static_cast<size_t>(options.experts_per_row); ++i) {
        logits[row * experts + static_cast<size_t>(order[i])] = 1.0f + 0.125f * static_cast<float>(i);
        chosen.insert(order[i]);
      }
    }
    distinct += static_cast<double>(chosen.size()) / kTurns;
  }
  return logits;
}

/// Returns the seconds of a call with `rows` rows.
double mixture_time(cudaStream_t stream, const Layer& layer, int rows, const std::vector<float>& all_logits) {
  const auto elements = static_cast<size_t>(rows) * static_cast<size_t>(layer.device().hidden);
  const auto experts = static_cast<size_t>(layer.device().count);
  const DeviceBytes x = random_bf16(elements);
  const DeviceBytes logits(all_logits);
  const DeviceBytes hidden(elements * sizeof(float));
  const DeviceBytes sequences(std::vector<int32_t>{1});
  const DeviceBytes row_begin(std::vector<int32_t>{0, rows});
  const cuda::DeviceBatch batch{.sequence_count = sequences.as<int32_t>(), .row_begin = row_begin.as<int32_t>()};
  const size_t bytes = cuda::fused_moe_workspace_bytes(layer.device(), rows);
  const DeviceBytes workspace(bytes);
  return seconds(stream, [&](int i) {
    const float* turn = logits.as<float>() + static_cast<size_t>(i % kTurns) * static_cast<size_t>(rows) * experts;
    cuda::fused_moe(stream, x.as<>(), turn, layer.device(), batch, rows, hidden.as<float>(), workspace.as<>(), bytes);
  });
}

/// Returns the operations per second of cuBLASLt's GEMM of many rows with one weight of a layer's gates; 0 when
/// unavailable.
double dense_rate(cudaStream_t stream, const OpsOptions& options, std::string& missing) {
  constexpr int kRows = 2048;
  const int inputs = options.expert_hidden;
  const int outputs = 8 * options.expert_intermediate;
  const LtLibrary* lt = load_lt(missing);
  if (lt == nullptr) return 0.0;
  try {
    const DeviceBytes x = random_bf16(size_t{kRows} * static_cast<size_t>(inputs));
    const DeviceBytes weight = random_bf16(static_cast<size_t>(outputs) * static_cast<size_t>(inputs));
    const DeviceBytes out(size_t{kRows} * static_cast<size_t>(outputs) * sizeof(float));
    LtProduct product(*lt, kRows, inputs, outputs);
    const double time = seconds(stream, [&](int) { product.run(stream, x.as<>(), weight.as<>(), out.as<>()); });
    return 2.0 * kRows * inputs * outputs / time;
  } catch (const std::exception& error) {
    missing = error.what();
    return 0.0;
  }
}

}  // namespace

void measure_experts(cudaStream_t stream, const OpsOptions& options, double copy_rate) {
  std::string missing;
  const double rate = dense_rate(stream, options, missing);
  fmt::print("\nexperts, one layer, {} of {} of {} x {}; a product of 2048 rows by cuBLASLt: {}\n",
             options.experts_per_row, options.experts, options.expert_intermediate, options.expert_hidden,
             rate > 0.0 ? fmt::format("{:.1f} TFLOP/s", rate * 1e-12) : "not measured: " + missing);
  const Layer layer(stream, options);
  for (const int rows : options.expert_rows) {
    double distinct = 0.0;
    const std::vector<float> logits = random_logits(options, rows, distinct);
    const double time = mixture_time(stream, layer, rows, logits);
    const double bytes = 2.0 * expert_weights(options) * distinct;
    const double operations = 2.0 * expert_weights(options) * options.experts_per_row * rows;
    const double reading = bytes / copy_rate;
    const double multiplying = rate > 0.0 ? operations / rate : 0.0;
    fmt::print("rows {:>4}, {:5.1f} experts: {:8.1f} us {:6.0f} GB/s {:6.1f} TFLOP/s, {:.2f} of the bound ({})\n", rows,
               distinct, time * 1e6, bytes / time * 1e-9, operations / time * 1e-12,
               std::max(reading, multiplying) / time, reading >= multiplying ? "reading" : "products");
  }
}

}  // namespace millrace::bench
