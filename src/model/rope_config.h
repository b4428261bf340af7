#pragma once

#include <optional>
#include <string_view>

#include "model/field_reader.h"
#include "model/rope.h"

namespace millrace::model {

/// How a family spells the rotary part of config.json, and its defaults.
struct RopeReading {
  double theta = 1e4;
  std::string_view theta_key = "rope_theta";
  int32_t max_position = 0;  ///< max_position_embeddings
  int32_t head_dim = 0;
  /// The default of partial_rotary_factor. Without one the family rotates whole heads, and another value is a fault.
  std::optional<double> partial;
  bool is_scaled = true;             ///< rope_scaling applies; otherwise only the base is read
  bool has_alpha = false;            ///< dynamic with alpha is known: the base times alpha^(head_dim / (head_dim - 2))
  bool has_longrope = false;         ///< longrope is known, also by the names su and yarn
  std::string_view layer_type = {};  ///< the member of rope_parameters that is read where these differ by layer type
};

/// Reads the rotary part of config.json in either spelling: rope_theta and rope_scaling, or rope_parameters. Faults are
/// recorded in `fields`.
[[nodiscard]] RopeConfig parse_rope(FieldReader& fields, const RopeReading& reading);

}  // namespace millrace::model
