#include "model/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/log.h"
#include "model/field_reader.h"
#include "model/gguf_tensors.h"

namespace millrace::model {
namespace {

constexpr size_t kMaxIndexBytes = size_t{64} << 20;
constexpr size_t kMaxIndexNesting = 16;
constexpr std::string_view kSingleName = kSafetensorsName;
constexpr std::string_view kIndexName = kSafetensorsIndexName;

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

/// Returns whether an index may name this file: only files of its own folder are allowed.
bool plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == name.npos && name.find('\0') == name.npos;
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

}  // namespace

Checkpoint::Checkpoint(std::filesystem::path folder, std::shared_ptr<RangeSource> source)
    : folder_(std::move(folder)), source_(std::move(source)) {}

Checkpoint::~Checkpoint() = default;

Result<std::unique_ptr<SafetensorsFile>> Checkpoint::open_file(const std::string& file_name) const {
  if (source_ && !source_->contains(file_name))
    return make_error(ErrorCode::kNotFound, "{}: there is no such file", (folder_ / file_name).string());
  if (source_) RETURN_IF_ERROR(source_->prepare_file(file_name));
  return SafetensorsFile::open(folder_ / file_name);
}

Result<void> Checkpoint::open_files() {
  const Result<void> index = read_index(folder_ / kIndexName);
  const bool has_single = has_file(std::string(kSingleName));
  if (index && (!has_single || has_listed_files())) {
    if (has_single)
      log::warn("{}: tensors are read from the files that {} names, not all from {}", folder_.string(), kIndexName,
                kSingleName);
    return {};
  }
  if (has_single) {
    auto single = open_file(std::string(kSingleName));
    if (!single) return single.error();
    shard_of_.clear();
    single_ = std::move(*single);
    return {};
  }
  if (index.error().code != ErrorCode::kNotFound) return index.error();
  return make_error(ErrorCode::kNotFound, "{}: holds neither {} nor {}", folder_.string(), kSingleName, kIndexName);
}

bool Checkpoint::has_file(const std::string& file_name) const {
  if (source_) return source_->contains(file_name);
  std::error_code unreadable;  // whoever opens the file says why
  return std::filesystem::exists(folder_ / file_name, unreadable);
}

bool Checkpoint::has_listed_files() const {
  std::set<std::string> files;
  for (const auto& [name, file] : shard_of_) files.insert(file);
  return !files.empty() && files != std::set<std::string>{std::string(kSingleName)} &&
         std::ranges::all_of(files, [this](const std::string& file) { return has_file(file); });
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::filesystem::path& folder,
                                                     std::shared_ptr<RangeSource> source) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint(folder, std::move(source)));
  if (is_gguf_path(folder)) {
    auto gguf = GgufTensors::open(folder, checkpoint->source_);
    if (!gguf) return gguf.error();
    checkpoint->gguf_ = std::move(*gguf);
    return checkpoint;
  }
  RETURN_IF_ERROR(checkpoint->open_files());
  for (const StoredPrefixes& prefixes : kStoredPrefixes) {
    if (!checkpoint->has_stored_weight(fmt::format("{}{}", prefixes.model, kEmbedding))) continue;
    checkpoint->model_prefix_ = prefixes.model;
    checkpoint->head_prefix_ = prefixes.head;
    break;
  }
  for (const std::string_view prefix : kEncoderPrefixes) {
    if (checkpoint->has_stored_weight(fmt::format("{}{}", prefix, kEncoderEmbedding)))
      checkpoint->encoder_prefix_ = prefix;
  }
  return checkpoint;
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

Result<void> Checkpoint::read_index(const std::filesystem::path& path) {
  const Result<std::string> text = read_file(path, kMaxIndexBytes);
  if (!text) return text.error();
  JsonDocument document;
  const auto object = parse_object(document, path.string(), *text, kMaxIndexNesting);
  if (!object) return object.error();
  FieldReader fields(path.string(), *object);
  const auto weight_map = fields.object("weight_map");
  if (!weight_map) {
    fields.fail("weight_map is missing, wanted an object of file names");
    return *fields.error();
  }
  for (const auto member : *weight_map) {
    std::string_view file;
    if (!member.value.get(file) || !plain_file_name(file))
      return make_error(ErrorCode::kData, "{}: tensor '{}' is in {}, wanted the name of a file in the same folder",
                        path.string(), member.key, json_excerpt(member.value));
    if (!shard_of_.try_emplace(std::string(member.key), file).second)
      return make_error(ErrorCode::kData, "{}: tensor '{}' is listed twice", path.string(), member.key);
  }
  return {};
}

Result<const SafetensorsFile*> Checkpoint::shard(const std::string& file_name) const {
  const std::lock_guard lock(mutex_);
  const auto known = shards_.find(file_name);
  if (known != shards_.end()) return known->second.get();
  auto opened = open_file(file_name);
  if (!opened) return opened.error();
  return shards_.emplace(file_name, std::move(*opened)).first->second.get();
}

Result<const SafetensorsFile*> Checkpoint::file_of(std::string_view name) const {
  if (single_) return single_.get();
  const auto listed = shard_of_.find(std::string(name));
  if (listed == shard_of_.end())
    return make_error(ErrorCode::kNotFound, "{}: lists no tensor '{}'", (folder_ / kIndexName).string(), name);
  const auto file = shard(listed->second);
  if (!file)
    return make_error(ErrorCode::kData, "{}: puts tensor '{}' into {}, but {}", (folder_ / kIndexName).string(), name,
                      listed->second, file.error().message);
  if (!(*file)->contains(name))
    return make_error(ErrorCode::kData, "{}: puts tensor '{}' into {}, which lacks it", (folder_ / kIndexName).string(),
                      name, listed->second);
  return file;
}

