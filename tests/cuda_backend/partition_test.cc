// Backends that share a GPU by its multiprocessors.

#include <catch2/catch.hpp>

#include "cuda/cuda_backend.h"
#include "cuda/emulator/fake_runtime.h"
#include "cuda_backend/decode_rig.h"

using namespace millrace;
using test::DecodeRig;

namespace {

struct LargeGpu {
  LargeGpu() {
    emulator::reset();
    emulator::set_multiprocessors(132);
  }
  ~LargeGpu() {
    emulator::set_multiprocessors(4);
    emulator::set_capability(90);
  }
  LargeGpu(const LargeGpu&) = delete;
  LargeGpu& operator=(const LargeGpu&) = delete;
};

DecodeRig::Drawn drawn_with(int part_count) {
  std::vector<std::unique_ptr<tensor::Backend>> backends;
  for (int part = 0; part < 4; ++part) backends.push_back(cuda::make_backend({.part = part, .part_count = part_count}));
  DecodeRig rig(std::move(backends), {});
  rig.prefill();
  for (int i = 0; i < 6; ++i) rig.decode();
  return rig.drawn();
}

}  // namespace

TEST_CASE("four stages on four GPU parts sample as on the whole GPU") {
  const LargeGpu gpu;
  const DecodeRig::Drawn wanted = drawn_with(1);
  REQUIRE(emulator::counts().divided_streams == 0);
  const DecodeRig::Drawn divided = drawn_with(4);        // parts that overlap would be an error
  REQUIRE(emulator::counts().divided_streams == 4 * 5);  // one of each to try it out
  for (size_t s = 0; s < wanted.size(); ++s) {
    REQUIRE(std::ranges::equal(divided[s], wanted[s], {}, &tensor::SampleResult::token, &tensor::SampleResult::token));
  }
  // 33 each are not to be had where the driver deals in eights.
  REQUIRE(cuda::make_backend({.part = 2, .part_count = 4})->description() ==
          "cuda Emulated GPU, sm_90, 132 SMs, wgmma, part 3 of 4, 32 SMs");
}

TEST_CASE("a GPU that cannot be partitioned is used whole with a reason") {
  const LargeGpu gpu;
  emulator::set_multiprocessors(4);
  REQUIRE(cuda::make_backend({.part = 1, .part_count = 2})->description() ==
          "cuda Emulated GPU, sm_90, 4 SMs, wgmma, part 2 of 2, 2 SMs");
  emulator::reset();
  const auto whole = cuda::make_backend({.part = 4, .part_count = 5});
  REQUIRE(
      whole->description() ==
      "cuda Emulated GPU, sm_90, 4 SMs, wgmma, not divided: 4 multiprocessors cannot be divided into 5 equal parts");
  REQUIRE(emulator::counts().divided_streams == 0);
}

TEST_CASE("a part that does not work as the whole GPU does is not taken") {
  const LargeGpu gpu;
  const DecodeRig::Drawn wanted = drawn_with(1);
  for (uint64_t nth = 1; nth <= 5; ++nth) {
    CAPTURE(nth);
    emulator::fail_call(nth);
    REQUIRE_THAT(cuda::make_backend({.part = 1, .part_count = 4})->description(),
                 Catch::StartsWith("cuda Emulated GPU, sm_90, 132 SMs, wgmma, not divided: ") &&
                     Catch::Contains("too many resources requested for launch"));
  }
  emulator::fail_call(1);
  const DecodeRig::Drawn drawn = drawn_with(4);  // the first has all of it, beside parts
  for (size_t s = 0; s < wanted.size(); ++s) {
    REQUIRE(std::ranges::equal(drawn[s], wanted[s], {}, &tensor::SampleResult::token, &tensor::SampleResult::token));
  }
  emulator::reset();
}

TEST_CASE("a GPU that is too old for the ops is refused by name") {
  const LargeGpu gpu;
  emulator::set_capability(75);
  REQUIRE_THROWS_WITH(cuda::make_backend({}),
                      "CUDA: device 0 is Emulated GPU, sm_75, 132 SMs, wanted compute capability 8.0 or later");
}
