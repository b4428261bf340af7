// Mixtures of experts on one device.

#include <numeric>
#include <set>

#include "cuda/kernels.h"
#include "cuda_lt.h"
#include "cuda_ops_parts.h"

namespace millrace::bench {
namespace {

constexpr int32_t kHidden = 2048;
constexpr int32_t kIntermediate = 768;
constexpr int32_t kExperts = 128;
constexpr int32_t kPerRow = 8;
/// Sets of rows that take turns, each with experts of its own choice, so that no cache holds what few rows chose.
constexpr int kTurns = 64;
constexpr double kExpertWeights = 3.0 * kHidden * kIntermediate;

/// A layer's experts, each of different memory and equal values.
class Layer {
 public:
  explicit Layer(cudaStream_t stream) : gate_up_(gate_up_bytes() * kExperts), down_(down_bytes() * kExperts) {
    const DeviceBytes source = random_bf16(static_cast<size_t>(kHidden) * kIntermediate);
    for (size_t i = 0; i < kExperts; ++i) {
      std::byte* const gate_up = gate_up_.as<std::byte>() + i * gate_up_bytes();
      std::byte* const down = down_.as<std::byte>() + i * down_bytes();
      for (const cuda::PackAs as : {cuda::PackAs::kGate, cuda::PackAs::kUp}) {
        cuda::pack_weight(stream, source.as<>(), cuda::SourceType::kBF16, kIntermediate, kHidden, 0, as, gate_up);
      }
      cuda::pack_weight(stream, source.as<>(), cuda::SourceType::kBF16, kHidden, kIntermediate, 0, cuda::PackAs::kRows,
                        down);
    }
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");  // of the source
  }
  [[nodiscard]] cuda::DeviceExperts device() const {
    return {gate_up_.as<>(), down_.as<>(), kExperts, kPerRow, true, kHidden, kIntermediate};
  }

 private:
  static size_t gate_up_bytes() { return cuda::packed_weight_bytes(kIntermediate, kHidden, true); }
  static size_t down_bytes() { return cuda::packed_weight_bytes(kHidden, kIntermediate, false); }
  DeviceBytes gate_up_;
  DeviceBytes down_;
};

/// [turns, rows, experts]: the row's experts are drawn, each as probable as any other.
std::vector<float> random_logits(int rows, double& distinct) {
  std::minstd_rand engine(3);
  std::vector<float> logits(static_cast<size_t>(kTurns) * static_cast<size_t>(rows) * kExperts, 0.0f);
  std::vector<int32_t> order(kExperts);
  std::iota(order.begin(), order.end(), 0);
  distinct = 0.0;
  for (size_t turn = 0; turn < kTurns; ++turn) {
    std::set<int32_t> chosen;
    for (size_t row = turn * static_cast<size_t>(rows); row < (turn + 1) * static_cast<size_t>(rows); ++row) {
      std::shuffle(order.begin(), order.end(), engine);
      for (size_t i = 0; i < kPerRow; ++i) {
        logits[row * kExperts + static_cast<size_t>(order[i])] = 1.0f + 0.125f * static_cast<float>(i);
        chosen.insert(order[i]);
      }
    }
    distinct += static_cast<double>(chosen.size()) / kTurns;
  }
  return logits;
}

/// Seconds of a call with `rows` rows.
double mixture_time(cudaStream_t stream, const Layer& layer, int rows, const std::vector<float>& all_logits) {
  const auto elements = static_cast<size_t>(rows) * kHidden;
  const DeviceBytes x = random_bf16(elements);
  const DeviceBytes logits(all_logits);
  const DeviceBytes hidden(elements * sizeof(float));
  const DeviceBytes sequences(std::vector<int32_t>{1});
  const DeviceBytes row_begin(std::vector<int32_t>{0, rows});
  const cuda::DeviceBatch batch{.sequence_count = sequences.as<int32_t>(), .row_begin = row_begin.as<int32_t>()};
  const size_t bytes = cuda::mix_experts_workspace_bytes(layer.device(), rows);
  const DeviceBytes workspace(bytes);
  return seconds(stream, [&](int i) {
    const float* turn = logits.as<float>() + static_cast<size_t>(i % kTurns) * static_cast<size_t>(rows) * kExperts;
    cuda::mix_experts(stream, x.as<>(), turn, layer.device(), batch, rows, hidden.as<float>(), workspace.as<>(), bytes);
  });
}

/// Operations per second of cuBLASLt's product of many rows with a weight of a layer's gates, as one; 0 where there is
/// none.
double dense_rate(cudaStream_t stream, std::string& missing) {
  constexpr int kRows = 2048;
  constexpr int kOutputs = 8 * kIntermediate;
  const LtLibrary* lt = load_lt(missing);
  if (lt == nullptr) return 0.0;
  try {
    const DeviceBytes x = random_bf16(size_t{kRows} * kHidden);
    const DeviceBytes weight = random_bf16(size_t{kOutputs} * kHidden);
    const DeviceBytes out(size_t{kRows} * kOutputs * sizeof(float));
    LtProduct product(*lt, kRows, kHidden, kOutputs);
    const double time = seconds(stream, [&](int) { product.run(stream, x.as<>(), weight.as<>(), out.as<>()); });
    return 2.0 * kRows * kHidden * kOutputs / time;
  } catch (const std::exception& error) {
    missing = error.what();
    return 0.0;
  }
}

}  // namespace

void measure_experts(cudaStream_t stream, double copy_rate) {
  std::string missing;
  const double rate = dense_rate(stream, missing);
  fmt::print("\nexperts, one layer, {} of {} of {} x {}; a product of 2048 rows by cuBLASLt: {}\n", kPerRow, kExperts,
             kIntermediate, kHidden,
             rate > 0.0 ? fmt::format("{:.1f} TFLOP/s", rate * 1e-12) : "not measured: " + missing);
  const Layer layer(stream);
  for (const int rows : {1, 4, 16, 64, 512}) {
    double distinct = 0.0;
    const std::vector<float> logits = random_logits(rows, distinct);
    const double time = mixture_time(stream, layer, rows, logits);
    const double bytes = 2.0 * kExpertWeights * distinct;
    const double operations = 2.0 * kExpertWeights * kPerRow * rows;
    const double reading = bytes / copy_rate;
    const double multiplying = rate > 0.0 ? operations / rate : 0.0;
    fmt::print("rows {:>4}, {:5.1f} experts: {:8.1f} us {:6.0f} GB/s {:6.1f} TFLOP/s, {:.2f} of the bound ({})\n", rows,
               distinct, time * 1e6, bytes / time * 1e-9, operations / time * 1e-12,
               std::max(reading, multiplying) / time, reading >= multiplying ? "reading" : "products");
  }
}

}  // namespace millrace::bench
