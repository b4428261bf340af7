#include "model/gguf_tensors.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace millrace::model {
namespace {

/// Returns the weight that a tensor is, as [rows, columns], where the last dimensions are the columns. A vector has one
/// column, since its elements may move as rows do.
weights::StoredWeight stored_weight(std::string_view name, const gguf::MappedTensor& tensor) {
  const bool is_matrix = tensor.shape.size() >= 2;
  const int64_t elements = tensor.shape.empty() ? 1 : tensor.shape[0];
  const bool is_plain = tensor.type.block_weights == 1;
  int64_t columns = 1;
  for (size_t i = 1; i < tensor.shape.size(); ++i) columns *= tensor.shape[i];
  return {.name = std::string(name),
          .rows = is_matrix || is_plain ? elements : 1,
          .cols = is_matrix ? columns : (is_plain ? 1 : elements),
          .codes = {},
          .scales = {},
          .zeros = {},
          .group_index = {},
          .blocks = {.ggml_type = tensor.type.id,
                     .bytes = tensor.bytes,
                     .factor = tensor.factor,
                     .row_order = tensor.row_order,
                     .column_order = tensor.column_order}};
}

/// Returns whether the file has a tensor's values in their order, in a type that is computed.
bool is_in_place(const gguf::MappedTensor& tensor) {
  return tensor.type.block_weights == 1 && tensor.row_order.is_in_order() && tensor.column_order.is_in_order() &&
         tensor.factor == 1.0f && tensor.addend == 0.0f && tensor.join == gguf::TensorJoin::kNone;
}

std::vector<float> decoded(std::string_view name, const gguf::MappedTensor& tensor) {
  const weights::StoredWeight weight = stored_weight(name, tensor);
  std::vector<float> values(static_cast<size_t>(weight.rows * weight.cols));
  weights::decode_rows(weight, 0, weight.rows, values.data());
  for (float& value : values) value += tensor.addend;
  return values;
}

/// Joins two matrices of equal shape by columns in turn.
std::vector<float> columns_in_turn(const std::vector<float>& first, const std::vector<float>& second) {
  std::vector<float> joined;
  joined.reserve(first.size() + second.size());
  for (size_t i = 0; i < first.size(); ++i) joined.insert(joined.end(), {first[i], second[i]});
  return joined;
}

/// Joins keys [heads · latents, key] and values [heads · value, latents] to [heads · (key + value), latents].
std::vector<float> latent_expansion(const gguf::MappedTensor& tensor, const std::vector<float>& keys,
                                    const std::vector<float>& values) {
  const auto latents = static_cast<size_t>(tensor.shape[1]);
  const auto heads = static_cast<size_t>(tensor.parts[0].shape[0]) / latents;
  const auto key = static_cast<size_t>(tensor.parts[0].shape[1]);
  const size_t value = values.size() / latents / heads;
  std::vector<float> joined(heads * (key + value) * latents);
  for (size_t head = 0; head < heads; ++head) {
    float* out = joined.data() + head * (key + value) * latents;
    const float* own_keys = keys.data() + head * latents * key;
    for (size_t latent = 0; latent < latents; ++latent) {
      for (size_t row = 0; row < key; ++row) out[row * latents + latent] = own_keys[latent * key + row];
    }
    std::copy_n(values.data() + head * value * latents, value * latents, out + key * latents);
  }
  return joined;
}

std::vector<float> joined(std::string_view name, const gguf::MappedTensor& tensor) {
  const std::vector<float> first = decoded(name, tensor.parts[0]);
  const std::vector<float> second = decoded(name, tensor.parts[1]);
  return tensor.join == gguf::TensorJoin::kColumnsInTurn ? columns_in_turn(first, second)
                                                         : latent_expansion(tensor, first, second);
}

}  // namespace

Result<std::unique_ptr<GgufTensors>> GgufTensors::open(const std::filesystem::path& path,
                                                       std::shared_ptr<RangeSource> source) {
  std::unique_ptr<GgufTensors> opened(new GgufTensors);
  opened->source_ = std::move(source);
  auto files = GgufFiles::open(path);
  if (!files) return files.error();
  auto tensors = gguf::map_tensors((*files)->model());
  if (!tensors) return tensors.error();
  opened->files_ = std::move(*files);
  opened->tensors_ = std::move(*tensors);
  return opened;
}

Result<const gguf::MappedTensor*> GgufTensors::mapped(std::string_view name) const {
  const auto found = tensors_.find(std::string(name));
  if (found == tensors_.end())
    return make_error(ErrorCode::kNotFound, "{}: has no tensor '{}'", files_->model().source(), name);
  return &found->second;
}

Result<void> GgufTensors::prepare(std::span<const std::string> names) const {
  if (!source_) return {};
  std::vector<FileRange> ranges;
  for (const std::string& name : names) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) continue;
    ranges.push_back(files_->range_of(found->second.bytes));
    for (const gguf::MappedTensor& part : found->second.parts) ranges.push_back(files_->range_of(part.bytes));
  }
  return source_->fetch(ranges);
}

