#pragma once

#include <memory>

#include "tensor/expert_exchange.h"

/// The exchange of experts between rings whose backends compute in memory of their own, such as a GPU's.
namespace millrace::comm {

/// Returns an exchange for matrices in the memory of `backend`, which outlives it. It copies them to pinned host memory
/// and back, and calls `exchange` for these copies. Work on the device never waits for another ring, only the calling
/// thread does. A backend that computes in host memory gets `exchange` itself.
[[nodiscard]] std::unique_ptr<tensor::ExpertExchange> stage_experts(std::unique_ptr<tensor::ExpertExchange> exchange,
                                                                    tensor::Backend& backend);

}  // namespace millrace::comm
