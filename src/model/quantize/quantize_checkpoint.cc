#include "model/quantize/quantize_checkpoint.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <unordered_set>

#include "base/check.h"
#include "base/json.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/families/read_config.h"
#include "model/field_reader.h"
#include "model/mapped_file.h"
#include "model/tensor_list.h"

namespace millrace::model {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWeightsName = "model.safetensors";
constexpr std::string_view kConfigName = "config.json";
constexpr std::string_view kTiedKey = "tie_word_embeddings";
constexpr size_t kHeaderAlignment = 8;

/// A tensor of the model, and whether it is quantized to 8 bits.
struct Source {
  tensor::HostTensor tensor;
  bool projection = false;
};

Error write_error(const fs::path& path) {
  return make_error(ErrorCode::kInternal, "{}: cannot be written: {}", path.string(), std::strerror(errno));
}

std::string_view stored_name(tensor::DType dtype) {
  switch (dtype) {
    case tensor::DType::kF32: return "F32";
    case tensor::DType::kBF16: return "BF16";
    case tensor::DType::kF16: return "F16";
  }
  return "";
}

/// Returns whether a tensor stays unquantized, as other servers expect in a model of this kind.
bool stays(const TensorSpec& spec, Quantization quantization) {
  return quantization == Quantization::kW8A8Int8 && spec.name == kHeadName;
}

/// Returns the linear layers that stay unquantized, by their compressed-tensors names: routers, gates of shared
/// experts, and the head, which may be tied and have no tensor.
std::vector<std::string> names_that_stay(const ModelConfig& config) {
  const auto module = [](std::string_view tensor) { return std::string(tensor.substr(0, tensor.rfind('.'))); };
  std::vector<std::string> names = {module(kHeadName)};
  for (int32_t layer = 0; layer < config.layer_count(); ++layer) {
    if (!config.is_sparse(layer)) continue;
    names.push_back(module(router_name(config, layer)));
    const auto& shared = config.layer(layer).feed_forward.moe->shared;
    if (shared && shared->has_gate) names.push_back(config.names.plain(layer, config.names.shared_expert_gate));
  }
  return names;
}

Result<std::vector<Source>> find_sources(const Checkpoint& checkpoint, const ModelConfig& config,
                                         Quantization quantization) {
  const StageSpan whole{.layers = {0, config.layer_count()}, .first = true, .last = true};
  std::vector<Source> sources;
  std::unordered_set<std::string> known;  // one tensor may hold several weights
  for (const TensorSpec& spec : stage_tensors(config, whole)) {
    if (!known.insert(spec.stored_name()).second) continue;
    if (spec.stored_shape().rank() > 2)
      return make_error(ErrorCode::kInvalidArgument,
                        "{}: tensor '{}' holds several matrices {}, wanted one tensor for each to quantize",
                        checkpoint.folder().string(), spec.stored_name(), spec.stored_shape().to_string());
    auto tensor = checkpoint.find(spec.stored_name(), spec.stored_shape());
    if (!tensor) return tensor.error();
    sources.push_back({std::move(*tensor), spec.projection && !stays(spec, quantization)});
  }
  RETURN_IF_ERROR(reject_unknown_tensors(checkpoint, config, whole));
  return sources;
}

/// Writes the header of a safetensors file whose tensors follow one another.
class Header {
 public:
  Header() { json_.begin_object().key("__metadata__").begin_object().member("format", "pt").end_object(); }
  void add(std::string_view name, std::string_view dtype, std::initializer_list<int64_t> shape, size_t bytes) {
    add(name, dtype, std::span(shape.begin(), shape.size()), bytes);
  }
  void add(std::string_view name, std::string_view dtype, std::span<const int64_t> shape, size_t bytes) {
    json_.key(name).begin_object().member("dtype", dtype).key("shape").begin_array();
    for (const int64_t side : shape) json_.value(side);
    json_.end_array().key("data_offsets").begin_array().value(end_).value(end_ + bytes).end_array().end_object();
    end_ += bytes;
  }
  [[nodiscard]] size_t data_bytes() const { return end_; }
  /// Returns the header's length and its text, padded with blanks.
  [[nodiscard]] std::string take() {
    json_.end_object();
    text_.resize((text_.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
    const uint64_t length = text_.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text_;
  }

 private:
  std::string text_;
  JsonWriter json_{text_};
  size_t end_ = 0;
};

Header describe(const std::vector<Source>& sources, Quantization quantization) {
  const bool per_channel_scales = w8_scaling_of(quantization) == tensor::W8Scaling::kPerChannel;
  Header header;
  for (const auto& [tensor, projection] : sources) {
    const tensor::Shape& shape = tensor.shape;
    if (projection) {
      const int64_t groups = per_channel_scales ? 1 : tensor::w8_groups(shape[1]);
      header.add(tensor.name, "I8", {shape[0], shape[1]}, static_cast<size_t>(shape.elements()));
      header.add(scale_name(tensor.name), "BF16", {shape[0], groups}, static_cast<size_t>(shape[0] * groups * 2));
    } else {
      std::vector<int64_t> sides;
      for (size_t axis = 0; axis < shape.rank(); ++axis) sides.push_back(shape[axis]);
      header.add(tensor.name, stored_name(tensor.dtype), sides, tensor.bytes());
    }
  }
  return header;
}

Result<void> write_weights(const std::vector<Source>& sources, Quantization quantization, std::string header,
                           const fs::path& path) {
  std::ofstream file(path, std::ios::binary);
  const auto write = [&file](const void* data, size_t bytes) {
    file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  };
  write(header.data(), header.size());
  for (const auto& [tensor, projection] : sources) {
    if (projection) {
      const tensor::W8Storage small = tensor::quantize_w8(tensor, w8_scaling_of(quantization));
      write(small.values.data(), small.values.size());
      write(small.scales.data(), small.scales.size() * sizeof(tensor::BFloat16));
    } else {
      write(tensor.data, tensor.bytes());
    }
    if (!file) return write_error(path);
  }
  file.close();
  if (!file) return write_error(path);
  return {};
}

/// Copies the tokenizer and all other files that are not weights.
Result<void> copy_others(const fs::path& folder, const fs::path& output) {
  static constexpr std::array<std::string_view, 8> kWeightFiles = {".safetensors", ".bin",  ".pt",      ".pth",
                                                                   ".gguf",        ".onnx", ".msgpack", ".h5"};
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const fs::path name = entry.path().filename();
    const bool weights = std::ranges::find(kWeightFiles, name.extension().string()) != kWeightFiles.end() ||
                         name.string().ends_with(".index.json");
    if (!entry.is_regular_file() || weights || name == kConfigName) continue;
    std::error_code failure;
    fs::copy_file(entry.path(), output / name, failure);
    if (failure)
      return make_error(ErrorCode::kInternal, "{}: cannot be copied to {}: {}", entry.path().string(), output.string(),
                        failure.message());
  }
  return {};
}

/// Returns config.json with the members that quantization adds or changes, one member per line.
Result<void> write_config(const fs::path& folder, const ModelConfig& config, Quantization quantization,
                          const fs::path& output) {
  const fs::path path = folder / kConfigName;
  const auto source = read_file(path, kMaxConfigBytes);
  if (!source) return source.error();
  JsonDocument document;
  const auto object = parse_object(document, path.string(), *source, kMaxConfigNesting);
  if (!object) return object.error();
  std::string text = "{\n";
  const auto add = [&text](std::string_view key, std::string_view value) {
    text += "  ";
    append_json_string(text, key);
    text.append(": ").append(value);
  };
  for (const auto member : *object) {
    if (member.key == kTiedKey || member.key == kQuantizationKey || member.key == kLegacyQuantizationKey) continue;
    add(member.key, to_json(member.value));
    text += ",\n";
  }
  add(kTiedKey, config.tied_embeddings ? "true" : "false");
  text += ",\n";
  add(kQuantizationKey, quantization_config_json(quantization, names_that_stay(config)));
  text += "\n}\n";
  std::ofstream file(output / kConfigName, std::ios::binary);
  file << text;
  file.close();
  if (!file) return write_error(output / kConfigName);
  return {};
}

Result<void> make_empty_folder(const fs::path& path) {
  std::error_code failure;
  fs::create_directories(path, failure);
  if (failure || !fs::is_directory(path))
    return make_error(ErrorCode::kInvalidArgument, "{}: cannot be created as a folder: {}", path.string(),
                      failure.message());
  if (!fs::is_empty(path))
    return make_error(ErrorCode::kConflict, "{}: is not empty, wanted a new or empty folder", path.string());
  return {};
}

}  // namespace

Result<QuantizeReport> quantize_checkpoint(const fs::path& folder, const fs::path& output, Quantization quantization) {
  CHECK(is_storable(quantization), "nothing is stored as {}", to_string(quantization));
  auto config = read_config(folder);
  if (!config) return config.error();
  if (config->quantization != Quantization::kNone || config->weight_format.method != weights::QuantMethod::kNone)
    return make_error(ErrorCode::kConflict, "{}: has quantized weights already, wanted a model that is not quantized",
                      folder.string());
  const auto checkpoint = Checkpoint::open(folder);
  if (!checkpoint) return checkpoint.error();
  RETURN_IF_ERROR(untie_separate_head(**checkpoint, *config));
  const auto sources = find_sources(**checkpoint, *config, quantization);
  if (!sources) return sources.error();
  RETURN_IF_ERROR(make_empty_folder(output));
  Header header = describe(*sources, quantization);
  QuantizeReport report;
  report.bytes_after = header.data_bytes();
  for (const auto& [tensor, projection] : *sources) {
    report.tensors += projection;
    report.bytes_before += tensor.bytes();
  }
  RETURN_IF_ERROR(write_weights(*sources, quantization, header.take(), output / kWeightsName));
  RETURN_IF_ERROR(copy_others(folder, output));
  RETURN_IF_ERROR(write_config(folder, *config, quantization, output));
  return report;
}

}  // namespace millrace::model
