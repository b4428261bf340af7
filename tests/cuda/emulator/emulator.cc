#include "cuda/emulator/emulator.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <boost/context/detail/fcontext.hpp>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>

#include "cuda/emulator/block.h"
#include "cuda/emulator/stacks.h"

namespace millrace::emulator {
namespace {

namespace context = boost::context::detail;

constexpr size_t kStackShift = 17 * 64;
constexpr size_t kSharedAlignment = 1024;
constexpr size_t kChunkBytes = 16;
constexpr size_t kWarpgroupWarps = kWarpgroupThreads / kWarpLanes;
constexpr uint32_t kMaxBlocksInX = 0x7FFFFFFF;
constexpr uint32_t kMaxBlocksInYOrZ = 65535;
constexpr size_t kMaxSharedBytes = 227 << 10;  // of compute capability 9.0
constexpr uint32_t kFullMask = 0xFFFFFFFFu;
/// The content of unwritten shared memory: NaNs in every floating-point type.
constexpr int kUnwritten = 0xFF;

std::atomic<uint64_t> order_seed{1};

/// A xorshift64* generator, which suffices to vary the order of turns.
class Order {
 public:
  explicit Order(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u | 1) {}
  size_t below(size_t bound) {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return static_cast<size_t>((state_ * 0x2545F4914F6CDD1Du) >> 32) * bound >> 32;
  }

 private:
  uint64_t state_;
};

enum class Wait : uint8_t { kNone, kBlock, kWarp, kWarpgroup, kCluster, kBarrier, kEnded };

struct Fiber : Thread {
  context::fcontext_t context = nullptr;
  std::byte* stack = nullptr;
  void* fake_stack = nullptr;  // the address sanitizer's
  Wait wait = Wait::kNone;
};

struct Warp {
  const char* operation = nullptr;
  uint32_t arrived = 0;
  Collective lanes;
};

struct Warpgroup {
  const char* operation = nullptr;
  size_t arrived = 0;
  WarpgroupCollective threads;
};

struct RunningCluster;

struct RunningBlock : Block {
  const Launch* launch = nullptr;
  RunningCluster* cluster = nullptr;
  std::unique_ptr<std::byte, decltype(&std::free)> memory{nullptr, &std::free};
  size_t room = 0;  // bytes of `memory`
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;  // whole ones
  std::vector<size_t> runnable;
  size_t ended = 0;
  size_t at_barrier = 0;
  std::source_location barrier;
  Fiber* running = nullptr;
  context::fcontext_t scheduler = nullptr;
  void* scheduler_fake_stack = nullptr;
  const void* scheduler_stack = nullptr;
  size_t scheduler_stack_bytes = 0;
  std::string fault;
};

struct RunningCluster {
  std::vector<RunningBlock> blocks;
  std::vector<std::function<void()>> copies;  // started, not there yet
  size_t at_barrier = 0;
};

/// What host threads need to run kernels. It outlives the thread, since each stream has one of its own.
struct Workshop {
  Stacks stacks;
  RunningCluster cluster;
};

/// A thread's workshop while the thread lives.
class Tenancy {
 public:
  Tenancy() {
    const std::lock_guard lock(mutex());
    if (!vacant().empty()) {
      workshop_ = std::move(vacant().back());
      vacant().pop_back();
    }
    if (workshop_ == nullptr) workshop_ = std::make_unique<Workshop>();
  }
  Tenancy(const Tenancy&) = delete;
  ~Tenancy() {
    const std::lock_guard lock(mutex());
    vacant().push_back(std::move(workshop_));
  }
  Workshop& operator*() const { return *workshop_; }

