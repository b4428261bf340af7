#pragma once

#include <string_view>

#include "model/config.h"
#include "model/field_reader.h"

/// What the families with Mamba-2 have in common.
namespace millrace::model {

inline constexpr int32_t kMaxMambaState = 1024;

/// Reads time_step_limit, and checks that groups divide heads. The keys are those of both counts.
void finish_mamba(FieldReader& fields, std::string_view heads_key, std::string_view groups_key, MambaConfig& mamba);

/// Sets the names of a mixer whose tensors begin with "mamba.".
void set_mamba_names(TensorNames& names);

}  // namespace millrace::model
