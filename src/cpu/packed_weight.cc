#include "cpu/packed_weight.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "base/check.h"

namespace millrace::cpu {
namespace {

using tensor::DType;
using tensor::HostTensor;

using tensor::W8Activations;
using tensor::W8Matrix;

/// One row of a source; null where a panel ends after the last feature.
template <class Matrix>
struct SourceRow {
  const Matrix* matrix = nullptr;
  int64_t row = 0;
};

int64_t out_features(const HostTensor& tensor) {
  return tensor.shape[0];
}
int64_t in_features(const HostTensor& tensor) {
  CHECK(tensor.shape.rank() == 2, "{}: {} is not a matrix", tensor.name, tensor.shape.to_string());
  return tensor.shape[1];
}
int64_t out_features(const W8Matrix& matrix) {
  return matrix.rows;
}
int64_t in_features(const W8Matrix& matrix) {
  return matrix.cols;
}

/// Writes 64 rows as the columns of a panel, tile by tile along the summed dimension.
void pack_panel(const Device& device, std::span<const SourceRow<HostTensor>> rows, const CpuPackedWeight& weight,
                int64_t index) {
  std::byte* const panel = weight.panel(index);
  const int64_t in_features = weight.in_features();
  constexpr int64_t kTile = 256;  // elements; a multiple of every depth
  float values[kTile];
  const int64_t depth = weight.layout().depth;
  const bool bf16 = device.compute_dtype == DType::kBF16;
  for (int64_t first = 0; first < in_features; first += kTile) {
    const int64_t count = std::min(kTile, in_features - first);
    for (size_t column = 0; column < rows.size(); ++column) {
      if (rows[column].matrix == nullptr) continue;
      read_elements(device.kernels, *rows[column].matrix, rows[column].row * in_features + first, count, values);
      if (bf16) {
        uint16_t narrow[kTile];
        device.kernels.narrow(values, narrow, count);
        auto* out = reinterpret_cast<uint16_t*>(panel) + static_cast<size_t>(first / depth) * kPanelColumns * 2;
        if (device.kernels.tiles) {
          for (int64_t i = 0; i < count; ++i) {
            out[panel_tile_offset(i / 2, static_cast<int64_t>(column)) * 2 + static_cast<size_t>(i % 2)] = narrow[i];
          }
          continue;
        }
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

using W8Group = std::byte[kW8GroupElements];

/// Converts values to the storage of interleaved panels: the magnitude, with the sign in the highest bit.
void to_sign_and_magnitude(W8Group& values) {
  for (std::byte& value : values) {
    const auto number = static_cast<int8_t>(value);
    value = std::byte{static_cast<uint8_t>(number < 0 ? 0x80 | -number : number)};
  }
}

/// Converts values to an offset of 128, for kernels that want unsigned values.
void add_128(W8Group& values) {
  for (std::byte& value : values) value ^= std::byte{0x80};
}

/// The byte offsets of a group's values in an 8-bit panel, after its scales, and the conversion of values.
struct W8Layout {
  uint16_t at[kPanelColumns][kW8GroupElements] = {};
  void (*encode)(W8Group&) = [](W8Group&) {};
  float max_scale = std::numeric_limits<float>::infinity();

  template <class At>
  explicit W8Layout(const At& offset) {
    for (int column = 0; column < kPanelColumns; ++column) {
      for (int i = 0; i < kW8GroupElements; ++i) at[column][i] = static_cast<uint16_t>(offset(column, i));
    }
  }
};

W8Layout w8_layout(const Device& device, PanelFormat format) {
  if (format == PanelFormat::kW8A8) {  // the dot instruction takes unsigned values on this side
    W8Layout offsets([](int column, int i) {
      return i / kInt8Depth * kInt8Depth * kPanelColumns + column * kInt8Depth + i % kInt8Depth;
    });
    offsets.encode = add_128;
    return offsets;
  }
  if (!device.bf16_lhs()) return W8Layout([](int column, int i) { return i * kPanelColumns + column; });
  if (device.kernels.w8_interleaved) {
    W8Layout offsets([](int column, int i) { return i / 2 * 2 * kPanelColumns + w8_interleaved_byte(column, i % 2); });
    offsets.encode = to_sign_and_magnitude;
    return offsets;
  }
  W8Layout offsets(w8_tiled_byte);
  offsets.encode = add_128;
  offsets.max_scale = kMaxTiledW8Scale;
  return offsets;
}

/// Writes 64 8-bit rows with a scale each as the columns of a panel, step by step.
void pack_channels(const Device& device, std::span<const SourceRow<W8Matrix>> rows, const CpuPackedWeight& weight,
                   int64_t index) {
  constexpr uint32_t kAdd128 = 0x80808080;
  const auto in_features = static_cast<size_t>(weight.in_features());
  std::byte* const panel = weight.panel(index);
  float* const scales = weight.column_scales(index);
  for (size_t column = 0; column < rows.size(); ++column) {
    const auto& [matrix, row] = rows[column];
    if (matrix == nullptr) continue;
    scales[column] = matrix->scale(row, 0);
    const std::byte* from = matrix->values + static_cast<size_t>(row) * in_features;
    for (size_t first = 0; first < in_features; first += kInt8Depth) {
      uint32_t values = 0;
      std::memcpy(&values, from + first, std::min<size_t>(kInt8Depth, in_features - first));
      values ^= kAdd128;
      const size_t step = first / kInt8Depth;
      const size_t offset = device.kernels.tiles
                                ? panel_tile_offset(static_cast<int64_t>(step), static_cast<int64_t>(column))
                                : step * kPanelColumns + column;
      std::memcpy(panel + offset * kInt8Depth, &values, sizeof(values));
    }
  }
}

/// Writes 64 8-bit rows as the columns of a panel.
void pack_panel(const Device& device, std::span<const SourceRow<W8Matrix>> rows, const CpuPackedWeight& weight,
                int64_t index) {
  if (weight.layout().format == PanelFormat::kW8A8Channel) return pack_channels(device, rows, weight, index);
  std::byte* panel = weight.panel(index);
  const int64_t in_features = weight.in_features();
  const W8Layout offsets = w8_layout(device, weight.layout().format);
  const int64_t groups = tensor::w8_groups(in_features);
  for (int64_t group = 0; group < groups; ++group, panel += kW8GroupBytes) {
    const int64_t first = group * kW8GroupElements;
    const auto count = static_cast<size_t>(std::min<int64_t>(kW8GroupElements, in_features - first));
    for (size_t column = 0; column < rows.size(); ++column) {
      const auto& [matrix, row] = rows[column];
      if (matrix == nullptr) continue;
      tensor::BFloat16 scale;
      std::memcpy(&scale.bits, matrix->scales + (row * groups + group) * 2, 2);
      if (scale.to_float() > offsets.max_scale) {
        throw std::runtime_error(fmt::format("{}: an 8-bit scale is {:.3g}, wanted at most {:.3g} with AMX",
                                             matrix->name, scale.to_float(), offsets.max_scale));
      }
      std::memcpy(panel + column * 2, &scale.bits, 2);
      const std::byte* values = matrix->values + row * in_features + first;
      if (std::find(values, values + count, std::byte{0x80}) != values + count) {
        throw std::runtime_error(fmt::format("{}: a weight is -128, wanted -127 to 127", matrix->name));
      }
      W8Group group_values = {};
      std::copy_n(values, count, group_values);
      offsets.encode(group_values);
      std::byte* const out = panel + kW8ScaleBytes;
      for (size_t i = 0; i < kW8GroupElements; ++i) out[offsets.at[column][i]] = group_values[i];
    }
  }
}

/// Packs a weight. source(p, c) gives the row for column c of panel p.
template <class Matrix, class Source>
void pack_panels(Device& device, const CpuPackedWeight& weight, const Source& source) {
  device.pool.run_ranges(weight.panel_count(), [&](int64_t begin, int64_t end, int) {
    for (int64_t panel = begin; panel < end; ++panel) {
      SourceRow<Matrix> rows[kPanelColumns];
      for (int64_t column = 0; column < kPanelColumns; ++column) rows[column] = source(panel, column);
      pack_panel(device, rows, weight, panel);
    }
  });
}

using LayoutFn = PanelLayout(const Device& device, int64_t in_features, bool gate_up);

/// Returns the layout for parts that are packed together.
LayoutFn& layout_for(std::span<const W8Matrix> parts, W8Activations inputs) {
  CHECK(!parts.empty(), "no matrix to pack");
  const bool per_channel_scales = parts.front().per_channel_scales;
  for (const W8Matrix& part : parts) {
    CHECK(part.per_channel_scales == per_channel_scales, "{} has other scales than {}", part.name, parts.front().name);
    if (per_channel_scales && part.cols > kMaxChannelElements) {
      throw std::runtime_error(fmt::format("{}: has {} inputs with one scale per channel, wanted at most {}", part.name,
                                           part.cols, kMaxChannelElements));
    }
  }
  CHECK(!per_channel_scales || inputs == W8Activations::kInt8, "{} has scales for rounded inputs", parts.front().name);
  if (per_channel_scales) return w8a8_channel_panel_layout;
  return inputs == W8Activations::kInt8 ? w8a8_panel_layout : w8_panel_layout;
}

template <class Matrix>
std::unique_ptr<CpuPackedWeight> pack_stack(Device& device, std::span<const Matrix> parts, LayoutFn& layout) {
  CHECK(!parts.empty(), "no tensor to pack");
  const int64_t in = in_features(parts.front());
  std::vector<int64_t> begin = {0};  // [parts + 1] first feature of each part
  for (const Matrix& part : parts) {
    CHECK(in_features(part) == in, "{}: [{}, {}] cannot be stacked as [*, {}]", part.name, out_features(part),
          in_features(part), in);
    begin.push_back(begin.back() + out_features(part));
  }
  auto weight = std::make_unique<CpuPackedWeight>(begin.back(), in, layout(device, in, false));
  pack_panels<Matrix>(device, *weight, [&](int64_t panel, int64_t column) -> SourceRow<Matrix> {
    const int64_t feature = panel * kPanelColumns + column;
    if (feature >= begin.back()) return {};
    const auto part = static_cast<size_t>(std::upper_bound(begin.begin(), begin.end(), feature) - begin.begin() - 1);
    return {&parts[part], feature - begin[part]};
  });
  return weight;
}

template <class Matrix>
std::unique_ptr<CpuPackedWeight> pack_pair(Device& device, const Matrix& gate, const Matrix& up, LayoutFn& layout) {
  const int64_t in = in_features(gate);
  const int64_t features = out_features(gate);
  CHECK(in_features(up) == in && out_features(up) == features, "{} [{}, {}] and {} [{}, {}] do not go together",
        gate.name, features, in, up.name, out_features(up), in_features(up));
  auto weight = std::make_unique<CpuPackedWeight>(features, in, layout(device, in, true));
  constexpr int64_t kHalf = kPanelColumns / 2;
  pack_panels<Matrix>(device, *weight, [&](int64_t panel, int64_t column) -> SourceRow<Matrix> {
    const int64_t feature = panel * kHalf + column % kHalf;
    if (feature >= features) return {};
    return {column < kHalf ? &gate : &up, feature};
  });
  return weight;
}

}  // namespace

PanelLayout panel_layout(const Device& device, int64_t in_features, bool gate_up) {
  const int64_t steps = device.steps(in_features);
  // A step of a column is 4 bytes: two bf16 or one f32.
  return {.steps = steps,
          .depth = device.depth(),
          .step_bytes = size_t{kPanelColumns} * 4,
          .bytes = static_cast<size_t>(steps) * kPanelColumns * 4,
          .gate_up = gate_up};
}

PanelLayout w8_panel_layout(const Device& device, int64_t in_features, bool gate_up) {
  const int64_t depth = device.bf16_lhs() ? 2 : 1;
  const int64_t groups = tensor::w8_groups(in_features);
  static_assert(tensor::kW8Group == kW8GroupElements);
  CHECK(depth == 1 || kW8GroupElements / 2 % device.kernels.step_multiple == 0, "a group is not whole tiles");
  return {.steps = groups * kW8GroupElements / depth,
          .depth = depth,
          .step_bytes = static_cast<size_t>(kW8GroupBytes / (kW8GroupElements / depth)),
          .bytes = static_cast<size_t>(groups) * kW8GroupBytes,
          .format = PanelFormat::kW8,
          .gate_up = gate_up};
}

PanelLayout w8a8_panel_layout(const Device&, int64_t in_features, bool gate_up) {
  const int64_t groups = tensor::w8_groups(in_features);
  return {.steps = groups * kW8GroupElements / kInt8Depth,
          .depth = kInt8Depth,
          .step_bytes = kW8GroupBytes / (kW8GroupElements / kInt8Depth),
          .bytes = static_cast<size_t>(groups) * kW8GroupBytes,
          .format = PanelFormat::kW8A8,
          .gate_up = gate_up};
}

PanelLayout w8a8_channel_panel_layout(const Device&, int64_t in_features, bool gate_up) {
  const int64_t steps = round_up(in_features, kChannelRunSteps * kInt8Depth) / kInt8Depth;
  return {.steps = steps,
          .depth = kInt8Depth,
          .step_bytes = kChannelStepBytes,
          .bytes = static_cast<size_t>(steps) * kChannelStepBytes,
          .format = PanelFormat::kW8A8Channel,
          .gate_up = gate_up};
}

/// Returns the bytes of some panels, including the scales of channel panels.
size_t bytes_of(const PanelLayout& layout, int64_t panels) {
  const size_t scales = layout.format == PanelFormat::kW8A8Channel ? kPanelColumns * sizeof(float) : 0;
  return static_cast<size_t>(panels) * (layout.bytes + scales);
}

CpuPackedWeight::CpuPackedWeight(int64_t out_features, int64_t in_features, const PanelLayout& layout)
    : out_features_(out_features),
      in_features_(in_features),
      layout_(layout),
      panel_count_(round_up(out_features, panel_features()) / panel_features()),
      buffer_(allocate_pages(bytes_of(layout, panel_count_))) {
  CHECK(out_features > 0 && in_features > 0, "a weight of [{}, {}]", out_features, in_features);
}

std::unique_ptr<CpuPackedWeight> pack_weight(Device& device, std::span<const HostTensor> parts) {
  return pack_stack(device, parts, panel_layout);
}

std::unique_ptr<CpuPackedWeight> pack_gate_up_weight(Device& device, const HostTensor& gate, const HostTensor& up) {
  return pack_pair(device, gate, up, panel_layout);
}

std::unique_ptr<CpuPackedWeight> pack_w8_weight(Device& device, std::span<const W8Matrix> parts, W8Activations inputs) {
  return pack_stack(device, parts, layout_for(parts, inputs));
}

std::unique_ptr<CpuPackedWeight> pack_gate_up_w8_weight(Device& device, const W8Matrix& gate, const W8Matrix& up,
                                                        W8Activations inputs) {
  const W8Matrix pair[] = {gate, up};
  return pack_pair(device, gate, up, layout_for(pair, inputs));
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
