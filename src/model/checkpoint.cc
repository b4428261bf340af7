#include "model/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "model/gguf_tensors.h"
#include "weights/companions.h"

namespace millrace::model {
namespace {

constexpr std::string_view kPrefix = "model.";
constexpr std::string_view kEmbedding = "embed_tokens.weight";
constexpr std::string_view kHead = "lm_head.";
/// The parts of a model under `kPrefix`.
constexpr std::array<std::string_view, 6> kPrefixedParts = {"embed_tokens.",
                                                            "layers.",
                                                            "norm.",
                                                            "embed_tokens_per_layer.",
                                                            "per_layer_model_projection.",
                                                            "per_layer_projection_norm."};

/// Returns whether a name without `kPrefix` is that of a tensor under it.
bool is_under_prefix(std::string_view name) {
  return std::ranges::any_of(kPrefixedParts, [name](std::string_view part) { return name.starts_with(part); });
}

/// What begins the names of an encoder's parts in checkpoints with a further head.
constexpr std::array<std::string_view, 2> kEncoderPrefixes = {"bert.", "roberta."};
constexpr std::array<std::string_view, 3> kEncoderParts = {"embeddings.", "encoder.", "pooler."};
constexpr std::string_view kEncoderEmbedding = "embeddings.word_embeddings.weight";

bool is_encoder_part(std::string_view name) {
  return std::ranges::any_of(kEncoderParts, [name](std::string_view part) { return name.starts_with(part); });
}

/// What stored names begin with in place of `kPrefix`, and before `kHead`.
struct StoredPrefixes {
  std::string_view model;
  std::string_view head;
};
constexpr std::array<StoredPrefixes, 4> kStoredPrefixes{{
    {kPrefix, ""},
    {"", ""},                                      // without an output head
    {"language_model.model.", "language_model."},  // the text model of a wrapper
    {"model.language_model.", ""},                 // the same, as newer writers save it
}};

/// Returns the name that a weight, or a plane of one, would have if it were one of its own.
std::string weight_name(std::string_view name, bool is_plane) {
  return is_plane ? fmt::format("{}{}", name, weights::kWeightSuffix) : std::string(name);
}

}  // namespace

Checkpoint::Checkpoint(std::filesystem::path folder) : folder_(std::move(folder)) {}

Checkpoint::~Checkpoint() = default;

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::filesystem::path& folder,
                                                     std::shared_ptr<RangeSource> source) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint(folder));
  if (is_gguf_path(folder)) {
    auto gguf = GgufTensors::open(folder, std::move(source));
    if (!gguf) return gguf.error();
    checkpoint->gguf_ = std::move(*gguf);
    return checkpoint;
  }
  auto files = SafetensorsFolder::open(folder, std::move(source));
  if (!files) return files.error();
  checkpoint->files_ = std::move(*files);
  checkpoint->find_prefixes();
  return checkpoint;
}

void Checkpoint::find_prefixes() {
  for (const StoredPrefixes& prefixes : kStoredPrefixes) {
    if (!has_stored_weight(fmt::format("{}{}", prefixes.model, kEmbedding))) continue;
    model_prefix_ = prefixes.model;
    head_prefix_ = prefixes.head;
    break;
  }
  for (const std::string_view prefix : kEncoderPrefixes) {
    if (has_stored_weight(fmt::format("{}{}", prefix, kEncoderEmbedding))) encoder_prefix_ = prefix;
  }
}

std::string Checkpoint::stored_name(std::string_view name) const {
  if (is_encoder_part(name)) return fmt::format("{}{}", encoder_prefix_, name);
  if (name.starts_with(kHead)) return fmt::format("{}{}", head_prefix_, name);
  if (!name.starts_with(kPrefix)) return std::string(name);
  const std::string_view rest = name.substr(kPrefix.size());
  return is_under_prefix(rest) ? fmt::format("{}{}", model_prefix_, rest) : std::string(name);
}

std::string Checkpoint::own_name(std::string_view stored) const {
  if (stored.starts_with(encoder_prefix_) && is_encoder_part(stored.substr(encoder_prefix_.size())))
    return std::string(stored.substr(encoder_prefix_.size()));
  if (stored.starts_with(head_prefix_) && stored.substr(head_prefix_.size()).starts_with(kHead))
    return std::string(stored.substr(head_prefix_.size()));
  if (!stored.starts_with(model_prefix_)) return std::string(stored);
  const std::string_view rest = stored.substr(model_prefix_.size());
  return is_under_prefix(rest) ? fmt::format("{}{}", kPrefix, rest) : std::string(stored);
}

Result<void> Checkpoint::prepare(std::span<const std::string> names) const {
  if (gguf_) return gguf_->prepare(names);
  std::vector<std::string> stored;
  for (const std::string& name : names) {
    for (const std::string& part : weights::companion_names(name)) stored.push_back(stored_name(part));
    stored.push_back(stored_name(name));
  }
  return files_->fetch(stored);
}

