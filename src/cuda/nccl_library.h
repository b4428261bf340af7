#pragma once

#include <nccl.h>

#include <string>

#include "base/result.h"

namespace millrace::cuda {

/// The functions of NCCL in use. The library (libnccl.so.2, or the value of MILLRACE_NCCL_LIBRARY) is loaded at run
/// time, so that neither the server nor its module links it.
struct NcclLibrary {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  std::string version;  ///< e.g. "2.28.9"
};

/// Loads the library once per process, for good. Errors: it is missing, lacks a function, or is too old.
[[nodiscard]] Result<const NcclLibrary*> nccl_library();

/// Returns NCCL's text for a result, and for the last failure if there is one. `comm` may be null.
[[nodiscard]] std::string describe_nccl(const NcclLibrary& nccl, ncclResult_t result, ncclComm_t comm);

/// Creates a communicator that never blocks the host. Its calls return at once and are under way when its state is no
/// longer ncclInProgress. The state also reports failures. Throws std::runtime_error when it cannot be created.
[[nodiscard]] ncclComm_t begin_communicator(const NcclLibrary& nccl, const ncclUniqueId& id, int rank, int rank_count);

}  // namespace millrace::cuda
