#pragma once

#include <simdjson.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "golden_test/gguf_raw.h"

namespace millrace::test {

/// A checkpoint in safetensors that is converted: its config.json and its tensors by their names.
class GgufSource {
 public:
  using element = simdjson::dom::element;

  /// Reads `folder`. `architecture` is the one that files name.
  GgufSource(const std::filesystem::path& folder, std::string architecture);

  [[nodiscard]] const element& config() const { return config_; }
  [[nodiscard]] const std::map<std::string, RawTensor>& tensors() const { return tensors_; }
  [[nodiscard]] const std::string& architecture() const { return architecture_; }

  [[nodiscard]] bool has(const char* member) const {
    element found;
    return config_[member].get(found) == simdjson::SUCCESS && !found.is_null();
  }
  [[nodiscard]] int64_t integer(const char* member) const { return config_[member].get_int64().value(); }
  [[nodiscard]] float number(const char* member) const { return static_cast<float>(double(config_[member])); }
  /// Returns the layers, which some configs do not count but name.
  [[nodiscard]] int64_t layer_count() const {
    return has("num_hidden_layers") ? integer("num_hidden_layers")
                                    : static_cast<int64_t>(config_["layers_block_type"].get_array().size());
  }
  [[nodiscard]] bool is(std::string_view architecture) const { return architecture_ == architecture; }
  [[nodiscard]] bool pairs_rows() const {
    return is("granite") || is("granitemoe") || is("granitehybrid") || is("mistral3") || is("nemotron_h") ||
           is("nemotron_h_moe") || is("smollm3");
  }
  [[nodiscard]] bool is_latent() const { return is("deepseek2") || is("deepseek32") || is("glm-dsa"); }
  [[nodiscard]] bool is_delta_net() const { return is("qwen3next") || tiles_value_heads(); }
  [[nodiscard]] bool tiles_value_heads() const { return is("qwen35") || is("qwen35moe"); }
  [[nodiscard]] bool has_mamba() const {
    return is("granitehybrid") || is("falcon-h1") || is("nemotron_h") || is("nemotron_h_moe");
  }

  /// Returns the rotation of layers of a type, or that of all.
  [[nodiscard]] element rotation_of(const char* type) const {
    if (!has("rope_parameters")) return config_;
    const element all = config_["rope_parameters"];
    element own;
    return all[type].get(own) == simdjson::SUCCESS ? own : all;
  }

  [[nodiscard]] bool has_in_layer(int64_t layer, std::string_view part) const {
    const std::string begin = is("nemotron_h") || is("nemotron_h_moe") ? "backbone" : "model";
    return tensors_.contains(fmt::format("{}.layers.{}.{}", begin, layer, part));
  }

  [[nodiscard]] float number_of(const char* member, size_t index) const {
    return static_cast<float>(double(config_[member].at(index)));
  }

 private:
  std::string architecture_;
  simdjson::dom::parser parser_;
  element config_;
  std::map<std::string, RawTensor> tensors_;
};

}  // namespace millrace::test
