#pragma once

#include <cstddef>
#include <span>

#include "model/code_parts.h"
#include "weights/stored_format.h"

namespace millrace::model {

/// How the experts of a layer are packed. All of the layer's experts decide, whichever ranks have them, so that a row
/// has the same bits on every count of ranks. Plain data.
class ExpertFormats {
 public:
  /// Decides by the formats of all experts, [experts, parts], where the parts are those of expert_parts().
  ExpertFormats(std::span<const weights::StoredFormat> formats, size_t parts, const PackingRules& rules);

  /// Returns the bits that all weights of all experts have.
  [[nodiscard]] PackedBits bits() const { return bits_; }
  /// Returns whether gates and ups in k4 keep the codes in which they are stored. Where codes can be mixed, an expert
  /// whose codes do not fit is quantized alone.
  [[nodiscard]] bool keeps_inputs() const { return keeps_inputs_; }
  /// Returns whether downs in k4 keep theirs, likewise.
  [[nodiscard]] bool keeps_downs() const { return keeps_downs_; }

 private:
  PackedBits bits_ = PackedBits::kCompute;
  bool keeps_inputs_ = false;
  bool keeps_downs_ = false;
};

}  // namespace millrace::model
