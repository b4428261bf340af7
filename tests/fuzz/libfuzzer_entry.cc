#include "fuzz/targets.h"

/// Compiled once per target, which MILLRACE_FUZZ_TARGET names.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  millrace::fuzz::MILLRACE_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
