#include "cpu/packed_weight.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace millrace::cpu {
namespace {

using tensor::DType;
using tensor::HostTensor;

/// One row of a source tensor, or none where a panel ends beyond the last feature.
struct SourceRow {
  const HostTensor* tensor = nullptr;
  int64_t row = 0;
};

void check_matrix(const HostTensor& tensor, int64_t in_features) {
  CHECK(tensor.shape.rank() == 2 && tensor.shape[1] == in_features, "{}: {} cannot be stacked as [*, {}]", tensor.name,
        tensor.shape.to_string(), in_features);
}

/// Writes 64 rows as columns of a panel, a tile of the summed dimension at a time.
void pack_panel(const Device& device, std::span<const SourceRow> rows, int64_t in_features, std::byte* panel) {
  constexpr int64_t kTile = 256;  // elements; a multiple of every depth
  float values[kTile];
  const int64_t depth = device.depth();
  const bool bf16 = device.compute_dtype == DType::kBF16;
  for (int64_t first = 0; first < in_features; first += kTile) {
    const int64_t count = std::min(kTile, in_features - first);
    for (size_t column = 0; column < rows.size(); ++column) {
      if (rows[column].tensor == nullptr) continue;
      read_elements(device.kernels, *rows[column].tensor, rows[column].row * in_features + first, count, values);
      if (bf16) {
        uint16_t narrow[kTile];
        device.kernels.narrow(values, narrow, count);
        auto* out = reinterpret_cast<uint16_t*>(panel) + static_cast<size_t>(first / depth) * kPanelColumns * 2;
        for (int64_t i = 0; i < count; ++i) {
          out[static_cast<size_t>(i / 2 * kPanelColumns * 2 + i % 2) + column * 2] = narrow[i];
        }
      } else {
        auto* out = reinterpret_cast<float*>(panel) + static_cast<size_t>(first) * kPanelColumns;
        for (int64_t i = 0; i < count; ++i) out[static_cast<size_t>(i * kPanelColumns) + column] = values[i];
      }
    }
  }
}

/// Packs a weight whose panel p, column c is given by source(p, c).
template <class Source>
void pack_panels(Device& device, const CpuPackedWeight& weight, const Source& source) {
  device.pool.run_ranges(weight.panel_count(), [&](int64_t begin, int64_t end, int) {
    for (int64_t panel = begin; panel < end; ++panel) {
      SourceRow rows[kPanelColumns];
      for (int64_t column = 0; column < kPanelColumns; ++column) rows[column] = source(panel, column);
      pack_panel(device, rows, weight.in_features(), weight.panel(panel));
    }
  });
}

}  // namespace

CpuPackedWeight::CpuPackedWeight(int64_t out_features, int64_t in_features, int64_t steps, bool gate_up)
    : out_features_(out_features),
      in_features_(in_features),
      gate_up_(gate_up),
      steps_(steps),
      panel_count_(round_up(out_features, panel_features()) / panel_features()),
      // A step of a column is 4 bytes: two bf16 or one f32.
      panel_bytes_(static_cast<size_t>(steps_) * kPanelColumns * 4),
      buffer_(allocate_pages(static_cast<size_t>(panel_count_) * panel_bytes_)) {
  CHECK(out_features > 0 && in_features > 0, "a weight of [{}, {}]", out_features, in_features);
}

std::unique_ptr<CpuPackedWeight> pack_weight(Device& device, std::span<const HostTensor> parts) {
  CHECK(!parts.empty(), "no tensor to pack");
  CHECK(parts.front().shape.rank() == 2, "{}: {} is not a matrix", parts.front().name, parts.front().shape.to_string());
  const int64_t in_features = parts.front().shape[1];
  std::vector<int64_t> begin = {0};  // [parts + 1] first feature of each part
  for (const HostTensor& part : parts) {
    check_matrix(part, in_features);
    begin.push_back(begin.back() + part.shape[0]);
  }
  auto weight = std::make_unique<CpuPackedWeight>(begin.back(), in_features, device.steps(in_features), false);
  pack_panels(device, *weight, [&](int64_t panel, int64_t column) -> SourceRow {
    const int64_t feature = panel * kPanelColumns + column;
    if (feature >= begin.back()) return {};
    const auto part = static_cast<size_t>(std::upper_bound(begin.begin(), begin.end(), feature) - begin.begin() - 1);
    return {&parts[part], feature - begin[part]};
  });
  return weight;
}

std::unique_ptr<CpuPackedWeight> pack_gate_up_weight(Device& device, const HostTensor& gate, const HostTensor& up) {
  CHECK(gate.shape.rank() == 2 && gate.shape == up.shape, "{} {} and {} {} do not go together", gate.name,
        gate.shape.to_string(), up.name, up.shape.to_string());
  const int64_t features = gate.shape[0];
  auto weight = std::make_unique<CpuPackedWeight>(features, gate.shape[1], device.steps(gate.shape[1]), true);
  constexpr int64_t kHalf = kPanelColumns / 2;
  pack_panels(device, *weight, [&](int64_t panel, int64_t column) -> SourceRow {
    const int64_t feature = panel * kHalf + column % kHalf;
    if (feature >= features) return {};
    return {column < kHalf ? &gate : &up, feature};
  });
  return weight;
}

void read_elements(const Kernels& kernels, const HostTensor& tensor, int64_t first, int64_t count, float* out) {
  const std::byte* from = tensor.data + static_cast<size_t>(first) * tensor::size_of(tensor.dtype);
  switch (tensor.dtype) {
    case DType::kF32: std::memcpy(out, from, static_cast<size_t>(count) * sizeof(float)); break;
    case DType::kBF16: kernels.widen(from, out, count); break;
    case DType::kF16: kernels.widen_f16(from, out, count); break;
  }
}

}  // namespace millrace::cpu
