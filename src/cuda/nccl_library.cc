#include "cuda/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>

namespace millrace::cuda {
namespace {

constexpr const char* kFile = "libnccl.so.2";
constexpr const char* kVariable = "MILLRACE_NCCL_LIBRARY";
/// The first version whose communicators neither block nor use more blocks of the GPU than configured.
constexpr int kMinVersion = NCCL_VERSION(2, 18, 0);
/// Blocks of a transfer. A receive that waits for data occupies them while GEMMs run.
constexpr int kMaxBlocks = 4;

template <class Function>
void find(void* library, const char* name, Function*& function, std::string& missing) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function == nullptr && missing.empty()) missing = name;
}

std::string version_text(int number) {
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

Result<const NcclLibrary*> load() {
  const char* given = std::getenv(kVariable);
  const std::string file = given != nullptr ? given : kFile;
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return make_error(ErrorCode::kUnavailable, "NCCL cannot be loaded: {}", dlerror());
  static NcclLibrary found;
  std::string missing;
  find(library, "ncclGetVersion", found.get_version, missing);
  find(library, "ncclGetUniqueId", found.get_unique_id, missing);
  find(library, "ncclCommInitRankConfig", found.comm_init_rank_config, missing);
  find(library, "ncclCommGetAsyncError", found.comm_get_async_error, missing);
  find(library, "ncclCommAbort", found.comm_abort, missing);
  find(library, "ncclSend", found.send, missing);
  find(library, "ncclRecv", found.recv, missing);
  find(library, "ncclAllGather", found.all_gather, missing);
  find(library, "ncclGroupStart", found.group_start, missing);
  find(library, "ncclGroupEnd", found.group_end, missing);
  find(library, "ncclGetErrorString", found.get_error_string, missing);
  find(library, "ncclGetLastError", found.get_last_error, missing);
  if (!missing.empty()) return make_error(ErrorCode::kUnavailable, "{} has no {}", file, missing);
  int version = 0;
  if (found.get_version(&version) != ncclSuccess || version < kMinVersion) {
    return make_error(ErrorCode::kUnavailable, "{} is NCCL {}, wanted {} or later", file, version_text(version),
                      version_text(kMinVersion));
  }
  found.version = version_text(version);
  return &found;
}

}  // namespace

Result<const NcclLibrary*> nccl_library() {
  static const Result<const NcclLibrary*> loaded = load();
  return loaded;
}

std::string describe_nccl(const NcclLibrary& nccl, ncclResult_t result, ncclComm_t comm) {
  std::string text = nccl.get_error_string(result);
  const char* last = nccl.get_last_error(comm);
  if (last != nullptr && *last != '\0') text += fmt::format(" ({})", last);
  return text;
}

ncclComm_t begin_communicator(const NcclLibrary& nccl, const ncclUniqueId& id, int rank, int rank_count) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.maxCTAs = kMaxBlocks;
  ncclComm_t comm = nullptr;
  const ncclResult_t result = nccl.comm_init_rank_config(&comm, rank_count, id, rank, &config);
  // A failed communicator exists as well, so that its state can be read and it can be aborted.
  if (result == ncclSuccess || result == ncclInProgress || comm != nullptr) return comm;
  throw std::runtime_error("NCCL: ncclCommInitRankConfig: " + describe_nccl(nccl, result, nullptr));
}

}  // namespace millrace::cuda
