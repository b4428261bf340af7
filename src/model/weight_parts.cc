#include "model/weight_parts.h"

#include <algorithm>

#include "base/check.h"
#include "weights/fp8_weight.h"
#include "weights/weight_codes.h"

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

/// Returns one matrix of a tensor with three dimensions, and the elements of a vector that is stored as a matrix. Other
/// tensors are returned as they are.
HostTensor plane_of(const HostTensor& tensor, const TensorSpec& spec) {
  HostTensor matrix = tensor;
  if (spec.shape.rank() == 1) matrix.shape = {tensor.shape.elements()};
  if (tensor.shape.rank() != 3) return matrix;
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

/// Returns whether a weight consists of rows of a tensor of MXFP4 blocks.
bool has_mxfp4_rows(const TensorSpec& spec) {
  return spec.part && !spec.part->scales.empty();
}

/// Returns whether the rows of a weight are stored one after the other, or in steps that its description counts.
bool is_in_order(const TensorSpec& spec) {
  if (has_mxfp4_rows(spec)) return true;
  return row_order(spec, {0, 1}).empty() && !(spec.part && spec.part->transposed);
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
  std::vector<std::string> others;
  for (const TensorSpec& spec : specs_) {
    if (!is_owned(spec)) {
      if (others.empty() || others.back() != spec.stored_name()) others.push_back(spec.stored_name());
      continue;
    }
    const bool is_new = names.empty() || names.back() != spec.stored_name();
    if (!is_new) continue;
    if (has_mxfp4_rows(spec)) names.push_back(spec.part->scales);
    names.push_back(spec.stored_name());
  }
  RETURN_IF_ERROR(checkpoint_.prepare(names));
  if (is_decoded() && options_.rules.use_formats())
    RETURN_IF_ERROR(checkpoint_.prepare_formats(others, config_.weight_format));
  for (const TensorSpec& spec : specs_) {
    if (is_owned(spec)) {
      Result<WeightPart> part = find(spec);
      if (!part) return part.error();
      parts_.emplace(spec.name, std::move(*part));
    }
    Result<weights::StoredFormat> format = find_format(spec);
    if (!format) return format.error();
    formats_.emplace(spec.name, *format);
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
  if (has_mxfp4_rows(spec)) {
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
    part.rows = spec.part && spec.part->transposed ? TermRange{0, (**stored).rows} : stored_range;
    part.stored = std::move(**stored);
    return {};
  }
  Result<std::optional<StoredLatents>> latents = find_latents(spec);
  if (!latents) return latents.error();
  if (*latents) {
    const size_t bytes = (**latents).queries.stored_bytes() + (**latents).values.stored_bytes();
    part.bytes = bytes * static_cast<size_t>(own.size()) / static_cast<size_t>(spec.shape[0]);
    part.latents = std::move(*latents);
    part.rows = own;
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

/// Returns whether a weight may be stored in a format of its own. What is stored decides, also of routers and
/// embeddings.
bool WeightParts::may_have_format(const TensorSpec& spec) const {
  if (!is_decoded()) return false;
  const size_t rank = spec.stored_shape().rank();
  return rank == 2 || (rank == 3 && !spec.part->joined);
}

/// Finds a weight in a format of its own; nothing when it is stored as plain floating point.
Result<std::optional<weights::StoredWeight>> WeightParts::find_stored(const TensorSpec& spec) const {
  if (!may_have_format(spec)) return std::optional<weights::StoredWeight>();
  return checkpoint_.find_weight(spec.stored_name(), spec.stored_shape(), config_.weight_format,
                                 spec.part ? spec.part->plane : 0);
}

Result<std::optional<StoredLatents>> WeightParts::find_latents(const TensorSpec& spec) const {
  if (!options_.rules.keeps_latents || !may_have_format(spec) || spec.division != Division::kHeadRows)
    return std::optional<StoredLatents>();
  auto found = checkpoint_.find_latents(spec.stored_name(), spec.stored_shape());
  if (!found || !*found) return found;
  const bool has_codes = weights::code_layout((**found).queries) && weights::code_layout((**found).values);
  return has_codes ? std::move(found) : std::optional<StoredLatents>();
}

Result<weights::StoredFormat> WeightParts::find_format(const TensorSpec& spec) const {
  using weights::StoredFormat;
  if (has_mxfp4_rows(spec)) return weights::mxfp4_format();
  if (stored_in_w8(checkpoint_, config_, spec)) return StoredFormat{.kind = StoredFormat::Kind::kW8};
  if (!may_have_format(spec) || !is_in_order(spec)) return StoredFormat{};
  if (const auto own = parts_.find(spec.name); own != parts_.end()) {
    const std::optional<weights::StoredWeight>& stored = own->second.stored;
    if (!stored) return StoredFormat{};
    // Other ranks take the config's word.
    if (spec.expert >= 0 && config_.weight_format.has_groups_in_order && !stored->has_groups_in_order())
      return make_error(ErrorCode::kData,
                        "{}: the group indices of '{}' are not in order, though quantization_config says desc_act "
                        "false; wanted desc_act true",
                        checkpoint_.folder().string(), spec.stored_name());
    return weights::stored_format(*stored);
  }
  if (!options_.rules.use_formats()) return StoredFormat{};
  const auto found = checkpoint_.find_format(spec.stored_name(), spec.stored_shape(), config_.weight_format);
  if (!found) return found.error();
  return found->value_or(StoredFormat{});
}

const weights::StoredFormat& WeightParts::format(const std::string& name) const {
  const auto found = formats_.find(name);
  CHECK(found != formats_.end(), "tensor '{}' is not listed for its stage", name);
  return found->second;
}

std::vector<weights::StoredFormat> WeightParts::formats(std::span<const std::string> names) const {
  std::vector<weights::StoredFormat> found;
  for (const std::string& name : names) found.push_back(format(name));
  return found;
}

const WeightPart& WeightParts::part(std::string_view name) const {
  const auto found = parts_.find(std::string(name));
  CHECK(found != parts_.end(), "tensor '{}' is not listed for its stage", name);
  return found->second;
}

PackedBits WeightParts::packed_bits(std::span<const std::string> names, const tensor::SumShards* shards,
                                    PackedTogether together) const {
  const std::vector<weights::StoredFormat> found = formats(names);
  const bool codes_fit =
      (shards == nullptr || can_divide_codes(*shards)) && can_keep_codes(found, kept_codes(options_.rules, together));
  return model::packed_bits(found, options_.rules, true, codes_fit);
}

ExpertFormats WeightParts::expert_formats(int32_t layer) const {
  const FeedForwardConfig& feed_forward = config_.layer(layer).feed_forward;
  const std::span<const ExpertPart> parts = expert_parts(feed_forward);
  std::vector<weights::StoredFormat> found;  // [experts, parts]
  for (int32_t expert = 0; expert < feed_forward.moe->expert_count; ++expert) {
    for (const ExpertPart part : parts) found.push_back(format(expert_tensor_name(config_, layer, expert, part)));
  }
  return {found, parts.size(), options_.rules};
}

tensor::DType WeightParts::narrowest_scales(std::span<const std::string> names) const {
  std::optional<tensor::DType> narrowest;
  for (const std::string& name : names) {
    const WeightPart& found = part(name);
    CHECK(found.stored, "{} is not stored in codes", name);
    const tensor::DType own = weights::narrowest_code_scales(*found.stored, found.rows);
    // F16 and bf16 have no common type but f32.
    narrowest = narrowest.value_or(own) == own ? own : tensor::DType::kF32;
    if (narrowest == tensor::DType::kF32) break;
  }
  return narrowest.value_or(tensor::DType::kF32);
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

LatentCodes WeightParts::latent_codes(const WeightPart& part) const {
  const StoredLatents& latents = *part.latents;
  const int64_t head_rows = latents.key_dim() + latents.value_dim();
  const auto rows_of_heads = [&](int64_t rows) {
    return TermRange{part.rows.begin / head_rows * rows, part.rows.end / head_rows * rows};
  };
  const int64_t latent_dim = latents.values.cols;
  return {.queries = weights::to_codes(latents.queries, rows_of_heads(latent_dim), options_.threads),
          .values = weights::to_codes(latents.values, rows_of_heads(latents.value_dim()), options_.threads)};
}

std::vector<tensor::CodeMatrix> WeightParts::expert_codes(std::span<const std::string> names, bool keeps,
                                                          std::optional<tensor::DType> scale_dtype,
                                                          PackingMemory& memory) const {
  KeptCodes kept = kept_codes(options_.rules, PackedTogether::kPaired);
  if (!keeps) kept.max_bits = 0;
  return code_matrices(names, kept, scale_dtype, memory);
}

std::vector<tensor::CodeMatrix> WeightParts::code_matrices(std::span<const std::string> names, KeptCodes kept,
                                                           std::optional<tensor::DType> scale_dtype,
                                                           PackingMemory& memory) const {
  std::vector<CodeSource> sources;
  for (const std::string& name : names) {
    const WeightPart& found = part(name);
    const bool is_stored = found.stored && is_in_order(*found.spec);
    sources.push_back({.plain = is_stored ? HostTensor{} : plain(found, memory),
                       .stored = is_stored ? &*found.stored : nullptr,
                       .rows = found.rows,
                       .columns = found.columns,
                       .format = format(name),
                       .scale_dtype = scale_dtype});
  }
  return model::code_matrices(sources, kept, options_.threads, memory.codes);
}

}  // namespace millrace::model
