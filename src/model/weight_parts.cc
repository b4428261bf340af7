#include "model/weight_parts.h"

#include <algorithm>

#include "base/check.h"
#include "weights/fp8_weight.h"

namespace millrace::model {

using tensor::HostTensor;
using tensor::TermRange;
using tensor::W8Matrix;

namespace {

/// Returns the rows of the stored tensor from the first to the last of those that `own` names.
TermRange stored_rows(const TensorSpec& spec, TermRange own) {
  if (!spec.part || own.size() == 0) return own;
  return {spec.part->stored_row(own.begin), spec.part->stored_row(own.end - 1) + 1};
}

/// Returns one matrix of a tensor with three dimensions; other tensors as they are.
HostTensor plane_of(const HostTensor& tensor, const TensorSpec& spec) {
  if (tensor.shape.rank() != 3) return tensor;
  HostTensor matrix = tensor;
  if (spec.part->joined) {
    matrix.shape = {tensor.shape[0], tensor.shape[1] * tensor.shape[2]};
    return matrix;
  }
  matrix.shape = {tensor.shape[1], tensor.shape[2]};
  matrix.data += static_cast<size_t>(spec.part->plane) * matrix.bytes();
  return matrix;
}

/// Returns the elements of a vector, or the rows of a matrix, in place.
HostTensor rows_in_place(const HostTensor& tensor, TermRange range) {
  if (tensor.shape.rank() == 2) return tensor::row_slice(tensor, range);
  HostTensor elements = tensor;
  elements.shape = {range.size()};
  elements.data += static_cast<size_t>(range.begin) * tensor::size_of(tensor.dtype);
  return elements;
}

/// Returns whether the rows of a part are stored one after the other.
bool is_in_order(const WeightPart& part) {
  return part.order.empty() && !(part.spec->part && part.spec->part->transposed);
}

/// Returns whether a part is stored in E4M3 with its rows in order.
bool stays_fp8(const WeightPart& part) {
  return part.stored && is_in_order(part) && weights::is_fp8(*part.stored);
}

/// Returns the columns of a part in 8 bits.
W8Matrix columns_of(const WeightPart& part, const W8Matrix& matrix, PackingMemory& memory) {
  if (!part.columns) return matrix;
  return memory.w8_slices.emplace_back(tensor::column_slice(matrix, *part.columns)).matrix;
}

}  // namespace

WeightParts::WeightParts(const Checkpoint& checkpoint, const ModelConfig& config, const RankLayout& layout,
                         const ConversionOptions& options)
    : checkpoint_(checkpoint), config_(config), layout_(layout), options_(options) {}

Result<void> WeightParts::resolve(std::vector<TensorSpec> specs) {
  specs_ = std::move(specs);
  std::vector<std::string> names;
  for (const TensorSpec& spec : specs_) {
    const bool is_new = names.empty() || names.back() != spec.stored_name();
    if (!is_owned(spec) || !is_new) continue;
    if (spec.part && !spec.part->scales.empty()) names.push_back(spec.part->scales);
    names.push_back(spec.stored_name());
  }
  RETURN_IF_ERROR(checkpoint_.prepare(names));
  for (const TensorSpec& spec : specs_) {
    if (!is_owned(spec)) continue;
    Result<WeightPart> part = find(spec);
    if (!part) return part.error();
    parts_.emplace(spec.name, std::move(*part));
  }
  return {};
}

bool WeightParts::is_owned(const TensorSpec& spec) const {
  return layout_.owns_expert(spec.layer, spec.expert);
}

Result<WeightPart> WeightParts::find(const TensorSpec& spec) const {
  const bool by_columns = divides_columns(spec.division);
  const int64_t whole = spec.shape[by_columns ? 1 : 0];
  const TermRange range = layout_.part(spec.division, spec.layer, whole);
  const TermRange own = by_columns ? TermRange{0, spec.shape[0]} : range;
  WeightPart part;
  part.spec = &spec;
  part.order = row_order(spec, own);
  RETURN_IF_ERROR(find_rows(spec, own, part));
  if (!by_columns || range.size() == whole) return part;
  part.columns = range;
  part.bytes = part.bytes / static_cast<size_t>(whole) * static_cast<size_t>(range.size());
  return part;
}

Result<void> WeightParts::find_rows(const TensorSpec& spec, TermRange own, WeightPart& part) const {
  const TermRange stored_range = stored_rows(spec, own);
  if (spec.part && !spec.part->scales.empty()) {
    const TensorPart& source = *spec.part;
    Result<weights::StoredWeight> found = checkpoint_.find_mxfp4({.name = spec.name,
                                                                  .blocks = source.tensor,
                                                                  .scales = source.scales,
                                                                  .shape = source.shape,
                                                                  .plane = source.plane,
                                                                  .first_row = source.first_row,
                                                                  .row_step = source.row_step});
    if (!found) return found.error();
    part.bytes = found->stored_bytes();
    part.stored = std::move(*found);
    part.rows = own;
    part.order.clear();  // the stored rows are a step apart
    return {};
  }
  if (stored_in_w8(checkpoint_, config_, spec)) {
    const bool per_channel_scales = w8_scaling_of(config_.quantization) == tensor::W8Scaling::kPerChannel;
    Result<W8Matrix> found = checkpoint_.find_w8(spec.stored_name(), spec.stored_shape(), per_channel_scales);
    if (!found) return found.error();
    part.bytes = found->bytes() / static_cast<size_t>(found->rows) * static_cast<size_t>(own.size());
    part.matrix = tensor::row_slice(*found, stored_range);
    return {};
  }
  Result<std::optional<weights::StoredWeight>> stored = find_stored(spec);
  if (!stored) return stored.error();
  if (*stored) {
    part.bytes = (**stored).stored_bytes() * static_cast<size_t>(own.size()) / static_cast<size_t>((**stored).rows);
    part.stored = std::move(**stored);
    part.rows = stored_range;
    return {};
  }
  Result<HostTensor> found = checkpoint_.find(spec.stored_name(), spec.stored_shape());
  if (!found) return found.error();
  const HostTensor plane = plane_of(*found, spec);
  part.tensor = spec.part && spec.part->transposed ? plane : rows_in_place(plane, stored_range);
  const int64_t columns = spec.shape.rank() == 2 ? spec.shape[1] : 1;
  part.bytes = static_cast<size_t>(own.size() * columns) * tensor::size_of(found->dtype);
  return {};
}

/// Finds a matrix that is stored in a format of its own; nothing when it is stored as plain floating point. What is
/// stored decides, also of routers and embeddings.
Result<std::optional<weights::StoredWeight>> WeightParts::find_stored(const TensorSpec& spec) const {
  const bool is_decoded = config_.weight_format.method != weights::QuantMethod::kNone;
  if (!is_decoded || spec.stored_shape().rank() != 2) return std::optional<weights::StoredWeight>();
  return checkpoint_.find_weight(spec.stored_name(), spec.stored_shape(), config_.weight_format);
}

const WeightPart& WeightParts::part(std::string_view name) const {
  const auto found = parts_.find(std::string(name));
  CHECK(found != parts_.end(), "tensor '{}' is not listed for its stage", name);
  return found->second;
}

PackedBits WeightParts::packed_bits(std::span<const std::string> names, const tensor::SumShards* shards,
                                    PackedTogether together) const {
  if (config_.quantization == Quantization::kW4) return PackedBits::k4;
  if (config_.quantization == Quantization::kNone) {
    const auto is_kept = [this](const std::string& name) { return stays_fp8(part(name)); };
    if (options_.keeps_fp8 && std::ranges::all_of(names, is_kept) && are_experts_alike(names)) return PackedBits::kFp8;
    const bool keeps = options_.keeps_codes && keeps_codes(names, shards, together);
    return keeps ? PackedBits::k4 : PackedBits::kCompute;
  }
  const auto is_stored_so = [this](const std::string& name) { return part(name).matrix.has_value(); };
  const bool is_packed = !config_.keeps_unquantized_projections || std::ranges::any_of(names, is_stored_so);
  return is_packed ? PackedBits::k8 : PackedBits::kCompute;
}

bool WeightParts::keeps_codes(std::span<const std::string> names, const tensor::SumShards* shards,
                              PackedTogether together) const {
  return can_keep_codes(code_sources(names), kept_codes(together), shards) && are_experts_alike(names);
}

bool WeightParts::are_experts_alike(std::span<const std::string> names) const {
  if (options_.mixes_paired_codes) return true;
  const std::vector<CodeSource> sources = code_sources(names);
  // Names of experts are [experts, parts]; without experts all are parts of one.
  const auto parts = static_cast<size_t>(std::ranges::count_if(
      names, [&](const std::string& name) { return part(name).spec->expert == part(names.front()).spec->expert; }));
  for (size_t i = parts; i < sources.size(); ++i) {
    if (!are_stored_alike(sources[i], sources[i % parts])) return false;
  }
  return true;
}

KeptCodes WeightParts::kept_codes(PackedTogether together) const {
  return {.all = options_.keeps_all_codes,
          .mixed = together == PackedTogether::kStacked ? options_.keeps_all_codes : options_.mixes_paired_codes,
          .max_bits = config_.quantization == Quantization::kW4 ? 4 : 8};
}

std::vector<CodeSource> WeightParts::code_sources(std::span<const std::string> names) const {
  std::vector<CodeSource> sources;
  for (const std::string& name : names) {
    const WeightPart& found = part(name);
    sources.push_back({.plain = {},
                       .stored = found.stored && is_in_order(found) ? &*found.stored : nullptr,
                       .rows = found.rows,
                       .columns = found.columns});
  }
  return sources;
}

HostTensor WeightParts::plain(const WeightPart& part, PackingMemory& memory) const {
  const HostTensor stored =
      part.stored
          ? memory.decoded.emplace_back(*part.stored, part.rows, options_.rounds_to_bf16, options_.threads).view()
          : part.tensor;
  if (part.spec->part && part.spec->part->transposed) {
    const TensorPart& source = *part.spec->part;
    return memory.slices
        .emplace_back(tensor::columns_as_rows(stored, source.first_row, source.row_step, part.spec->shape[0]))
        .tensor;
  }
  if (part.order.empty()) return stored;
  return memory.slices.emplace_back(tensor::gather_rows(stored, part.order)).tensor;
}

HostTensor WeightParts::columns(const WeightPart& part, PackingMemory& memory) const {
  const HostTensor whole = plain(part, memory);
  if (!part.columns) return whole;
  return memory.slices.emplace_back(tensor::column_slice(whole, *part.columns)).tensor;
}

W8Matrix WeightParts::matrix(const WeightPart& part, PackingMemory& memory) const {
  if (part.matrix) {
    if (part.order.empty()) return columns_of(part, *part.matrix, memory);
    return columns_of(part, memory.w8_slices.emplace_back(tensor::gather_rows(*part.matrix, part.order)).matrix,
                      memory);
  }
  const tensor::W8Scaling scaling = w8_scaling_of(config_.quantization);
  const bool whole_rows = scaling == tensor::W8Scaling::kPerChannel;
  const HostTensor source = whole_rows ? plain(part, memory) : columns(part, memory);
  const W8Matrix quantized =
      memory.quantized.emplace_back(tensor::quantize_w8(source, scaling, options_.threads)).view();
  return whole_rows ? columns_of(part, quantized, memory) : quantized;
}

tensor::Fp8Matrix WeightParts::fp8_matrix(std::string_view name) const {
  const WeightPart& found = part(name);
  tensor::Fp8Matrix rows = weights::to_fp8(*found.stored, found.rows);
  return found.columns ? tensor::column_slice(std::move(rows), *found.columns) : rows;
}

std::vector<tensor::CodeMatrix> WeightParts::code_matrices(std::span<const std::string> names, PackedTogether together,
                                                           PackingMemory& memory, bool can_keep) const {
  KeptCodes kept = kept_codes(together);
  kept.alike = !options_.mixes_paired_codes && part(names.front()).spec->expert >= 0;
  if (!can_keep) kept.max_bits = 0;
  std::vector<CodeSource> sources = code_sources(names);
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].stored == nullptr) sources[i].plain = plain(part(names[i]), memory);
  }
  return model::code_matrices(sources, kept, options_.threads, memory.codes);
}

}  // namespace millrace::model