Result<void> Checkpoint::prepare_formats(std::span<const std::string> names,
                                         const weights::WeightFormat& format) const {
  if (gguf_) return {};
  std::vector<std::string> stored;
  for (const std::string& name : names) {
    for (const std::string& part : weights::names_read_for_format(format, name)) stored.push_back(stored_name(part));
  }
  return files_->fetch(stored);
}

Result<tensor::HostTensor> Checkpoint::find(std::string_view name) const {
  if (gguf_) return gguf_->find(name);
  const std::string stored = stored_name(name);
  const auto file = files_->filled_file_of(stored);
  if (!file) return file.error();
  return (*file)->find(stored);
}

Result<tensor::HostTensor> Checkpoint::find(std::string_view name, const tensor::Shape& wanted) const {
  Result<tensor::HostTensor> tensor = find(name);
  if (tensor && tensor->shape != wanted)
    return make_error(ErrorCode::kData, "{}: tensor '{}' has shape {}, config.json wants {}", folder_.string(), name,
                      tensor->shape.to_string(), wanted.to_string());
  return tensor;
}

Result<StoredTensor> Checkpoint::find_stored(std::string_view name) const {
  if (gguf_) return gguf_->find_stored(name);
  const std::string stored = stored_name(name);
  const auto file = files_->filled_file_of(stored);
  if (!file) return file.error();
  return (*file)->find_stored(stored);
}

Result<std::vector<int64_t>> Checkpoint::find_shape(const std::string& name) const {
  const auto found = find_raw(name, false);
  if (!found) return found.error();
  return found->shape;
}

Result<std::span<const std::byte>> Checkpoint::find_bytes(std::string_view name, std::string_view dtype,
                                                          const tensor::Shape& shape) const {
  const std::string own = stored_name(name);
  const auto file = files_->filled_file_of(own);
  if (!file) return file.error();
  const auto stored = (*file)->find_stored(own);
  if (!stored) return stored.error();
  if (stored->dtype != dtype)
    return make_error(ErrorCode::kData, "{}: tensor '{}' has dtype {}, wanted {}", (*file)->path(), name, stored->dtype,
                      dtype);
  if (stored->shape.size() > 4 || tensor::Shape(stored->shape) != shape)
    return make_error(ErrorCode::kData, "{}: tensor '{}' has shape [{}], config.json wants {}", folder_.string(), name,
                      fmt::join(stored->shape, ", "), shape.to_string());
  return stored->bytes;
}

Result<tensor::W8Matrix> Checkpoint::find_w8(std::string_view name, const tensor::Shape& wanted,
                                             bool per_channel_scales) const {
  const auto values = find_bytes(name, "I8", wanted);
  if (!values) return values.error();
  tensor::W8Matrix matrix{.name = std::string(name), .rows = wanted[0], .cols = wanted[1], .values = values->data()};
  if (per_channel_scales) {
    const auto scales = find(scale_name(name), {wanted[0], 1});
    if (!scales) return scales.error();
    matrix.scales = scales->data;
    matrix.per_channel_scales = true;
    matrix.scale_dtype = scales->dtype;
  } else {
    const auto scales = find_bytes(scale_name(name), "BF16", {wanted[0], tensor::w8_groups(wanted[1])});
    if (!scales) return scales.error();
    matrix.scales = scales->data();
  }
  return matrix;
}

Result<std::optional<weights::StoredWeight>> Checkpoint::find_weight(std::string_view name, const tensor::Shape& shape,
                                                                     const weights::WeightFormat& format,
                                                                     int64_t plane) const {
  if (gguf_) return gguf_->find_weight(name, shape);
  const bool has_planes = shape.rank() == 3;
  const auto lookup = [&](const std::string& part) {
    return has_planes ? find_plane(part, shape, plane, true) : find_raw(part, true);
  };
  auto found = weights::find_stored_weight(lookup, format, weight_name(name, has_planes), shape[shape.rank() - 2],
                                           shape[shape.rank() - 1]);
  if (!found) return make_error(found.error().code, "{}: {}", folder_.string(), found.error().message);
  return found;
}

Result<weights::RawTensor> Checkpoint::find_plane(const std::string& part, const tensor::Shape& shape, int64_t plane,
                                                  bool has_values) const {
  const std::string name = weights::name_in_one_tensor(part);
  auto all = find_raw(name, has_values);
  if (!all) return all;
  if (all->shape.size() != 3 || all->shape[0] != shape[0])
    return make_error(ErrorCode::kData, "tensor '{}' has shape [{}], wanted three dimensions for {} experts", name,
                      fmt::join(all->shape, ", "), shape[0]);
  all->shape.erase(all->shape.begin());
  const size_t bytes = all->bytes.size() / static_cast<size_t>(shape[0]);
  all->bytes = all->bytes.subspan(static_cast<size_t>(plane) * bytes, bytes);
  return all;
}

