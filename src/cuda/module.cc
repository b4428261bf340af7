#include "cuda/module.h"

#include <cstdlib>
#include <cstring>

#include "cuda/device.h"

extern "C" __attribute__((visibility("default"))) const millrace::cuda::Module* millrace_cuda_module(
    uint32_t interface_number, const char* version) {
  using namespace millrace::cuda;
  // Streams that share one of the runtime's queues to the device wait for each other: let no two share one. Read when
  // the runtime begins.
  (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  static constexpr Module kModule{list_gpus, free_bytes, make_backend};
  const bool fits = interface_number == kModuleInterface && std::strcmp(version, MILLRACE_VERSION) == 0;
  return fits ? &kModule : nullptr;
}
