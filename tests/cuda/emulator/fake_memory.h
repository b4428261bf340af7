#pragma once

#include <cstddef>
#include <cstdint>

/// What the fake runtime has handed out: device memory of each device and pinned host memory. Thread-safe.
namespace millrace::emulator {

enum class MemoryKind : uint8_t { kPageable, kPinned, kDevice };

/// Memory of each device: MILLRACE_EMULATED_GPU_MIB, or a GiB.
[[nodiscard]] size_t device_bytes();

/// Null when the device has not so much left, or nobody would pin so much at once. The content is noise.
[[nodiscard]] void* allocate_device(int device, size_t bytes);
[[nodiscard]] void* allocate_pinned(size_t bytes);
/// False: nobody allocated that there.
[[nodiscard]] bool release(void* data, MemoryKind kind);
[[nodiscard]] size_t free_bytes(int device);
/// Where `bytes` from `data` on lie; false when they leave an allocation.
[[nodiscard]] bool find_memory_kind(const void* data, size_t bytes, MemoryKind& kind);

}  // namespace millrace::emulator
