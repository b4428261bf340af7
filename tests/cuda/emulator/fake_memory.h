#pragma once

#include <cstddef>
#include <cstdint>

/// The allocations of the fake runtime: each device's memory and pinned host memory. Thread-safe.
namespace millrace::emulator {

enum class MemoryKind : uint8_t { kPageable, kPinned, kDevice };

/// Returns the memory of each device: MILLRACE_EMULATED_GPU_MIB, or a GiB.
[[nodiscard]] size_t device_bytes();

/// Allocates memory filled with noise. Returns null when the device is short, or when pinned memory exceeds its limit.
[[nodiscard]] void* allocate_device(int device, size_t bytes);
[[nodiscard]] void* allocate_pinned(size_t bytes);
/// Frees an allocation. Returns false when there is none at `data`.
[[nodiscard]] bool release(void* data, MemoryKind kind);
[[nodiscard]] size_t free_bytes(int device);
/// Finds the kind of memory of `bytes` bytes from `data` on. Returns false when they leave an allocation.
[[nodiscard]] bool find_memory_kind(const void* data, size_t bytes, MemoryKind& kind);

}  // namespace millrace::emulator