Result<const SafetensorsFile*> Checkpoint::filled_file_of(std::string_view name) const {
  const auto file = file_of(name);
  if (!file || !source_) return file;
  const auto [begin, end] = (*file)->byte_range(name);
  const FileRange range{.file = std::filesystem::path((*file)->path()).filename(), .begin = begin, .end = end};
  RETURN_IF_ERROR(source_->fetch({&range, 1}));
  return file;
}

Result<void> Checkpoint::prepare(std::span<const std::string> names) const {
  if (gguf_) return gguf_->prepare(names);
  std::vector<std::string> stored;
  for (const std::string& name : names) {
    for (const std::string& part : weights::companion_names(name)) stored.push_back(stored_name(part));
    stored.push_back(stored_name(name));
  }
  return fetch(stored);
}

Result<void> Checkpoint::prepare_formats(std::span<const std::string> names) const {
  if (gguf_) return {};
  std::vector<std::string> stored;
  for (const std::string& name : names) {
    for (const std::string& part : weights::group_index_names(name)) stored.push_back(stored_name(part));
  }
  return fetch(stored);
}

Result<void> Checkpoint::fetch(std::span<const std::string> stored_names) const {
  if (!source_) return {};
  std::vector<FileRange> ranges;
  for (const std::string& stored : stored_names) {
    if (!contains_stored(stored)) continue;
    const auto file = file_of(stored);
    if (!file) return file.error();
    const auto [begin, end] = (*file)->byte_range(stored);
    ranges.push_back({.file = std::filesystem::path((*file)->path()).filename(), .begin = begin, .end = end});
  }
  return source_->fetch(ranges);
}

Result<tensor::HostTensor> Checkpoint::find(std::string_view name) const {
  if (gguf_) return gguf_->find(name);
  const std::string stored = stored_name(name);
  const auto file = filled_file_of(stored);
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
  const auto file = filled_file_of(stored);
  if (!file) return file.error();
  return (*file)->find_stored(stored);
}

Result<std::span<const std::byte>> Checkpoint::find_bytes(std::string_view name, std::string_view dtype,
                                                          const tensor::Shape& shape) const {
  const auto file = filled_file_of(stored_name(name));
  if (!file) return file.error();
  const auto stored = (*file)->find_stored(stored_name(name));
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
                                                                     const weights::WeightFormat& format) const {
  if (gguf_) return gguf_->find_weight(name, shape);
  const auto lookup = [this](const std::string& part) { return find_raw(part, true); };
  auto found = weights::find_stored_weight(lookup, format, std::string(name), shape[0], shape[1]);
  if (!found) return make_error(found.error().code, "{}: {}", folder_.string(), found.error().message);
  return found;
}

Result<weights::RawTensor> Checkpoint::find_raw(const std::string& name, bool has_values) const {
  const std::string stored = stored_name(name);
  if (!contains_stored(stored))
    return make_error(ErrorCode::kNotFound, "{}: has no tensor '{}'", folder_.string(), name);
  const auto file = has_values ? filled_file_of(stored) : file_of(stored);
  if (!file) return file.error();
  const auto found = (*file)->find_stored(stored);
  if (!found) return found.error();
  return weights::RawTensor{
      .dtype = found->dtype, .shape = {found->shape.begin(), found->shape.end()}, .bytes = found->bytes};
}

Result<std::optional<weights::StoredFormat>> Checkpoint::find_format(std::string_view name, const tensor::Shape& shape,
                                                                     const weights::WeightFormat& format) const {
  if (gguf_) return gguf_->find_format(name, shape);
  const std::vector<std::string> read = weights::group_index_names(name);
  const auto lookup = [&](const std::string& part) {
    return find_raw(part, std::ranges::find(read, part) != read.end());
  };
  auto found = weights::find_stored_format(lookup, format, std::string(name), shape[0], shape[1]);
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
    if (const auto file = file_of(stored_name(each))) (*file)->release(stored_name(each));
  }
}

std::vector<std::string> Checkpoint::names() const {
  if (gguf_) return gguf_->names();
  std::vector<std::string> names;
  if (single_) {
    for (const std::string_view name : single_->names()) names.emplace_back(name);
  }
  for (const auto& [name, file] : shard_of_) names.push_back(name);
  for (std::string& name : names) name = own_name(name);
  return names;
}

bool Checkpoint::contains(std::string_view name) const {
  if (gguf_) return gguf_->contains(name);
  return contains_stored(stored_name(name));
}

bool Checkpoint::has_weight(std::string_view name) const {
  return has_stored_weight(stored_name(name));
}

bool Checkpoint::has_stored_weight(std::string_view name) const {
  if (gguf_) return gguf_->contains(name);
  const std::vector<std::string> names = weights::code_names(name);
  return contains_stored(name) ||
         std::ranges::any_of(names, [this](const std::string& each) { return contains_stored(each); });
}

bool Checkpoint::contains_stored(std::string_view name) const {
  return single_ ? single_->contains(name) : shard_of_.contains(std::string(name));
}

}  // namespace millrace::model
