#pragma once

#include <vector>

#include "cuda/coded_weight.h"
#include "cuda/kernels.h"
#include "tensor/slices.h"
#include "tensor/sum_shards.h"

/// The shards of a weight's columns, as a rank has them and as kernels read them.
namespace millrace::cuda {

/// Returns a rank's shards as ranges of its own terms.
[[nodiscard]] DeviceShards own_shards(const tensor::SumShards& shards);
/// Returns the columns of the packed matrix that the shards of x become: each begins with a step.
[[nodiscard]] DeviceShards packed_shards(const DeviceShards& shards);
/// Returns a matrix whose columns are those of `part`, with zeros before shards that begin inside a step.
[[nodiscard]] tensor::HostSlice spread_columns(const tensor::HostTensor& part, const DeviceShards& from,
                                               const DeviceShards& to);
/// Returns the columns of a packed matrix as those of the matrix that is packed.
[[nodiscard]] std::vector<PackedColumns> packed_columns(const DeviceShards& from, const DeviceShards& to);

}  // namespace millrace::cuda
