#include "cuda/module.h"

#include <cstdlib>
#include <cstring>

#include "cuda/device.h"
#include "cuda/nccl_channel.h"

extern "C" __attribute__((visibility("default"))) const millrace::cuda::Module* millrace_cuda_module(
    uint32_t interface_number, const char* version) {
  using namespace millrace::cuda;
  // Streams that share a hardware queue wait for each other, so no two may share one. The runtime reads this when it
  // starts.
  (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  static constexpr Module kModule{list_gpus, free_bytes, nccl_support, make_backend};
  const bool fits = interface_number == kModuleInterface && std::strcmp(version, MILLRACE_VERSION) == 0;
  return fits ? &kModule : nullptr;
}
