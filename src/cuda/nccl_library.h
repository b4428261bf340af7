#pragma once

#include <nccl.h>

#include <string>

#include "base/result.h"

namespace millrace::cuda {

/// What is called of NCCL. It is looked for at run time (libnccl.so.2, or what MILLRACE_NCCL_LIBRARY names), so
/// that neither the server nor its module needs it.
struct NcclLibrary {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  std::string version;  ///< "2.28.9"
};

/// Loaded once per process, and stays. Errors: not there, without a function that is needed, too old.
[[nodiscard]] Result<const NcclLibrary*> nccl_library();

/// What a result says: NCCL's text for it, and for the last failure where there is more to say. `comm` may be null.
[[nodiscard]] std::string describe_nccl(const NcclLibrary& nccl, ncclResult_t result, ncclComm_t comm);

/// Begins a communicator that never blocks the host: what is called returns at once and is under way when its state is
/// no longer ncclInProgress; its state also says that it has failed. Throws std::runtime_error where there is none.
[[nodiscard]] ncclComm_t begin_communicator(const NcclLibrary& nccl, const ncclUniqueId& id, int rank, int rank_count);

}  // namespace millrace::cuda