Result<const gguf::MappedTensor*> GgufTensors::filled(std::string_view name) const {
  const std::string own(name);
  RETURN_IF_ERROR(prepare({&own, 1}));
  return mapped(name);
}

Result<tensor::HostTensor> GgufTensors::find(std::string_view name) const {
  const auto found = filled(name);
  if (!found) return found.error();
  const gguf::MappedTensor& tensor = **found;
  if (is_in_place(tensor)) {
    return tensor::HostTensor{.name = std::string(name),
                              .dtype = *tensor::parse_dtype(tensor.type.name),
                              .shape = tensor::Shape(std::span(tensor.shape)),
                              .data = tensor.bytes.data()};
  }
  const bool is_joined = tensor.join != gguf::TensorJoin::kNone;
  if (tensor.shape.size() == 2 && !is_joined)
    return make_error(ErrorCode::kData, "{}: tensor '{}' is {} [{}], wanted F32, BF16 or F16", files_->model().source(),
                      tensor.stored_name, tensor.type.name, fmt::join(tensor.shape, ", "));
  const std::lock_guard lock(mutex_);
  auto [position, is_new] = decoded_.try_emplace(std::string(name));
  ++position->second.user_count;
  std::vector<float>& values = position->second.values;
  if (is_new) values = is_joined ? joined(name, tensor) : decoded(name, tensor);
  return tensor::HostTensor{.name = std::string(name),
                            .dtype = tensor::DType::kF32,
                            .shape = tensor.shape.empty() ? tensor::Shape{1} : tensor::Shape(std::span(tensor.shape)),
                            .data = reinterpret_cast<const std::byte*>(values.data())};
}

Result<StoredTensor> GgufTensors::find_stored(std::string_view name) const {
  const auto found = filled(name);
  if (!found) return found.error();
  return StoredTensor{.dtype = (*found)->type.name, .shape = (*found)->shape, .bytes = (*found)->bytes};
}

Result<std::optional<weights::StoredWeight>> GgufTensors::find_weight(std::string_view name,
                                                                      const tensor::Shape& shape) const {
  const std::string own(name);
  RETURN_IF_ERROR(prepare({&own, 1}));
  return describe(name, shape);
}

Result<std::optional<weights::StoredFormat>> GgufTensors::find_format(std::string_view name,
                                                                      const tensor::Shape& shape) const {
  const auto found = describe(name, shape);
  if (!found) return found.error();
  return *found ? std::optional(weights::stored_format(**found)) : std::nullopt;
}

Result<std::optional<StoredLatents>> GgufTensors::find_latents(std::string_view name,
                                                               const tensor::Shape& shape) const {
  const std::string own(name);
  RETURN_IF_ERROR(prepare({&own, 1}));
  const auto found = matrix(name, shape);
  if (!found) return found.error();
  const gguf::MappedTensor& tensor = **found;
  if (tensor.join != gguf::TensorJoin::kLatentExpansion) return std::optional<StoredLatents>();
  return std::optional(StoredLatents{.queries = stored_weight(fmt::format("{}.queries", name), tensor.parts[0]),
                                     .values = stored_weight(fmt::format("{}.values", name), tensor.parts[1])});
}

Result<const gguf::MappedTensor*> GgufTensors::matrix(std::string_view name, const tensor::Shape& shape) const {
  const auto found = mapped(name);
  if (!found) return found.error();
  const gguf::MappedTensor& tensor = **found;
  if (tensor.shape.size() != 2 || tensor.shape[0] != shape[0] || tensor.shape[1] != shape[1])
    return make_error(ErrorCode::kData, "{}: tensor '{}' has shape [{}], the model's configuration wants {}",
                      files_->model().source(), tensor.stored_name, fmt::join(tensor.shape, ", "), shape.to_string());
  return &tensor;
}

Result<std::optional<weights::StoredWeight>> GgufTensors::describe(std::string_view name,
                                                                   const tensor::Shape& shape) const {
  const auto found = matrix(name, shape);
  if (!found) return found.error();
  const gguf::MappedTensor& tensor = **found;
  if (is_in_place(tensor) || tensor.join != gguf::TensorJoin::kNone) return std::optional<weights::StoredWeight>();
  return std::optional(stored_weight(name, tensor));
}

void GgufTensors::release(std::string_view name) const {
  const auto found = mapped(name);
  if (!found) return;
  files_->release((*found)->bytes);
  for (const gguf::MappedTensor& part : (*found)->parts) files_->release(part.bytes);
  // Latent expansions are large, and whoever finds one releases it once, after its last use.
  if ((*found)->join != gguf::TensorJoin::kLatentExpansion) return;
  const std::lock_guard lock(mutex_);
  const auto position = decoded_.find(std::string(name));
  if (position != decoded_.end() && --position->second.user_count == 0) decoded_.erase(position);
}

std::vector<std::string> GgufTensors::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

}  // namespace millrace::model
