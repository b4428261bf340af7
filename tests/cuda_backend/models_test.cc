// Whole models through the CUDA backend and its ops, both run on the host. How good they are on all that is known of
// each family, golden_test.cc says, over plain loops and on a GPU.

#include <catch2/catch.hpp>

#include "cuda/cuda_backend.h"
#include "cuda/emulator/fake_runtime.h"
#include "cuda/kernels.h"
#include "cuda_backend/families.h"
#include "support/effort.h"

using namespace millrace;

namespace {

/// Maximum of tokens of a prompt with its continuation: each costs 10 to 100 ms.
constexpr size_t kMaxTokens = 40;

/// Emulates a GPU of another compute capability while it lives.
struct OtherGpu {
  explicit OtherGpu(int capability) { emulator::set_capability(capability); }
  ~OtherGpu() { emulator::set_capability(90); }
  OtherGpu(const OtherGpu&) = delete;
  OtherGpu& operator=(const OtherGpu&) = delete;
};

/// Returns a family without its long prompts, which take the emulator minutes.
test::GoldenFamily short_family(const std::string& name) {
  test::GoldenFamily family = test::read_golden_family(name);
  std::erase_if(family.prompts, [](const auto& prompt) { return prompt.sequence().size() > kMaxTokens; });
  REQUIRE_FALSE(family.prompts.empty());
  return family;
}

void reserve_model_of(int32_t channels, int32_t vocab) {
  const tensor::AttentionShape attention{.head_count = 1, .kv_head_count = 1, .head_dim = channels, .scale = 1.0f};
  cuda::make_backend({})->reserve({.rows = 1,
                                   .sequences = 1,
                                   .context = 64,
                                   .cache = {1, 1, 16, 16, 0},  // of another group of layers, with smaller heads
                                   .weights = {},
                                   .attention = std::span(&attention, 1),
                                   .logit_rows = 1,
                                   .logit_blocks = 1,
                                   .vocab = vocab});
}
void reserve_heads_of(int32_t channels) {
  reserve_model_of(channels, 1000);
}

}  // namespace

TEST_CASE("the CUDA ops compute every family near the reference") {
  const std::string name = GENERATE(from_range(test::drawn_family_names()));
  if (name == "phi3") return;  // all its prompts exceed the original context of longrope
  test::require_agreement(short_family(name));
}

TEST_CASE("the CUDA ops compute GGUF files near the reference") {
  test::require_agreement(short_family(GENERATE(from_range(test::drawn_from(test::golden_gguf_names())))));
}

TEST_CASE("the CUDA ops compute 8-bit keys and values near") {
  test::require_coded_agreement(short_family("qwen2"), GENERATE(tensor::KvDType::kInt8, tensor::KvDType::kFp8E4M3));
}

TEST_CASE("the CUDA ops compute latents of 8 bits near") {
  test::require_coded_agreement(short_family("deepseek-v2-lite"),
                                GENERATE(tensor::KvDType::kInt8, tensor::KvDType::kFp8E4M3));
}

TEST_CASE("heads too large for shared memory are refused at load") {
  reserve_heads_of(512);
  const OtherGpu gpu(89);
  reserve_heads_of(128);
  REQUIRE_THROWS_WITH(reserve_heads_of(129),
                      "CUDA: attention over heads of 129 channels takes 117248 bytes of shared memory per block, "
                      "device 0 (Emulated GPU, sm_89, 4 SMs) has 101376");
}

TEST_CASE("heads and vocabularies too large for the ops are refused") {
  REQUIRE_THROWS_WITH(reserve_heads_of(513), "CUDA: attention over heads of 513 channels, wanted at most 512");
  reserve_model_of(64, cuda::kMaxVocab);
  REQUIRE_THROWS_WITH(reserve_model_of(64, cuda::kMaxVocab + 1),
                      "CUDA: a vocabulary of 2097153 ids, wanted at most 2097152");
}
