#include "model/weights.h"

#include <cstring>
#include <string>
#include <unordered_map>

#include "base/check.h"
#include "model/tensor_list.h"

namespace millrace::model {
namespace {

using tensor::DType;
using tensor::HostTensor;

template <class Word, class Convert>
void append_converted(const HostTensor& source, std::vector<float>& values, const Convert& convert) {
  const auto count = static_cast<size_t>(source.shape.elements());
  for (size_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, source.data + i * sizeof word, sizeof word);
    values.push_back(convert(word));
  }
}

void append_floats(const HostTensor& source, std::vector<float>& values) {
  switch (source.dtype) {
    case DType::kF32: append_converted<float>(source, values, [](float value) { return value; }); break;
    case DType::kBF16:
      append_converted<tensor::BFloat16>(source, values, [](tensor::BFloat16 value) { return value.to_float(); });
      break;
    case DType::kF16:
      append_converted<tensor::Float16>(source, values, [](tensor::Float16 value) { return value.to_float(); });
      break;
  }
}

/// Hands out the tensors of a span and keeps count.
class Loader {
 public:
  Loader(tensor::Backend& backend, const ProgressFn& progress) : backend_(backend), progress_(progress) {}

  Result<void> resolve(const Checkpoint& checkpoint, const std::vector<TensorSpec>& specs) {
    for (const TensorSpec& spec : specs) {
      Result<HostTensor> found = checkpoint.find(spec.name, spec.shape);
      if (!found) return found.error();
      state_.bytes_total += found->bytes();
      tensors_.emplace(spec.name, std::move(*found));
    }
    state_.tensors_total = specs.size();
    report();
    return {};
  }

  const HostTensor& tensor(std::string_view name) const {
    const auto found = tensors_.find(std::string(name));
    CHECK(found != tensors_.end(), "tensor '{}' is not listed for its stage", name);
    return found->second;
  }

  std::unique_ptr<tensor::DeviceVector> vector(std::initializer_list<std::string> names) {
    std::vector<float> values;
    for (const std::string& name : names) append_floats(tensor(name), values);
    auto vector = backend_.make_vector(values);
    for (const std::string& name : names) count(name);
    return vector;
  }

  std::unique_ptr<tensor::PackedWeight> pack(std::initializer_list<std::string> names) {
    std::vector<HostTensor> parts;
    for (const std::string& name : names) parts.push_back(tensor(name));
    auto weight = backend_.pack(parts);
    for (const std::string& name : names) count(name);
    return weight;
  }

  std::unique_ptr<tensor::PackedWeight> pack_gate_up(const std::string& gate, const std::string& up) {
    auto weight = backend_.pack_gate_up(tensor(gate), tensor(up));
    count(gate);
    count(up);
    return weight;
  }

  /// Marks a tensor as done.
  void count(std::string_view name) {
    ++state_.tensors_done;
    state_.bytes_done += tensor(name).bytes();
    report();
  }

  [[nodiscard]] uint64_t total_bytes() const { return state_.bytes_total; }

 private:
  void report() const {
    if (progress_) progress_(state_);
  }

  tensor::Backend& backend_;
  const ProgressFn& progress_;
  std::unordered_map<std::string, HostTensor> tensors_;
  LoadProgress state_;
};

LayerWeights load_layer(Loader& loader, const ModelConfig& config, int32_t layer) {
  const auto name = [&](std::string_view part) { return layer_tensor_name(layer, part); };
  LayerWeights weights;
  weights.input_norm = loader.vector({name("input_layernorm.weight")});
  weights.qkv = loader.pack(
      {name("self_attn.q_proj.weight"), name("self_attn.k_proj.weight"), name("self_attn.v_proj.weight")});
  if (config.qkv_bias)
    weights.qkv_bias = loader.vector(
        {name("self_attn.q_proj.bias"), name("self_attn.k_proj.bias"), name("self_attn.v_proj.bias")});
  if (config.qk_norm) {
    weights.q_norm = loader.vector({name("self_attn.q_norm.weight")});
    weights.k_norm = loader.vector({name("self_attn.k_norm.weight")});
  }
  weights.output = loader.pack({name("self_attn.o_proj.weight")});
  if (config.output_bias) weights.output_bias = loader.vector({name("self_attn.o_proj.bias")});
  weights.mlp_norm = loader.vector({name("post_attention_layernorm.weight")});
  weights.gate_up = loader.pack_gate_up(name("mlp.gate_proj.weight"), name("mlp.up_proj.weight"));
  weights.down = loader.pack({name("mlp.down_proj.weight")});
  return weights;
}

}  // namespace

Result<StageWeights> load_weights(const Checkpoint& checkpoint, const ModelConfig& config, StageSpan span,
                                  tensor::Backend& backend, const ProgressFn& progress) {
  Loader loader(backend, progress);
  RETURN_IF_ERROR(loader.resolve(checkpoint, stage_tensors(config, span)));
  StageWeights weights;
  weights.checkpoint_bytes = loader.total_bytes();
  if (span.first) {
    weights.embedding = backend.make_embedding(loader.tensor(kEmbeddingName));
    loader.count(kEmbeddingName);
  }
  for (int32_t layer = span.layers.begin; layer < span.layers.end; ++layer)
    weights.layers.push_back(load_layer(loader, config, layer));
  if (!span.last) return weights;
  weights.final_norm = loader.vector({std::string(kFinalNormName)});
  const HostTensor& head = loader.tensor(head_name(config));
  weights.head = backend.pack({&head, 1});
  if (!(span.first && config.tied_embeddings)) loader.count(head_name(config));
  return weights;
}

}  // namespace millrace::model
