// The instruction that a backend's GEMMs use.

#include <catch2/catch.hpp>
#include <cstdlib>

#include "cuda/cuda_backend.h"
#include "cuda/emulator/fake_runtime.h"

using namespace millrace;
using cuda::GemmChoice;

namespace {

/// A device whose wgmma behaves as the environment tells the plain kernels.
struct Gpu {
  explicit Gpu(const char* wgmma, int capability = 90) {
    emulator::reset();
    emulator::set_capability(capability);
    REQUIRE(setenv("MILLRACE_EMULATED_WGMMA", wgmma, 1) == 0);
  }
  ~Gpu() {
    emulator::set_capability(90);
    unsetenv("MILLRACE_EMULATED_WGMMA");
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
};

struct Made {
  std::string format;
  std::vector<std::string> warnings;
};
Made make(GemmChoice products) {
  Made made;
  const auto warn = [&](const std::string& what) { made.warnings.push_back(what); };
  made.format = cuda::make_backend({.products = products, .warn = warn})->kv_format();
  return made;
}

}  // namespace

TEST_CASE("GEMMs use wgmma where a GPU has it unless mma is set") {
  const Gpu gpu("right");
  for (const GemmChoice choice : {GemmChoice::kAuto, GemmChoice::kWgmma}) {
    const Made made = make(choice);
    REQUIRE(made.format == "bf16 cuda sm_90 wgmma");
    REQUIRE(made.warnings.empty());
  }
  REQUIRE(make(GemmChoice::kMma).format == "bf16 cuda sm_90 mma");
}

TEST_CASE("a GPU or build without wgmma uses mma and refuses wgmma") {
  for (const int capability : {80, 90}) {
    const Gpu gpu(capability == 80 ? "right" : "absent", capability);
    CAPTURE(capability);
    const Made made = make(GemmChoice::kAuto);
    REQUIRE(made.format == "bf16 cuda sm_" + std::to_string(capability) + " mma");
    REQUIRE(made.warnings.empty());
    REQUIRE_THROWS_WITH(make(GemmChoice::kWgmma),
                        Catch::StartsWith("--cuda-products wgmma: device 0 is Emulated GPU, sm_" +
                                          std::to_string(capability) + ", 4 SMs, wanted sm_90, and kernels"));
  }
}

TEST_CASE("wgmma with other sums or company-dependent bits is refused") {
  const auto [kind, reason] = GENERATE(
      table<const char*, std::string>({{"wrong", "a sum of 520 products is"},
                                       {"uneven", "rows in a batch of 1 differ from the same rows in a batch of 70"}}));
  const Gpu gpu(kind);
  const Made made = make(GemmChoice::kAuto);
  REQUIRE(made.format == "bf16 cuda sm_90 mma");
  REQUIRE(made.warnings.size() == 1);
  REQUIRE_THAT(made.warnings.front(),
               Catch::StartsWith("device 0: wgmma fails its self-test, GEMMs use mma instead: " + reason));
  REQUIRE_THROWS_WITH(make(GemmChoice::kWgmma),
                      Catch::StartsWith("--cuda-products wgmma: device 0 fails the self-test: " + reason));
  REQUIRE(make(GemmChoice::kMma).format == "bf16 cuda sm_90 mma");
}
