#pragma once

#include "model/field_reader.h"
#include "model/rope.h"

namespace millrace::model {

/// Reads the rotary part of config.json in either spelling. `theta` is the family's default. Faults are recorded in
/// `fields`.
[[nodiscard]] RopeConfig parse_rope(FieldReader& fields, int32_t max_position, double theta);

}  // namespace millrace::model
