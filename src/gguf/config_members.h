#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "gguf/families.h"
#include "gguf/model.h"

namespace millrace::gguf {

inline constexpr int64_t kMaxSize = int64_t{1} << 30;
inline constexpr int64_t kMaxLayers = 1024;

/// The metadata of a model under its family's prefix, and the config.json that is written from it. It remembers which
/// keys were read, so that those which change the arithmetic are refused when none has. The functions throw
/// ErrorException (kData), as those of Metadata do. Borrows the model.
class ConfigMembers {
 public:
  ConfigMembers(const Model& model, const Family& family, JsonWriter& json)
      : model_(model), metadata_(model.metadata()), json_(json), prefix_(std::string(family.name) + '.') {}

  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] const Metadata& metadata() const { return metadata_; }
  [[nodiscard]] JsonWriter& json() { return json_; }
  /// Returns "llama.block_count" for "block_count".
  [[nodiscard]] std::string key(std::string_view name) const { return prefix_ + std::string(name); }

  /// Returns a number of at least 1 that must be there.
  [[nodiscard]] int64_t size(std::string_view name);
  [[nodiscard]] std::optional<int64_t> optional_size(std::string_view name, int64_t min = 1);
  /// Returns a size that may be a list of equal ones, one a layer.
  [[nodiscard]] int64_t layer_size(std::string_view name);
  /// Returns a number as the shortest text that gives the same float32, which files store.
  [[nodiscard]] std::optional<float> number(std::string_view name);
  [[nodiscard]] std::optional<bool> flag(std::string_view name);
  [[nodiscard]] std::optional<std::vector<int64_t>> integers(std::string_view name);
  [[nodiscard]] std::string text(std::string_view name);
  /// Writes a number if the file has it and it is not 0.
  void write_number(std::string_view name, std::string_view member);

  /// Returns whether a layer has a tensor, as "attn_q_norm.weight".
  [[nodiscard]] bool has_in_layer(int64_t layer, std::string_view tensor) const;
  /// Returns whether any layer has it.
  [[nodiscard]] bool has_in_layers(std::string_view tensor) const;
  /// Returns the layers of the model: those of the file but the last ones, which predict further tokens.
  [[nodiscard]] int64_t layer_count();

  /// Refuses keys that change the arithmetic and that nothing has read. A value of 0, 1, false or an empty text changes
  /// nothing, and neither does a key of experts in a model without them.
  void refuse_unread() const;

 private:
  /// Returns the whole key and marks it as read.
  [[nodiscard]] std::string read(std::string_view name);

  const Model& model_;
  const Metadata& metadata_;
  JsonWriter& json_;
  std::string prefix_;
  std::set<std::string, std::less<>> read_;  // names without prefix
};

/// Returns the layers of a model that a file has, without those that predict further tokens.
[[nodiscard]] int64_t layer_count_of(const Model& model, std::string_view family);

}  // namespace millrace::gguf
