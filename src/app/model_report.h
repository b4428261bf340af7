#pragma once

#include "app/simulate.h"
#include "base/result.h"

namespace millrace::app {

/// Prints how many stages of the described devices the model of `--model-path` needs, how its layers are divided, and
/// which contexts fit. Writes the same to `--result-file`. Errors name the file or flag.
[[nodiscard]] Result<void> report_model(const SimulateFlags& flags);

}  // namespace millrace::app
