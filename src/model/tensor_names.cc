#include "model/tensor_names.h"

#include <fmt/format.h>

namespace millrace::model {

std::string TensorNames::plain(int32_t layer, std::string_view part) const {
  return fmt::format("{}{}.{}", layers, layer, part);
}

std::string TensorNames::weight(int32_t layer, std::string_view part) const {
  return fmt::format("{}{}.{}.weight", layers, layer, part);
}

std::string TensorNames::bias(int32_t layer, std::string_view part) const {
  return fmt::format("{}{}.{}.bias", layers, layer, part);
}

std::string TensorNames::norm_before_layer(int32_t layer, int32_t layer_count) const {
  if (embedding_norm.empty()) {
    if (layer == layer_count) return std::string(final_norm.substr(0, final_norm.rfind('.')));
    return plain(layer, attention_norm);
  }
  if (layer == 0) return std::string(embedding_norm);
  return plain(layer - 1, attention_norm);
}

std::string layer_tensor_name(int32_t layer, std::string_view part) {
  return TensorNames{}.plain(layer, part);
}

}  // namespace millrace::model
