#pragma once

/// Expands to its arguments in code for sm_90a alone. Elsewhere such code never runs: the host launches its kernels
/// only on compute capability 9.0, and only if sm_90a was compiled.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MILLRACE_ON_SM_90A(...) __VA_ARGS__
#else
#define MILLRACE_ON_SM_90A(...) __trap()
#endif
