#pragma once

#include <span>
#include <string_view>

#include "gguf/model.h"

namespace millrace::gguf {

/// What a family's files have of their own.
struct Family {
  std::string_view name;          ///< general.architecture
  std::string_view architecture;  ///< in config.json
  bool pairs_rows = false;        ///< rows of q and k are stored as pairs that rotate together
  bool is_moe = false;            ///< experts replace the feed-forward blocks
  bool is_mixtral = false;        ///< experts are named as Mixtral's
};

/// Returns the family of a model. Throws ErrorException (kData) for one that is not known, with those that are.
[[nodiscard]] const Family& family_of(const Model& model);

}  // namespace millrace::gguf
