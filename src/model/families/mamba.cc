#include "model/families/mamba.h"

#include <limits>

namespace millrace::model {

void finish_mamba(FieldReader& fields, std::string_view heads_key, std::string_view groups_key, MambaConfig& mamba) {
  if (mamba.head_count % mamba.group_count != 0)
    fields.fail_with("{} {} is not a multiple of {} {}", heads_key, mamba.head_count, groups_key, mamba.group_count);
  mamba.max_step = std::numeric_limits<float>::infinity();
  const std::vector<double> limits = fields.unbounded_numbers("time_step_limit", 0.0);
  if (limits.size() == 2) {
    mamba.min_step = static_cast<float>(limits[0]);
    mamba.max_step = static_cast<float>(limits[1]);
    if (limits[0] > limits[1])
      fields.fail_with("time_step_limit is {} to {}, wanted the lower bound first", limits[0], limits[1]);
  } else if (!limits.empty()) {
    fields.fail_with("time_step_limit has {} numbers, wanted a lower and an upper bound", limits.size());
  }
}

void set_mamba_names(TensorNames& names) {
  names.mixer_input = "mamba.in_proj";
  names.mixer_conv = "mamba.conv1d";
  names.mixer_decay = "mamba.A_log";
  names.mixer_step_bias = "mamba.dt_bias";
  names.mixer_skip = "mamba.D";
  names.mixer_norm = "mamba.norm";
  names.mixer_output = "mamba.out_proj";
}

}  // namespace millrace::model
