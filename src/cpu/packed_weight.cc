#include "cpu/packed_weight.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "base/check.h"
#include "cpu/code_panel_layout.h"
#include "cpu/code_panels.h"
#include "cpu/fp8_panels.h"
#include "cpu/source_row.h"

namespace millrace::cpu {
namespace {

using tensor::CodeMatrix;
using tensor::DType;
using tensor::Fp8Matrix;
using tensor::HostTensor;
using tensor::W8Activations;
using tensor::W8Matrix;

int64_t out_features(const HostTensor& tensor) {
  return tensor.shape[0];
}
int64_t in_features(const HostTensor& tensor) {
  CHECK(tensor.shape.rank() == 2, "{}: {} is not a matrix", tensor.name, tensor.shape.to_string());
  return tensor.shape[1];
}
template <class Matrix>
int64_t out_features(const Matrix& matrix) {
  return matrix.rows;
}
template <class Matrix>
int64_t in_features(const Matrix& matrix) {
  return matrix.cols;
}

/// Writes 64 rows as the columns of a panel, tile by tile along the summed dimension.
void pack_panel(const Device& device, std::span<const SourceRow<HostTensor>> rows, const CpuPackedWeight& weight,
                int64_t index) {
  std::byte* const panel = weight.panel(index);
  const PanelLayout& layout = weight.layout();
  constexpr int64_t kTile = 256;  // elements
  float values[kTile];
  const auto write_column = [&](int64_t column, int64_t at, int64_t count) {
    if (device.compute_dtype != DType::kBF16 || layout.format == PanelFormat::kF32) {
      auto* out = reinterpret_cast<float*>(panel) + at * kPanelColumns + column;
      for (int64_t i = 0; i < count; ++i) out[i * kPanelColumns] = values[i];
      return;
    }
    uint16_t narrow[kTile];
    device.kernels.narrow(values, narrow, count);
    auto* out = reinterpret_cast<uint16_t*>(panel);
    if (device.kernels.tiles) {
      for (int64_t i = 0; i < count; ++i)
        out[panel_tile_offset((at + i) / 2, column) * 2 + static_cast<size_t>((at + i) % 2)] = narrow[i];
      return;
    }
    for (int64_t i = 0; i < count; ++i) out[(at + i) / 2 * kPanelColumns * 2 + column * 2 + (at + i) % 2] = narrow[i];
  };
  for (const PanelShard& shard : layout.shards) {
    for (int64_t first = 0; first < shard.inputs; first += kTile) {
      const int64_t count = std::min(kTile, shard.inputs - first);
      for (size_t column = 0; column < rows.size(); ++column) {
        const auto& [matrix, row] = rows[column];
        if (matrix == nullptr) continue;
        read_elements(device.kernels, *matrix, row * weight.in_features() + shard.first_input + first, count, values);
        write_column(static_cast<int64_t>(column), shard.first_step * layout.depth + shard.skew + first, count);
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
  std::byte* const panel = weight.panel(index);
  float* const scales = weight.column_scales(index);
  for (size_t column = 0; column < rows.size(); ++column) {
    const auto& [matrix, row] = rows[column];
    if (matrix == nullptr) continue;
    scales[column] = matrix->scale(row, 0);
    for (const PanelShard& shard : weight.layout().shards) {
      const std::byte* from = matrix->values + row * weight.in_features() + shard.first_input;
      for (int64_t first = 0; first < shard.inputs; first += kInt8Depth) {
        uint32_t values = 0;
        std::memcpy(&values, from + first, static_cast<size_t>(std::min<int64_t>(kInt8Depth, shard.inputs - first)));
        values ^= kAdd128;
        const int64_t step = shard.first_step + first / kInt8Depth;
        const size_t offset = device.kernels.tiles ? panel_tile_offset(step, static_cast<int64_t>(column))
                                                   : static_cast<size_t>(step) * kPanelColumns + column;
        std::memcpy(panel + offset * kInt8Depth, &values, sizeof(values));
      }
    }
  }
}

/// The part of a stored group of 32 weights that a shard sums.
struct W8GroupPart {
  int64_t group = 0;  // in the stored row
  int64_t begin = 0;  // within the group
  int64_t end = 0;
};

/// Writes a part of a group of one 8-bit row to a column of a packed group.
void pack_w8_group(const W8Layout& offsets, const SourceRow<W8Matrix>& source, const W8GroupPart& part,
                   std::byte* packed, size_t column) {
  const auto& [matrix, row] = source;
  tensor::BFloat16 scale;
  std::memcpy(&scale.bits, matrix->scales + (row * matrix->groups() + part.group) * 2, 2);
  if (scale.to_float() > offsets.max_scale) {
    throw std::runtime_error(fmt::format("{}: an 8-bit scale is {:.3g}, wanted at most {:.3g} with AMX", matrix->name,
                                         scale.to_float(), offsets.max_scale));
  }
  std::memcpy(packed + column * 2, &scale.bits, 2);
  const std::byte* values = matrix->values + row * matrix->cols + part.group * kW8GroupElements;
  if (std::find(values + part.begin, values + part.end, std::byte{0x80}) != values + part.end) {
    throw std::runtime_error(fmt::format("{}: a weight is -128, wanted -127 to 127", matrix->name));
  }
  W8Group group_values = {};
  std::copy(values + part.begin, values + part.end, group_values + part.begin);
  offsets.encode(group_values);
  std::byte* const out = packed + kW8ScaleBytes;
  for (size_t i = 0; i < kW8GroupElements; ++i) out[offsets.at[column][i]] = group_values[i];
}

/// Writes 64 8-bit rows as the columns of a panel.
void pack_panel(const Device& device, std::span<const SourceRow<W8Matrix>> rows, const CpuPackedWeight& weight,
                int64_t index) {
  const PanelLayout& layout = weight.layout();
  if (layout.format == PanelFormat::kW8A8Channel) return pack_channels(device, rows, weight, index);
  const W8Layout offsets = w8_layout(device, layout.format);
  for (const PanelShard& shard : layout.shards) {
    const int64_t first_group = (shard.first_input - shard.skew) / kW8GroupElements;
    for (int64_t group = 0; group < shard.steps * layout.depth / kW8GroupElements; ++group) {
      const int64_t first = (first_group + group) * kW8GroupElements;
      const W8GroupPart part{.group = first_group + group,
                             .begin = std::max<int64_t>(shard.first_input - first, 0),
                             .end = std::min<int64_t>(shard.first_input + shard.inputs - first, kW8GroupElements)};
      std::byte* const packed = weight.panel(index, shard.first_step) + group * kW8GroupBytes;
      for (size_t column = 0; column < rows.size(); ++column) {
        if (rows[column].matrix != nullptr) pack_w8_group(offsets, rows[column], part, packed, column);
      }
    }
  }
}

void pack_panel(const Device& device, std::span<const SourceRow<CodeMatrix>> rows, const CpuPackedWeight& weight,
                int64_t index) {
  pack_code_panel(rows, device.kernels.signed_codes, weight, index);
}

void pack_panel(const Device&, std::span<const SourceRow<Fp8Matrix>> rows, const CpuPackedWeight& weight,
                int64_t index) {
  pack_fp8_panel(rows, weight, index);
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

using LayoutFn = PanelLayout(const Device& device, std::vector<PanelShard> shards, bool gate_up);

/// Checks that the integer sums over `inputs` cannot overflow.
void check_channel_inputs(std::string_view name, int64_t inputs) {
  if (inputs > kMaxChannelElements)
    throw std::runtime_error(fmt::format("{}: has {} inputs with one scale per channel, wanted at most {}", name,
                                         inputs, kMaxChannelElements));
}

/// Returns the layout for parts that are packed together.
LayoutFn& layout_for(std::span<const W8Matrix> parts, W8Activations inputs) {
  CHECK(!parts.empty(), "no matrix to pack");
  const bool per_channel_scales = parts.front().per_channel_scales;
  for (const W8Matrix& part : parts) {
    CHECK(part.per_channel_scales == per_channel_scales, "{} has other scales than {}", part.name, parts.front().name);
    if (per_channel_scales) check_channel_inputs(part.name, part.cols);
  }
  CHECK(!per_channel_scales || inputs == W8Activations::kInt8, "{} has scales for rounded inputs", parts.front().name);
  if (per_channel_scales) return w8a8_channel_panel_layout;
  return inputs == W8Activations::kInt8 ? w8a8_panel_layout : w8_panel_layout;
}

template <class Matrix>
void check_columns(const Matrix& part, const tensor::SumShards& shards) {
  CHECK(in_features(part) == shards.owned().size(), "{} has {} columns for shards of {}", part.name, in_features(part),
        shards.owned().size());
}

/// Stacks parts. `layout(device, shards, gate_up)` returns the layout.
template <class Matrix, class Layout>
std::unique_ptr<CpuPackedWeight> pack_stack(Device& device, std::span<const Matrix> parts, const Layout& layout,
                                            const tensor::SumShards* shards = nullptr) {
  CHECK(!parts.empty(), "no tensor to pack");
  const int64_t in = in_features(parts.front());
  std::vector<int64_t> begin = {0};  // [parts + 1] first feature of each part
  for (const Matrix& part : parts) {
    CHECK(in_features(part) == in, "{}: [{}, {}] cannot be stacked as [*, {}]", part.name, out_features(part),
          in_features(part), in);
    begin.push_back(begin.back() + out_features(part));
  }
  auto weight = std::make_unique<CpuPackedWeight>(
      begin.back(), in, layout(device, shards ? panel_shards(*shards) : whole_panel_shard(in), false));
  pack_panels<Matrix>(device, *weight, [&](int64_t panel, int64_t column) -> SourceRow<Matrix> {
    const int64_t feature = panel * kPanelColumns + column;
    if (feature >= begin.back()) return {};
    const auto part = static_cast<size_t>(std::upper_bound(begin.begin(), begin.end(), feature) - begin.begin() - 1);
    return {&parts[part], feature - begin[part]};
  });
  return weight;
}

template <class Matrix, class Layout>
std::unique_ptr<CpuPackedWeight> pack_pair(Device& device, const Matrix& gate, const Matrix& up, const Layout& layout) {
  const int64_t in = in_features(gate);
  const int64_t features = out_features(gate);
  CHECK(in_features(up) == in && out_features(up) == features, "{} [{}, {}] and {} [{}, {}] do not go together",
        gate.name, features, in, up.name, out_features(up), in_features(up));
  auto weight = std::make_unique<CpuPackedWeight>(features, in, layout(device, whole_panel_shard(in), true));
  constexpr int64_t kHalf = kPanelColumns / 2;
  pack_panels<Matrix>(device, *weight, [&](int64_t panel, int64_t column) -> SourceRow<Matrix> {
    const int64_t feature = panel * kHalf + column % kHalf;
    if (feature >= features) return {};
    return {column < kHalf ? &gate : &up, feature};
  });
  return weight;
}

/// Returns a layout of 8-bit groups for LHS rows of `depth` elements per step.
PanelLayout group_layout(int64_t depth, PanelFormat format, std::vector<PanelShard> shards, bool gate_up) {
  static_assert(tensor::kW8Group == kW8GroupElements);
  PanelLayout layout{.depth = depth, .format = format, .gate_up = gate_up, .shards = {}};
  assign_steps(layout, std::move(shards), kW8GroupElements, kW8GroupElements);
  layout.step_bytes = static_cast<size_t>(kW8GroupBytes / (kW8GroupElements / depth));
  layout.bytes = static_cast<size_t>(layout.padded_inputs() / kW8GroupElements) * kW8GroupBytes;
  return layout;
}

/// Returns the layout of 4-bit parts as a function of the shards.
auto layout_for_codes(std::span<const CodeMatrix> parts) {
  return [parts](const Device&, std::vector<PanelShard> shards, bool gate_up) {
    return code_panel_layout(parts, std::move(shards), gate_up);
  };
}

/// Returns the layout of parts in E4M3 as a function of the shards, of which `sum` has those of all ranks.
auto layout_for_fp8(std::span<const Fp8Matrix> parts, const tensor::SumShards* sum = nullptr) {
  return [parts, sum](const Device& device, std::vector<PanelShard> shards, bool gate_up) {
    return fp8_panel_layout(device, parts, sum, std::move(shards), gate_up);
  };
}

}  // namespace

void assign_steps(PanelLayout& layout, std::vector<PanelShard> shards, int64_t unit, int64_t last_unit) {
  for (PanelShard& shard : shards) {
    shard.first_step = layout.steps;
    const int64_t multiple = &shard == &shards.back() ? last_unit : unit;
    if (shard.inputs > 0) shard.steps = round_up(shard.skew + shard.inputs, multiple) / layout.depth;
    layout.steps += shard.steps;
  }
  layout.shards = std::move(shards);
}

std::vector<PanelShard> panel_shards(const tensor::SumShards& shards) {
  std::vector<PanelShard> parts;
  const int64_t begin = shards.owned().begin;
  for (int32_t i = 0; i < shards.position.shard_count(); ++i) {
    const tensor::TermRange inputs = shards.shard(shards.position.first_shard() + i);
    parts.push_back({.first_input = inputs.begin - begin,
                     .inputs = inputs.size(),
                     .skew = inputs.size() > 0 ? inputs.begin % kW8GroupElements : 0});
  }
  return parts;
}

std::vector<PanelShard> whole_panel_shard(int64_t in_features) {
  return {{.inputs = in_features}};
}

bool PanelLayout::is_contiguous() const {
  return std::ranges::all_of(shards, [this](const PanelShard& shard) {
    return shard.inputs == 0 || (shard.skew == 0 && shard.first_step * depth == shard.first_input);
  });
}

PanelLayout panel_layout(const Device& device, std::vector<PanelShard> shards, bool gate_up) {
  PanelLayout layout{.depth = device.depth(), .gate_up = gate_up, .shards = {}};
  const int64_t unit = layout.depth * device.step_multiple();
  CHECK(kW8GroupElements % unit == 0, "a group is not whole tiles");
  assign_steps(layout, std::move(shards), kW8GroupElements, unit);
  // A step of a column is 4 bytes: two bf16 or one f32.
  layout.step_bytes = size_t{kPanelColumns} * 4;
  layout.bytes = static_cast<size_t>(layout.steps) * layout.step_bytes;
  return layout;
}

PanelLayout f32_panel_layout(const Device& device, std::vector<PanelShard> shards, bool gate_up) {
  if (device.compute_dtype == DType::kF32) return panel_layout(device, std::move(shards), gate_up);
  PanelLayout layout{.format = PanelFormat::kF32, .gate_up = gate_up, .shards = {}};
  assign_steps(layout, std::move(shards), kW8GroupElements, 1);
  layout.step_bytes = size_t{kPanelColumns} * sizeof(float);
  layout.bytes = static_cast<size_t>(layout.steps) * layout.step_bytes;
  return layout;
}

PanelLayout w8_panel_layout(const Device& device, std::vector<PanelShard> shards, bool gate_up) {
  return group_layout(device.bf16_lhs() ? 2 : 1, PanelFormat::kW8, std::move(shards), gate_up);
}

PanelLayout w8a8_panel_layout(const Device&, std::vector<PanelShard> shards, bool gate_up) {
  return group_layout(kInt8Depth, PanelFormat::kW8A8, std::move(shards), gate_up);
}

PanelLayout w8a8_channel_panel_layout(const Device&, std::vector<PanelShard> shards, bool gate_up) {
  PanelLayout layout{.depth = kInt8Depth,
                     .step_bytes = kChannelStepBytes,
                     .format = PanelFormat::kW8A8Channel,
                     .gate_up = gate_up,
                     .shards = {}};
  for (PanelShard& shard : shards) shard.skew = 0;  // there are no groups
  constexpr int64_t kUnit = int64_t{kChannelRunSteps} * kInt8Depth;
  assign_steps(layout, std::move(shards), kUnit, kUnit);
  layout.bytes = static_cast<size_t>(layout.steps) * kChannelStepBytes;
  return layout;
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
      buffer_(allocate_packed(bytes_of(layout, panel_count_))) {
  CHECK(out_features > 0 && in_features > 0, "a weight of [{}, {}]", out_features, in_features);
}

void CpuPackedWeight::set_rest(std::unique_ptr<CpuPackedWeight> rest) {
  const PanelLayout& other = rest->layout();
  CHECK(rest->in_features() == in_features_ && other.format == layout_.format && other.shards.size() == 1 &&
            layout_.shards.size() == 1 && other.steps == layout_.steps && !gate_up() && !rest->gate_up(),
        "weights of {} and {} inputs do not share an operand", in_features_, rest->in_features());
  rest_ = std::move(rest);
}

std::unique_ptr<CpuPackedWeight> pack_weight(Device& device, std::span<const HostTensor> parts) {
  return pack_stack(device, parts, panel_layout);
}

std::unique_ptr<CpuPackedWeight> pack_gate_up_weight(Device& device, const HostTensor& gate, const HostTensor& up) {
  return pack_pair(device, gate, up, panel_layout);
}

std::unique_ptr<CpuPackedWeight> pack_f32_weight(Device& device, const HostTensor& weight) {
  return pack_stack(device, std::span(&weight, 1), f32_panel_layout);
}

std::unique_ptr<CpuPackedWeight> pack_w8_weight(Device& device, std::span<const W8Matrix> parts, W8Activations inputs) {
  return pack_stack(device, parts, layout_for(parts, inputs));
}

std::unique_ptr<CpuPackedWeight> pack_gate_up_w8_weight(Device& device, const W8Matrix& gate, const W8Matrix& up,
                                                        W8Activations inputs) {
  const W8Matrix pair[] = {gate, up};
  return pack_pair(device, gate, up, layout_for(pair, inputs));
}

std::unique_ptr<CpuPackedWeight> pack_fp8_weight(Device& device, std::span<const Fp8Matrix> parts) {
  return pack_stack(device, parts, layout_for_fp8(parts));
}

std::unique_ptr<CpuPackedWeight> pack_gate_up_fp8_weight(Device& device, const Fp8Matrix& gate, const Fp8Matrix& up) {
  const Fp8Matrix pair[] = {gate, up};
  return pack_pair(device, gate, up, layout_for_fp8(pair));
}

std::unique_ptr<CpuPackedWeight> pack_sharded_fp8_weight(Device& device, const Fp8Matrix& part,
                                                         const tensor::SumShards& shards) {
  check_columns(part, shards);
  return pack_stack(device, std::span(&part, 1), layout_for_fp8({&part, 1}, &shards), &shards);
}

std::unique_ptr<CpuPackedWeight> pack_code_weight(Device& device, std::span<const CodeMatrix> parts) {
  CHECK(!parts.empty(), "no matrix to pack");
  size_t count = 1;
  while (count < parts.size() && share_code_panels(parts[count], parts.front())) ++count;
  const std::span<const CodeMatrix> first = parts.first(count);
  auto weight = pack_stack(device, first, layout_for_codes(first));
  if (count < parts.size()) weight->set_rest(pack_code_weight(device, parts.subspan(count)));
  return weight;
}

std::unique_ptr<CpuPackedWeight> pack_gate_up_code_weight(Device& device, const CodeMatrix& gate,
                                                          const CodeMatrix& up) {
  const CodeMatrix pair[] = {gate, up};
  return pack_pair(device, gate, up, layout_for_codes(pair));
}

std::unique_ptr<CpuPackedWeight> pack_sharded_code_weight(Device& device, const CodeMatrix& part,
                                                          const tensor::SumShards& shards) {
  check_columns(part, shards);
  CHECK(shards.owned().begin % tensor::kCodeUnit == 0, "{} begins inside a unit, at column {}", part.name,
        shards.owned().begin);
  return pack_stack(device, std::span(&part, 1), layout_for_codes({&part, 1}), &shards);
}

std::unique_ptr<CpuPackedWeight> pack_sharded_weight(Device& device, const HostTensor& part,
                                                     const tensor::SumShards& shards) {
  check_columns(part, shards);
  return pack_stack(device, std::span(&part, 1), panel_layout, &shards);
}

std::unique_ptr<CpuPackedWeight> pack_sharded_w8_weight(Device& device, const W8Matrix& part, W8Activations inputs,
                                                        const tensor::SumShards& shards) {
  check_columns(part, shards);
  CHECK(part.per_channel_scales || shards.owned().begin % kW8GroupElements == 0,
        "{} begins inside a group, at column {}", part.name, shards.owned().begin);
  if (part.per_channel_scales) check_channel_inputs(part.name, shards.border.back());
  // Integer sums are exact in any order: one shard has all inputs of the rank.
  return pack_stack(device, std::span(&part, 1), layout_for({&part, 1}, inputs),
                    part.per_channel_scales ? nullptr : &shards);
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