Result<std::optional<StoredLatents>> Checkpoint::find_latents(std::string_view name, const tensor::Shape& shape) const {
  return gguf_ ? gguf_->find_latents(name, shape) : std::optional<StoredLatents>();
}

Result<weights::RawTensor> Checkpoint::find_raw(const std::string& name, bool has_values) const {
  const std::string stored = stored_name(name);
  if (!files_->contains(stored))
    return make_error(ErrorCode::kNotFound, "{}: has no tensor '{}'", folder_.string(), name);
  const auto file = has_values ? files_->filled_file_of(stored) : files_->file_of(stored);
  if (!file) return file.error();
  const auto found = (*file)->find_stored(stored);
  if (!found) return found.error();
  return weights::RawTensor{
      .dtype = found->dtype, .shape = {found->shape.begin(), found->shape.end()}, .bytes = found->bytes};
}

Result<std::optional<weights::StoredFormat>> Checkpoint::find_format(std::string_view name, const tensor::Shape& shape,
                                                                     const weights::WeightFormat& format) const {
  if (gguf_) return gguf_->find_format(name, shape);
  const bool has_planes = shape.rank() == 3;
  const std::vector<std::string> read = weights::names_read_for_format(format, name);
  const auto lookup = [&](const std::string& part) {
    return has_planes ? find_plane(part, shape, 0, false) : find_raw(part, std::ranges::find(read, part) != read.end());
  };
  auto found = weights::find_stored_format(lookup, format, weight_name(name, has_planes), shape[shape.rank() - 2],
                                           shape[shape.rank() - 1]);
  if (!found) return make_error(found.error().code, "{}: {}", folder_.string(), found.error().message);
  return found;
}

Result<weights::StoredWeight> Checkpoint::find_mxfp4(const Mxfp4Rows& rows) const {
  constexpr int64_t kBlock = 32;
  constexpr int64_t kBlockBytes = 16;
  const int64_t planes = rows.shape[0];
  const int64_t plane_rows = rows.shape[1];
  const int64_t cols = rows.shape[2];
  if (cols % kBlock != 0)
    return make_error(ErrorCode::kData, "{}: tensor '{}' has {} columns, wanted a multiple of {} for MXFP4",
                      folder_.string(), rows.blocks, cols, kBlock);
  const int64_t groups = cols / kBlock;
  const auto blocks = find_bytes(rows.blocks, "U8", {planes, plane_rows, groups, kBlockBytes});
  if (!blocks) return blocks.error();
  const auto scales = find_bytes(rows.scales, "U8", {planes, plane_rows, groups});
  if (!scales) return scales.error();
  const int64_t first = rows.plane * plane_rows + rows.first_row;
  const int64_t count = (plane_rows - rows.first_row + rows.row_step - 1) / rows.row_step;
  const auto part = [&](std::span<const std::byte> bytes, int64_t row_bytes) {
    const int64_t used = (count - 1) * rows.row_step + 1;
    return bytes.subspan(static_cast<size_t>(first * row_bytes), static_cast<size_t>(used * row_bytes));
  };
  weights::StoredWeight weight{.name = rows.name, .rows = count, .cols = cols};
  weight.codes = {.kind = weights::CodeKind::kE2M1,
                  .bits = 4,
                  .bytes = part(*blocks, groups * kBlockBytes),
                  .row_bytes = rows.row_step * groups * kBlockBytes};
  weight.scales = {.kind = weights::ScaleKind::kE8M0,
                   .bytes = part(*scales, groups),
                   .row_stride = rows.row_step * groups,
                   .group_stride = 1};
  weight.group_cols = kBlock;
  if (const auto checked = weights::check_stored(weight); !checked)
    return make_error(checked.error().code, "{}: {}", folder_.string(), checked.error().message);
  return weight;
}

void Checkpoint::release(std::string_view name) const {
  if (gguf_) return gguf_->release(name);
  std::vector<std::string> parts = weights::companion_names(name);
  parts.emplace_back(name);
  for (const std::string& each : parts) {
    if (!contains(each)) continue;
    if (const auto file = files_->file_of(stored_name(each))) (*file)->release(stored_name(each));
  }
}

std::vector<std::string> Checkpoint::names() const {
  if (gguf_) return gguf_->names();
  std::vector<std::string> names = files_->names();
  for (std::string& name : names) name = own_name(name);
  return names;
}

bool Checkpoint::contains(std::string_view name) const {
  if (gguf_) return gguf_->contains(name);
  return files_->contains(stored_name(name));
}

bool Checkpoint::has_weight(std::string_view name) const {
  return has_stored_weight(stored_name(name));
}

bool Checkpoint::has_stored_weight(std::string_view name) const {
  if (gguf_) return gguf_->contains(name);
  const std::vector<std::string> names = weights::code_names(name);
  return files_->contains(name) ||
         std::ranges::any_of(names, [this](const std::string& each) { return files_->contains(each); });
}

}  // namespace millrace::model
