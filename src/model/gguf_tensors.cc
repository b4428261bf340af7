#include "model/gguf_tensors.h"

#include <fmt/ranges.h>

namespace millrace::model {
namespace {

/// Returns the weight that a tensor is, as [rows, columns]. A vector has one column, since its elements may move as
/// rows do.
weights::StoredWeight stored_weight(std::string_view name, const gguf::MappedTensor& tensor) {
  const bool is_matrix = tensor.shape.size() == 2;
  const int64_t elements = tensor.shape.empty() ? 1 : tensor.shape[0];
  const bool is_plain = tensor.type.block_weights == 1;
  return {.name = std::string(name),
          .rows = is_matrix || is_plain ? elements : 1,
          .cols = is_matrix ? tensor.shape[1] : (is_plain ? 1 : elements),
          .codes = {},
          .scales = {},
          .zeros = {},
          .group_index = {},
          .blocks = {.ggml_type = tensor.type.id,
                     .bytes = tensor.bytes,
                     .factor = tensor.factor,
                     .paired_rows = tensor.paired_rows}};
}

/// Returns whether the file has a tensor's values in their order, in a type that is computed.
bool is_in_place(const gguf::MappedTensor& tensor) {
  return tensor.type.block_weights == 1 && tensor.paired_rows == 0 && tensor.factor == 1.0f;
}

}  // namespace

Result<std::unique_ptr<GgufTensors>> GgufTensors::open(const std::filesystem::path& path) {
  std::unique_ptr<GgufTensors> opened(new GgufTensors);
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

Result<tensor::HostTensor> GgufTensors::find(std::string_view name) const {
  const auto found = mapped(name);
  if (!found) return found.error();
  const gguf::MappedTensor& tensor = **found;
  if (is_in_place(tensor)) {
    return tensor::HostTensor{.name = std::string(name),
                              .dtype = *tensor::parse_dtype(tensor.type.name),
                              .shape = tensor::Shape(std::span(tensor.shape)),
                              .data = tensor.bytes.data()};
  }
  if (tensor.shape.size() > 1)
    return make_error(ErrorCode::kData, "{}: tensor '{}' is {} [{}], wanted F32, BF16 or F16", files_->model().source(),
                      tensor.stored_name, tensor.type.name, fmt::join(tensor.shape, ", "));
  const std::lock_guard lock(mutex_);
  auto [position, is_new] = decoded_.try_emplace(std::string(name));
  std::vector<float>& values = position->second;
  if (is_new) {
    const weights::StoredWeight weight = stored_weight(name, tensor);
    values.resize(static_cast<size_t>(weight.rows * weight.cols));
    weights::decode_rows(weight, 0, weight.rows, values.data());
  }
  return tensor::HostTensor{.name = std::string(name),
                            .dtype = tensor::DType::kF32,
                            .shape = {static_cast<int64_t>(values.size())},
                            .data = reinterpret_cast<const std::byte*>(values.data())};
}

Result<StoredTensor> GgufTensors::find_stored(std::string_view name) const {
  const auto found = mapped(name);
  if (!found) return found.error();
  return StoredTensor{.dtype = (*found)->type.name, .shape = (*found)->shape, .bytes = (*found)->bytes};
}

Result<std::optional<weights::StoredWeight>> GgufTensors::find_weight(std::string_view name,
                                                                      const tensor::Shape& shape) const {
  const auto found = mapped(name);
  if (!found) return found.error();
  const gguf::MappedTensor& tensor = **found;
  if (tensor.shape.size() != 2 || tensor.shape[0] != shape[0] || tensor.shape[1] != shape[1])
    return make_error(ErrorCode::kData, "{}: tensor '{}' has shape [{}], the model's configuration wants {}",
                      files_->model().source(), tensor.stored_name, fmt::join(tensor.shape, ", "), shape.to_string());
  if (is_in_place(tensor)) return std::optional<weights::StoredWeight>();
  return std::optional(stored_weight(name, tensor));
}

void GgufTensors::release(std::string_view name) const {
  if (const auto found = mapped(name)) files_->release((*found)->bytes);
}

std::vector<std::string> GgufTensors::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

}  // namespace millrace::model