 private:
  // Never destroyed: threads of streams may outlive main.
  static std::mutex& mutex() {
    static auto* const kept = new std::mutex;
    return *kept;
  }
  static std::vector<std::unique_ptr<Workshop>>& vacant() {
    static auto* const kept = new std::vector<std::unique_ptr<Workshop>>;
    return *kept;
  }
  std::unique_ptr<Workshop> workshop_;
};

thread_local RunningBlock* current = nullptr;

void begin_switch([[maybe_unused]] void** save, [[maybe_unused]] const void* bottom, [[maybe_unused]] size_t bytes) {
#ifdef MILLRACE_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(save, bottom, bytes);
#endif
}
void end_switch([[maybe_unused]] void* saved, [[maybe_unused]] const void** bottom, [[maybe_unused]] size_t* bytes) {
#ifdef MILLRACE_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(saved, bottom, bytes);
#endif
}

/// Switches to the scheduler. Returns at this fiber's next turn; with `for_good` never.
void leave(RunningBlock& block, bool for_good) {
  Fiber& fiber = *block.running;
  begin_switch(for_good ? nullptr : &fiber.fake_stack, block.scheduler_stack, block.scheduler_stack_bytes);
  const context::transfer_t back = context::jump_fcontext(block.scheduler, nullptr);
  end_switch(fiber.fake_stack, &block.scheduler_stack, &block.scheduler_stack_bytes);
  block.scheduler = back.fctx;
}

void fiber_main(context::transfer_t from) {
  RunningBlock& block = *current;
  end_switch(nullptr, &block.scheduler_stack, &block.scheduler_stack_bytes);
  block.scheduler = from.fctx;
  try {
    block.launch->body();
  } catch (const std::exception& error) {
    block.fault = error.what();
  }
  block.running->wait = Wait::kEnded;
  ++block.ended;
  leave(block, true);
}

void enter(RunningBlock& block, Fiber& fiber) {
  block.running = &fiber;
  begin_switch(&block.scheduler_fake_stack, fiber.stack, kStackBytes);
  fiber.context = context::jump_fcontext(fiber.context, nullptr).fctx;
  end_switch(block.scheduler_fake_stack, nullptr, nullptr);
}

std::string place(const std::source_location& where) {
  const std::string_view file = where.file_name();
  return fmt::format("{}:{}", file.substr(file.rfind('/') + 1), where.line());
}

std::string stuck(const RunningBlock& block) {
  std::string text = fmt::format("{} of {} threads wait at __syncthreads", block.at_barrier, block.fibers.size());
  if (block.at_barrier > 0) text += fmt::format(" ({})", place(block.barrier));
  for (size_t w = 0; w < block.warps.size(); ++w) {
    const Warp& warp = block.warps[w];
    if (warp.arrived == 0) continue;
    text += fmt::format(", lanes {:#x} of warp {} at {}", warp.arrived, w, warp.operation);
  }
  for (size_t g = 0; g < block.warpgroups.size(); ++g) {
    const Warpgroup& group = block.warpgroups[g];
    if (group.arrived == 0) continue;
    text += fmt::format(", {} threads of warpgroup {} at {}", group.arrived, g, group.operation);
  }
  for (const auto& [at, barrier] : block.barriers) {
    if (barrier.waiting.empty()) continue;
    text += fmt::format(", {} threads at the barrier at {}, which lacks {} arrivals and {} bytes",
                        barrier.waiting.size(), at, barrier.missing, barrier.bytes);
  }
  if (block.cluster->at_barrier > 0) {
    text += fmt::format(", {} threads of the cluster at its barrier", block.cluster->at_barrier);
  }
  return text + fmt::format(", {} have ended, and none can go on", block.ended);
}

bool is_same(const char* operation, const char* other) {
  return operation == other || std::strcmp(operation, other) == 0;
}

void start_fibers(RunningBlock& block, const Stacks& stacks, size_t first_stack) {
  const dim3 shape = block.shape;
  block.fibers.resize(size_t{shape.x} * shape.y * shape.z);
  block.warps.assign(block.fibers.size() / kWarpLanes, {});
  block.warpgroups.assign(block.fibers.size() / kWarpgroupThreads, {});
  for (size_t i = 0; i < block.fibers.size(); ++i) {
    Fiber& fiber = block.fibers[i];
    const auto linear = static_cast<uint32_t>(i);
    fiber.index = {linear % shape.x, linear / shape.x % shape.y, linear / shape.x / shape.y};
    fiber.lane = static_cast<int>(i) % kWarpLanes;
    fiber.warp = static_cast<int>(i) / kWarpLanes;
    fiber.wait = Wait::kNone;
    fiber.forget_work();
    fiber.stack = stacks.bottom(first_stack + i);
#ifdef MILLRACE_ADDRESS_SANITIZER
    __asan_unpoison_memory_region(fiber.stack, kStackBytes);
#endif
    // Stacks begin at different places of their rooms, or all their tops would share a few sets of the caches.
    const size_t unused = (first_stack + i) * kStackShift % (kStackBytes / 4);
    fiber.context = context::make_fcontext(fiber.stack + kStackBytes - unused, kStackBytes - unused, fiber_main);
    block.runnable.push_back(i);
  }
  block.running = &block.fibers.front();
}

void prepare_block(RunningBlock& block, const Launch& launch, uint3 index) {
  // The address sanitizer sees exactly as much memory as was asked for.
  const size_t room =
      std::max(kSharedAlignment, (launch.shared_bytes + kSharedAlignment - 1) & ~(kSharedAlignment - 1));
  if (room != block.room || !kKeepsSharedMemory)
    block.memory.reset(static_cast<std::byte*>(std::aligned_alloc(kSharedAlignment, room)));
  block.room = room;
  block.shared = block.memory.get();
  std::memset(block.shared, kUnwritten, launch.shared_bytes);
#ifdef MILLRACE_ADDRESS_SANITIZER
  const size_t asked = (launch.shared_bytes + 7) / 8 * 8;
  __asan_poison_memory_region(block.shared + asked, room - asked);
#endif
  block.index = index;
  block.grid = launch.grid;
  block.shape = launch.block;
  block.shared_bytes = launch.shared_bytes;
  block.launch = &launch;
  block.barriers.clear();
  block.runnable.clear();
  block.ended = block.at_barrier = 0;
  block.fault.clear();
  block.unfenced.assign((launch.shared_bytes + kChunkBytes - 1) / kChunkBytes, 0);
}

/// Gives a random thread of the cluster its turn, or lands a copy. Returns false when there is neither.
bool take_turn(RunningCluster& cluster, Order& order) {
  size_t choices = cluster.copies.size();
  for (const RunningBlock& block : cluster.blocks) choices += block.runnable.size();
  if (choices == 0) return false;
  size_t turn = order.below(choices);
  for (RunningBlock& block : cluster.blocks) {
    if (turn < block.runnable.size()) {
      const size_t chosen = std::exchange(block.runnable[turn], block.runnable.back());
      block.runnable.pop_back();
      current = &block;
      enter(block, block.fibers[chosen]);
      return block.fault.empty();
    }
    turn -= block.runnable.size();
  }
  const std::function<void()> land = std::exchange(cluster.copies[turn], cluster.copies.back());
  cluster.copies.pop_back();
  current = &cluster.blocks.front();
  for (const RunningBlock& block : cluster.blocks) {
    if (block.ended == block.fibers.size()) fault("a copy lands after a block of its cluster has ended");
  }
  land();
  return true;
}

/// Runs a cluster in the memory of an earlier one.
void run_cluster(const Launch& launch, const std::vector<uint3>& indices, const Stacks& stacks, Order& order,
                 RunningCluster& cluster) {
  cluster.blocks.resize(indices.size());
  cluster.copies.clear();
  cluster.at_barrier = 0;
  for (size_t i = 0; i < indices.size(); ++i) {
    RunningBlock& block = cluster.blocks[i];
    prepare_block(block, launch, indices[i]);
    block.cluster = &cluster;
    block.cluster_rank = static_cast<uint32_t>(i);
    start_fibers(block, stacks, i * block.shape.x * block.shape.y * block.shape.z);
  }
  struct Restore {
    ~Restore() { current = nullptr; }
  } restore;
  while (take_turn(cluster, order)) {
  }
  for (RunningBlock& block : cluster.blocks) {
#ifdef MILLRACE_ADDRESS_SANITIZER
    __asan_unpoison_memory_region(
        block.shared,
        std::max(kSharedAlignment, (launch.shared_bytes + kSharedAlignment - 1) & ~(kSharedAlignment - 1)));
#endif
    if (!block.fault.empty()) throw KernelFault(block.fault);
  }
  for (const RunningBlock& block : cluster.blocks) {
    if (block.ended == block.fibers.size()) continue;
    const uint3 index = block.index;
    throw KernelFault(fmt::format("{}, block ({}, {}, {}): {}", launch.name, index.x, index.y, index.z, stuck(block)));
  }
}

void check_limits(const Launch& launch) {
  const dim3& grid = launch.grid;
  if (grid.x > kMaxBlocksInX || grid.y > kMaxBlocksInYOrZ || grid.z > kMaxBlocksInYOrZ) {
    throw KernelFault(fmt::format("{}: a grid of ({}, {}, {}), wanted at most ({}, {}, {})", launch.name, grid.x,
                                  grid.y, grid.z, kMaxBlocksInX, kMaxBlocksInYOrZ, kMaxBlocksInYOrZ));
  }
  if (launch.shared_bytes > kMaxSharedBytes) {
    throw KernelFault(fmt::format("{}: {} bytes of shared memory, wanted at most {}", launch.name, launch.shared_bytes,
                                  kMaxSharedBytes));
  }
}

}  // namespace

Thread& current_thread() {
  return *current->running;
}
Block& current_block() {
  return *current;
}

void fault(const std::string& what) {
  const RunningBlock& block = *current;
  const Fiber& fiber = *block.running;
  throw KernelFault(fmt::format("{}, block ({}, {}, {}), thread ({}, {}, {}): {}", block.launch->name, block.index.x,
                                block.index.y, block.index.z, fiber.index.x, fiber.index.y, fiber.index.z, what));
}

void synchronize_block(const std::source_location& where) {
  RunningBlock& block = *current;
  Fiber& fiber = *block.running;
  if (block.ended > 0) fault(fmt::format("{} threads have ended before __syncthreads ({})", block.ended, place(where)));
  if (block.at_barrier > 0 && (where.line() != block.barrier.line() || where.column() != block.barrier.column())) {
    fault(fmt::format("comes to __syncthreads at {} while others wait at {}", place(where), place(block.barrier)));
  }
  block.barrier = where;
  if (++block.at_barrier < block.fibers.size()) {
    fiber.wait = Wait::kBlock;
    leave(block, false);
    return;
  }
  block.at_barrier = 0;
  for (size_t i = 0; i < block.fibers.size(); ++i) {
    if (block.fibers[i].wait != Wait::kBlock) continue;
    block.fibers[i].wait = Wait::kNone;
    block.runnable.push_back(i);
  }
}

void synchronize_warp(const char* operation, uint32_t mask, const void* in, void* out,
                      FunctionView<Collective> combine) {
  RunningBlock& block = *current;
  Fiber& fiber = *block.running;
  Warp& warp = block.warps[static_cast<size_t>(fiber.warp)];
  if (mask != kFullMask) fault(fmt::format("{} with the mask {:#x}, wanted all lanes", operation, mask));
  if (warp.arrived != 0 && !is_same(warp.operation, operation)) {
    fault(fmt::format("comes to {} while lanes {:#x} wait at {}", operation, warp.arrived, warp.operation));
  }
  const auto lane = static_cast<size_t>(fiber.lane);
  warp.operation = operation;
  warp.arrived |= 1u << lane;
  warp.lanes.in[lane] = in;
  warp.lanes.out[lane] = out;
  if (warp.arrived != kFullMask) {
    fiber.wait = Wait::kWarp;
    leave(block, false);
    return;
  }
  combine(warp.lanes);
  warp.arrived = 0;
  const size_t first = static_cast<size_t>(fiber.warp) * kWarpLanes;
  for (size_t i = first; i < first + kWarpLanes; ++i) {
    if (block.fibers[i].wait != Wait::kWarp) continue;
    block.fibers[i].wait = Wait::kNone;
    block.runnable.push_back(i);
  }
}

void synchronize_warpgroup(const char* operation, const void* in, FunctionView<WarpgroupCollective> combine) {
  RunningBlock& block = *current;
  Fiber& fiber = *block.running;
  const auto index = static_cast<size_t>(fiber.warp) / kWarpgroupWarps;
  if (index >= block.warpgroups.size()) fault(fmt::format("{} by a warp outside of any warpgroup", operation));
  Warpgroup& group = block.warpgroups[index];
  if (group.arrived != 0 && !is_same(group.operation, operation)) {
    fault(fmt::format("comes to {} while {} threads wait at {}", operation, group.arrived, group.operation));
  }
  const size_t first = index * kWarpgroupThreads;
  group.operation = operation;
  group.threads.in[static_cast<size_t>(fiber.warp) * kWarpLanes + static_cast<size_t>(fiber.lane) - first] = in;
  if (++group.arrived < kWarpgroupThreads) {
    fiber.wait = Wait::kWarpgroup;
    leave(block, false);
    return;
  }
  combine(group.threads);
  group.arrived = 0;
  for (size_t i = first; i < first + kWarpgroupThreads; ++i) {
    if (block.fibers[i].wait != Wait::kWarpgroup) continue;
    block.fibers[i].wait = Wait::kNone;
    block.runnable.push_back(i);
  }
}

void synchronize_cluster() {
  RunningBlock& block = *current;
  RunningCluster& cluster = *block.cluster;
  if (++cluster.at_barrier < cluster.blocks.size() * block.fibers.size()) {
    block.running->wait = Wait::kCluster;
    leave(block, false);
    return;
  }
  cluster.at_barrier = 0;
  for (RunningBlock& each : cluster.blocks) {
    for (size_t i = 0; i < each.fibers.size(); ++i) {
      if (each.fibers[i].wait != Wait::kCluster) continue;
      each.fibers[i].wait = Wait::kNone;
      each.runnable.push_back(i);
    }
  }
}

uint32_t cluster_blocks() {
  return static_cast<uint32_t>(current->cluster->blocks.size());
}
Block& block_of_cluster(uint32_t rank) {
  return current->cluster->blocks.at(rank);
}
void suspend_thread() {
  current->running->wait = Wait::kBarrier;
  leave(*current, false);
}
void resume_thread(uint32_t rank, size_t thread) {
  RunningBlock& block = current->cluster->blocks.at(rank);
  block.fibers[thread].wait = Wait::kNone;
  block.runnable.push_back(thread);
}
void land_later(std::function<void()> land) {
  current->cluster->copies.push_back(std::move(land));
}

void run(const Launch& launch) {
  check_limits(launch);
  if (current != nullptr) throw KernelFault(fmt::format("{}: launched by a kernel", launch.name));
  const uint32_t together = launch.cluster_blocks;
  const size_t threads = size_t{launch.block.x} * launch.block.y * launch.block.z;
  if (threads == 0 || threads > kMaxThreads || threads % kWarpLanes != 0) {
    throw KernelFault(
        fmt::format("{}: {} threads per block, wanted whole warps, at most {}", launch.name, threads, kMaxThreads));
  }
  thread_local const Tenancy tenancy;
  Workshop& workshop = *tenancy;
  Order order(order_seed.load());
  const dim3& grid = launch.grid;
  if (together == 0 || grid.x % together != 0 || threads * together > kMaxThreads) {
    throw KernelFault(fmt::format("{}: {} blocks in clusters of {}", launch.name, grid.x, together));
  }
  std::vector<size_t> clusters(size_t{grid.x} * grid.y * grid.z / together);
  std::iota(clusters.begin(), clusters.end(), size_t{0});
  for (size_t left = clusters.size(); left > 0; --left) {
    std::swap(clusters[order.below(left)], clusters[left - 1]);
    std::vector<uint3> indices;
    for (uint32_t i = 0; i < together; ++i) {
      const auto linear = static_cast<uint32_t>(clusters[left - 1]) * together + i;
      indices.push_back({linear % grid.x, linear / grid.x % grid.y, linear / grid.x / grid.y});
    }
    run_cluster(launch, indices, workshop.stacks, order, workshop.cluster);
  }
}

void set_order_seed(uint64_t seed) {
  order_seed = seed;
}

}  // namespace millrace::emulator
