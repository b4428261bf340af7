// One op's kernels, compiled for the emulator; the build says which.
#include MILLRACE_CUDA_OP
