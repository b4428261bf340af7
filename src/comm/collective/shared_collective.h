#pragma once

#include <memory>
#include <vector>

#include "tensor/collective.h"

/// Collectives between ranks of one process whose backends compute in host memory.
namespace millrace::comm {

class SharedGroup;

/// Makes a group of `size` ranks: 1, 2, 4 or 8. Its ends share ownership.
[[nodiscard]] std::shared_ptr<SharedGroup> make_shared_group(int32_t size);

/// Returns the end of `rank`, each of which is taken once. Its calls use the threads of `backend`, which outlives the
/// end. No call allocates. Destroying an end aborts the group, since the other ranks would wait forever.
[[nodiscard]] std::unique_ptr<tensor::Collective> join_shared_group(std::shared_ptr<SharedGroup> group, int32_t rank,
                                                                    tensor::Backend& backend);

/// Returns the ends of a new group with one rank per backend, in this order.
[[nodiscard]] std::vector<std::unique_ptr<tensor::Collective>> make_shared_collectives(
    const std::vector<tensor::Backend*>& backends);

}  // namespace millrace::comm
