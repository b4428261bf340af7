// Results do not depend on the thread count, bit for bit.

#include "conformance/sequences.h"
#include "cpu/cpu_backend.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;

TEST_CASE("GEMM and attention are equal on 1 and 2 and 3 threads") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 40);
  const AttentionCase sizes{.head_count = 4, .kv_head_count = 2, .head_dim = 48, .rotary_dim = 48};
  const Weights weights = random_weights(random, sizes);
  TestSequence sequence = random_sequence(random, sizes, 2150, false);
  sequence.chunks = {2060, 50, 1, 39};
  const int64_t in = random.integer(100, 1500);
  const Values stored = random.normal(100 * in);
  const Values x = random.normal(77 * in);
  for (const cpu::Isa isa : cpu::available_isas()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Values product;
      Values attended;
      for (const int threads : {1, 2, 3}) {
        const auto backend = cpu::make_backend({.threads = threads, .compute_dtype = dtype, .isa = isa});
        INFO(backend->description());
        const HostMatrix host(stored, dtype, 100, in);
        const tensor::HostTensor part = host.tensor();
        const auto weight = backend->pack({&part, 1});
        Values got;
        backend->run_and_wait([&] {
          const DeviceMatrix left = make_matrix(*backend, dtype, 77, in);
          const DeviceMatrix out = make_matrix(*backend, DType::kF32, 77, 100);
          upload(*backend, x, left);
          backend->matmul(left.matrix, *weight, nullptr, out.matrix);
          got = download(*backend, out.matrix);
        });
        const Values rows = feed(*backend, sizes, weights, {sequence}, {})[0];
        if (threads == 1) {
          product = got;
          attended = rows;
        }
        REQUIRE(got == product);
        REQUIRE(rows == attended);
      }
    }
  }
}
