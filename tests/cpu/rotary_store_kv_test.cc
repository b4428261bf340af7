// What is kept from one batch to the next survives that memory is short.

#include <cstdlib>
#include <new>

#include "conformance/harness.h"
#include "cpu/cpu_backend.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;

namespace {

/// Of one allocation by the thread.
thread_local size_t most_bytes = SIZE_MAX;

}  // namespace

void* operator new(size_t bytes) {
  void* const memory = bytes <= most_bytes ? std::malloc(bytes) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace {

struct Shortage {
  explicit Shortage(size_t bytes) { most_bytes = bytes; }
  ~Shortage() { most_bytes = SIZE_MAX; }
};

constexpr int32_t kDim = 64;
constexpr int32_t kPageSize = 16;

/// Rotates the queries of one sequence, from position 0 on.
class Rotation {
 public:
  Values run(int32_t rows, size_t allowed_bytes = SIZE_MAX) {
    const std::vector<int32_t> row_begin{0, rows};
    const std::vector<int32_t> prefix{0};
    const std::vector<PageId> pages{PageId(0), PageId(1), PageId(2), PageId(3)};
    const std::vector<int32_t> page_begin{0, static_cast<int32_t>(pages.size())};
    const tensor::BatchLayout batch{row_begin, prefix, page_begin, pages};
    const tensor::AttentionShape shape{1, 1, kDim, 1.0f, 0};
    const tensor::RotaryTable rotary{frequencies_.get(), kDim, 1.0f};
    Values rotated;
    backend_->run_and_wait([&] {
      const DeviceMatrix in = make_matrix(*backend_, DType::kF32, rows, 3 * kDim);
      const DeviceMatrix q = make_matrix(*backend_, DType::kF32, rows, kDim);
      upload(*backend_, Values(static_cast<size_t>(rows) * 3 * kDim, 1.0f), in);
      const tensor::PlacedBatch placed = backend_->place(batch);
      {
        const Shortage shortage(allowed_bytes);
        backend_->rotary_store_kv(in.matrix, shape, rotary, nullptr, nullptr, 1e-6f, placed, *cache_, 0, q.matrix);
      }
      rotated = download(*backend_, q.matrix);
    });
    return rotated;
  }

 private:
  std::unique_ptr<tensor::Backend> backend_ = cpu::make_backend({.threads = 1, .compute_dtype = DType::kF32});
  std::unique_ptr<tensor::DeviceVector> frequencies_ = backend_->make_vector(Values(kDim / 2, 0.5f));
  std::unique_ptr<tensor::KvCache> cache_ = backend_->make_kv_cache({1, 1, kDim, kPageSize, 4});
};

}  // namespace

TEST_CASE("angles that memory was short for are computed when their positions come again") {
  const Values wanted = Rotation().run(64);
  Rotation rotation;
  (void)rotation.run(8);
  // Room for the positions, not for their angles.
  REQUIRE_THROWS_AS(rotation.run(64, 64 * sizeof(float) * 8), std::bad_alloc);
  REQUIRE(rotation.run(64) == wanted);
}
