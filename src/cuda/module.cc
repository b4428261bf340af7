#include "cuda/module.h"

#include <cstring>

#include "cuda/device.h"

extern "C" __attribute__((visibility("default"))) const millrace::cuda::Module* millrace_cuda_module(
    uint32_t interface_number, const char* version) {
  using namespace millrace::cuda;
  static constexpr Module kModule{list_gpus, make_backend};
  const bool fits = interface_number == kModuleInterface && std::strcmp(version, MILLRACE_VERSION) == 0;
  return fits ? &kModule : nullptr;
}
