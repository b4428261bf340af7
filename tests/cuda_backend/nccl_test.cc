// NCCL itself, as one GPU can show it: a communicator of one rank that sends to itself. On a GPU the library that is
// installed, elsewhere the fake.

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/result.h"
#include "cuda/error.h"
#include "cuda/handles.h"
#include "cuda/memory.h"
#include "cuda/nccl_library.h"
#include "support/skip.h"

using namespace millrace;
using namespace millrace::cuda;
using namespace std::chrono_literals;

namespace {

/// Waits until the last call is under way. The test's time limit ends a wait that never returns.
void settle(const NcclLibrary& nccl, ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    REQUIRE(nccl.comm_get_async_error(comm, &state) == ncclSuccess);
    std::this_thread::sleep_for(100us);
  }
  REQUIRE(state == ncclSuccess);
}

void require_accepted(ncclResult_t result) {
  REQUIRE((result == ncclSuccess || result == ncclInProgress));
}

}  // namespace

TEST_CASE("NCCL: a rank that sends to itself receives what it sent") {
#ifdef MILLRACE_FAKE_NCCL
  REQUIRE(setenv("MILLRACE_NCCL_LIBRARY", MILLRACE_FAKE_NCCL, 1) == 0);
#endif
  const auto library = nccl_library();
  if (library.has_error()) SKIP_TEST(library.error().message.c_str());
  const NcclLibrary& nccl = **library;
  check(cudaSetDevice(0), "cudaSetDevice");
  ncclUniqueId id;
  REQUIRE(nccl.get_unique_id(&id) == ncclSuccess);
  ncclComm_t comm = begin_communicator(nccl, id, 0, 1);
  settle(nccl, comm);
  const Stream stream;
  for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{9} << 20}) {
    CAPTURE(bytes);
    const tensor::Buffer from = allocate_device(0, bytes, stream);
    const tensor::Buffer into = allocate_device(0, bytes, stream);
    check(cudaMemsetAsync(from.data(), 0x5A, bytes, stream.get()), "cudaMemset");
    REQUIRE(nccl.group_start() == ncclSuccess);
    require_accepted(nccl.send(from.data(), bytes, ncclChar, 0, comm, stream.get()));
    require_accepted(nccl.recv(into.data(), bytes, ncclChar, 0, comm, stream.get()));
    require_accepted(nccl.group_end());
    settle(nccl, comm);
    std::vector<std::byte> found(bytes);
    check(cudaMemcpyAsync(found.data(), into.data(), bytes, cudaMemcpyDefault, stream.get()), "cudaMemcpyAsync");
    stream.synchronize();
    REQUIRE(std::all_of(found.begin(), found.end(), [](std::byte byte) { return byte == std::byte{0x5A}; }));
  }
  require_accepted(nccl.comm_abort(comm));
}
