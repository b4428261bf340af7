#include "tensor/sampling.h"

#include "base/check.h"

namespace millrace::tensor {

std::string_view to_string(LogitFault fault) {
  switch (fault) {
    case LogitFault::kNone: return "a distribution";
    case LogitFault::kNan: return "a NaN";
    case LogitFault::kInfinity: return "+infinity";
    case LogitFault::kAllNegativeInfinity: return "only -infinity";
  }
  CHECK(false, "logit fault {}", static_cast<int>(fault));
}

}  // namespace millrace::tensor
