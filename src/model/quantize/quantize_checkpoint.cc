#include "model/quantize/quantize_checkpoint.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <unordered_set>

#include "base/check.h"
#include "base/json.h"
#include "model/adapt_config.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/families/read_config.h"
#include "model/field_reader.h"
#include "model/mapped_file.h"
#include "model/recurrent_tensors.h"
#include "model/tensor_list.h"
#include "tensor/code_matrix.h"

namespace millrace::model {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWeightsName = "model.safetensors";
constexpr std::string_view kConfigName = "config.json";
constexpr std::string_view kTiedKey = "tie_word_embeddings";
constexpr size_t kHeaderAlignment = 8;
constexpr std::string_view kPackedSuffix = ".weight_packed";
constexpr std::string_view kPackedScaleSuffix = ".weight_scale";
constexpr std::string_view kPackedShapeSuffix = ".weight_shape";

/// A tensor of the model, and whether it is quantized.
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
  const bool of_compressed_tensors = quantization == Quantization::kW8A8Int8 || quantization == Quantization::kW4;
  return spec.keeps_precision || (of_compressed_tensors && spec.name == kHeadName);
}

/// Returns the linear layers that stay unquantized, by their compressed-tensors names: routers, gates of shared
/// experts, expansions of latents, indexers, what controls recurrent states, and the head, which may be tied and have
/// no tensor.
std::vector<std::string> names_that_stay(const ModelConfig& config) {
  const auto module = [](std::string_view tensor) { return std::string(tensor.substr(0, tensor.rfind('.'))); };
  std::vector<std::string> names = {module(kHeadName)};
  for (int32_t layer = 0; layer < config.layer_count(); ++layer) {
    if (const auto& latent = config.layer(layer).attention.latent) {
      names.push_back(config.names.plain(layer, config.names.latent_expansion));
      if (latent->indexer && !latent->indexer->is_shared) {
        for (const std::string_view part :
             {config.names.index_query, config.names.index_key, config.names.index_weights})
          names.push_back(config.names.plain(layer, part));
      }
    }
    if (config.layer(layer).recurrent) {
      const RecurrentTensors tensors = recurrent_tensors(config, layer);
      for (const TensorSpec& spec : tensors.steps) {
        std::string name = module(spec.stored_name());
        if (names.back() != name) names.push_back(std::move(name));
      }
      for (const auto* factor : {&tensors.decay_a, &tensors.decay_b, &tensors.gate_a, &tensors.gate_b}) {
        if (*factor) names.push_back(module((*factor)->name));
      }
    }
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
  const std::vector<TensorSpec> specs = stage_tensors(config, whole);
  std::unordered_set<std::string> plain;  // tensors a part of which stays unquantized
  for (const TensorSpec& spec : specs) {
    if (!spec.projection || stays(spec, quantization)) plain.insert(spec.stored_name());
  }
  std::unordered_set<std::string> known;  // one tensor may hold several weights
  for (const TensorSpec& spec : specs) {
    if (!known.insert(spec.stored_name()).second) continue;
    if (spec.stored_shape().rank() > 2 && !spec.part->joined)
      return make_error(ErrorCode::kInvalidArgument,
                        "{}: tensor '{}' holds several matrices {}, wanted one tensor for each to quantize",
                        checkpoint.folder().string(), spec.stored_name(), spec.stored_shape().to_string());
    auto tensor = checkpoint.find(spec.stored_name(), spec.stored_shape());
    if (!tensor) return tensor.error();
    const bool projection = !plain.contains(spec.stored_name());
    if (projection && quantization == Quantization::kW4 && spec.shape[1] % tensor::kCodeUnit != 0)
      return make_error(ErrorCode::kInvalidArgument, "tensor '{}' has {} inputs, wanted a multiple of {} for 4 bits",
                        spec.name, spec.shape[1], tensor::kCodeUnit);
    sources.push_back({std::move(*tensor), projection});
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

/// Adds what stands for a quantized matrix, in the order in which it is written.
void describe_quantized(Header& header, const tensor::HostTensor& tensor, Quantization quantization) {
  const int64_t rows = tensor.shape[0];
  const int64_t cols = tensor.shape[1];
  if (quantization == Quantization::kW4) {
    const int64_t groups = cols / tensor::kCodeUnit;
    header.add(packed_name(tensor.name, kPackedSuffix), "I32", {rows, cols / 8}, static_cast<size_t>(rows * cols / 2));
    header.add(packed_name(tensor.name, kPackedScaleSuffix), "BF16", {rows, groups},
               static_cast<size_t>(rows * groups * 2));
    header.add(packed_name(tensor.name, kPackedShapeSuffix), "I64", {2}, 2 * sizeof(int64_t));
    return;
  }
  const bool per_channel_scales = w8_scaling_of(quantization) == tensor::W8Scaling::kPerChannel;
  const int64_t groups = per_channel_scales ? 1 : tensor::w8_groups(cols);
  header.add(tensor.name, "I8", {rows, cols}, static_cast<size_t>(rows * cols));
  header.add(scale_name(tensor.name), "BF16", {rows, groups}, static_cast<size_t>(rows * groups * 2));
}

Header describe(const std::vector<Source>& sources, Quantization quantization) {
  Header header;
  for (const auto& [tensor, projection] : sources) {
    if (projection) {
      describe_quantized(header, tensor, quantization);
    } else {
      std::vector<int64_t> sides;
      for (size_t axis = 0; axis < tensor.shape.rank(); ++axis) sides.push_back(tensor.shape[axis]);
      header.add(tensor.name, stored_name(tensor.dtype), sides, tensor.bytes());
    }
  }
  return header;
}

/// Sums up how far quantized weights are from the original ones.
class ErrorSum {
 public:
  /// Adds a matrix, of whose rows `read(row, out)` returns the quantized weights.
  template <class ReadRow>
  void add(const tensor::HostTensor& tensor, const ReadRow& read) {
    const int64_t cols = tensor.shape[1];
    std::vector<float> original(static_cast<size_t>(cols));
    std::vector<float> quantized(static_cast<size_t>(cols));
    double errors = 0.0;
    double squares = 0.0;
    for (int64_t row = 0; row < tensor.shape[0]; ++row) {
      tensor::read_floats(tensor, row * cols, cols, original.data());
      read(row, quantized.data());
      for (size_t k = 0; k < original.size(); ++k) {
        const double error = double{quantized[k]} - double{original[k]};
        errors += error * error;
        squares += double{original[k]} * double{original[k]};
      }
    }
    errors_ += errors;
    squares_ += squares;
    tensors_.push_back({.tensor = std::string(tensor.name), .error = ratio(errors, squares)});
  }
  void write_to(QuantizeReport& report) const {
    report.error = ratio(errors_, squares_);
    const auto worst = std::ranges::max_element(tensors_, {}, &TensorError::error);
    if (worst != tensors_.end()) {
      report.worst_error = worst->error;
      report.worst_tensor = worst->tensor;
    }
    report.tensor_errors = tensors_;
  }

 private:
  static double ratio(double errors, double squares) { return squares > 0.0 ? std::sqrt(errors / squares) : 0.0; }

  double errors_ = 0.0;
  double squares_ = 0.0;
  std::vector<TensorError> tensors_;
};

/// Writes the file of weights, tensor by tensor.
class WeightsWriter {
 public:
  WeightsWriter(const fs::path& path, Quantization quantization)
      : path_(path), quantization_(quantization), file_(path, std::ios::binary) {}

  Result<ErrorSum> run(const std::vector<Source>& sources, const std::string& header) {
    write(header.data(), header.size());
    for (const auto& [tensor, projection] : sources) {
      if (!projection) {
        write(tensor.data, tensor.bytes());
      } else if (quantization_ == Quantization::kW4) {
        write_w4(tensor);
      } else {
        write_w8(tensor);
      }
      if (!file_) return write_error(path_);
    }
    file_.close();
    if (!file_) return write_error(path_);
    return errors_;
  }

 private:
  void write(const void* data, size_t bytes) {
    file_.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  }
  void write_w4(const tensor::HostTensor& tensor) {
    const tensor::CodeStorage small = tensor::quantize_w4(tensor);
    write(small.codes.data(), small.codes.size());
    write(small.scales.data(), small.scales.size());
    const std::array<int64_t, 2> shape = {small.rows, small.cols};
    write(shape.data(), sizeof(shape));
    const tensor::CodeMatrix matrix = small.view();
    errors_.add(tensor, [&](int64_t row, float* out) { tensor::read_floats(matrix, row, 0, matrix.cols, out); });
  }
  void write_w8(const tensor::HostTensor& tensor) {
    const tensor::W8Storage small = tensor::quantize_w8(tensor, w8_scaling_of(quantization_));
    write(small.values.data(), small.values.size());
    write(small.scales.data(), small.scales.size() * sizeof(tensor::BFloat16));
    const int64_t cols = tensor.shape[1];
    const int64_t groups = small.view().groups();
    errors_.add(tensor, [&](int64_t row, float* out) {
      for (int64_t k = 0; k < cols; ++k) {
        const int64_t group = small.per_channel_scales ? 0 : k / tensor::kW8Group;
        const float scale = small.scales[static_cast<size_t>(row * groups + group)].to_float();
        out[k] = scale * static_cast<float>(small.values[static_cast<size_t>(row * cols + k)]);
      }
    });
  }

  const fs::path path_;
  const Quantization quantization_;
  std::ofstream file_;
  ErrorSum errors_;
};

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
  const auto checkpoint = Checkpoint::open(folder);
  if (!checkpoint) return checkpoint.error();
  RETURN_IF_ERROR(settle_weight_format(**checkpoint, *config));
  if (config->quantization != Quantization::kNone || config->weight_format.method != weights::QuantMethod::kNone)
    return make_error(ErrorCode::kConflict, "{}: has quantized weights already, wanted a model that is not quantized",
                      folder.string());
  RETURN_IF_ERROR(adapt_to_checkpoint(**checkpoint, *config));
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
  const auto errors = WeightsWriter(output / kWeightsName, quantization).run(*sources, header.take());
  if (!errors) return errors.error();
  errors->write_to(report);
  RETURN_IF_ERROR(copy_others(folder, output));
  RETURN_IF_ERROR(write_config(folder, *config, quantization, output));
  return report;
}

}  // namespace millrace::model
