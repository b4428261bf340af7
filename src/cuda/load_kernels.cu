#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace millrace::cuda {

void load_kernels() {
#ifndef MILLRACE_EMULATED_CUDA
  for (const KernelEntry* each = KernelEntry::newest; each != nullptr; each = each->before) {
    cudaFuncAttributes found{};
    check_launch("of this module", "load", cudaFuncGetAttributes(&found, each->function));
  }
#endif
}

}  // namespace millrace::cuda
