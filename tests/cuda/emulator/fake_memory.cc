#include "cuda/emulator/fake_memory.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace millrace::emulator {
namespace {

constexpr size_t kAlignment = 256;
constexpr int kNoise = 0xCD;
constexpr size_t kMaxPinnedBytes = size_t{8} << 30;

struct Allocation {
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
  int device = 0;
};

struct Registry {
  std::mutex mutex;
  std::map<const std::byte*, Allocation> allocations;
  std::map<int, size_t> used;
};

// Never destroyed: threads of streams may outlive main.
Registry& registry() {
  static auto* const kept = new Registry;
  return *kept;
}

void* allocate(size_t bytes, MemoryKind kind, int device) {
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  auto* data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
  std::memset(data, kNoise, rounded);
  registry().allocations[data] = {bytes, kind, device};
  return data;
}

}  // namespace

size_t device_bytes() {
  static const char* const given = std::getenv("MILLRACE_EMULATED_GPU_MIB");
  return (given == nullptr ? size_t{1024} : static_cast<size_t>(std::atoi(given))) << 20;
}

void* allocate_device(int device, size_t bytes) {
  const std::lock_guard lock(registry().mutex);
  size_t& used = registry().used[device];
  if (bytes > device_bytes() - used) return nullptr;
  used += bytes;
  return allocate(bytes, MemoryKind::kDevice, device);
}

void* allocate_pinned(size_t bytes) {
  if (bytes > kMaxPinnedBytes) return nullptr;
  const std::lock_guard lock(registry().mutex);
  return allocate(bytes, MemoryKind::kPinned, 0);
}

bool release(void* data, MemoryKind kind) {
  {
    const std::lock_guard lock(registry().mutex);
    const auto found = registry().allocations.find(static_cast<std::byte*>(data));
    if (found == registry().allocations.end() || found->second.kind != kind) return false;
    if (kind == MemoryKind::kDevice) registry().used[found->second.device] -= found->second.bytes;
    registry().allocations.erase(found);
  }
  std::free(data);
  return true;
}

size_t free_bytes(int device) {
  const std::lock_guard lock(registry().mutex);
  return device_bytes() - registry().used[device];
}

bool find_memory_kind(const void* data, size_t bytes, MemoryKind& kind) {
  const auto* address = static_cast<const std::byte*>(data);
  const std::lock_guard lock(registry().mutex);
  auto after = registry().allocations.upper_bound(address);
  if (after != registry().allocations.begin()) {
    const auto& [begin, allocation] = *--after;
    if (address < begin + allocation.bytes) {
      kind = allocation.kind;
      return address + bytes <= begin + allocation.bytes;
    }
  }
  kind = MemoryKind::kPageable;
  return true;
}

}  // namespace millrace::emulator
