#include "tensor/routing.h"

namespace millrace::tensor {

bool Routing::is_plain_softmax() const {
  return *this == Routing{.experts_per_row = experts_per_row, .renormalize = renormalize};
}

}  // namespace millrace::tensor
