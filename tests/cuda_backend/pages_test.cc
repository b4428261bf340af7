// Pages between the device and the host, over whatever the ops are: plain loops, the emulator, a GPU.

#include <catch2/catch.hpp>
#include <cstring>
#include <future>

#include "cuda/cuda_backend.h"
#include "cuda_backend/decode_rig.h"
#include "cuda_backend/same_draws.h"
#include "cuda_backend/tested_gemm.h"

using namespace millrace;

namespace {

void copy(tensor::Backend& backend, tensor::CopyDirection direction, const std::function<void()>& work) {
  std::promise<void> done;
  backend.submit_copy(direction, work, [&done](const std::exception_ptr& failure) {
    failure ? done.set_exception(failure) : done.set_value();
  });
  done.get_future().get();
}

}  // namespace

TEST_CASE("pages hold what was loaded into them layer by layer") {
  constexpr int32_t kLayers = 3;
  constexpr uint32_t kPages = 300;
  const auto kv_dtype = GENERATE(tensor::KvDType::kAuto, tensor::KvDType::kInt8, tensor::KvDType::kFp8E4M3);
  const auto backend = cuda::make_backend({.products = test::tested_gemm(), .kv_dtype = kv_dtype});
  const auto cache = backend->make_kv_cache(
      {.layer_count = kLayers, .kv_head_count = 2, .head_dim = 20, .page_size = 3, .page_count = 2 * kPages});
  const size_t bytes = cache->page_bytes();
  const tensor::Buffer first = backend->allocate_host(kPages * bytes);
  const tensor::Buffer second = backend->allocate_host(kPages * bytes);
  for (size_t i = 0; i < kPages * bytes; ++i) first.data()[i] = static_cast<std::byte>(i * 7 + i / 251);
  std::vector<tensor::PageTransfer> from;
  std::vector<tensor::PageTransfer> back;
  for (uint32_t i = 0; i < kPages; ++i) {
    const PageId page(2 * (kPages - 1 - i) + 1);
    from.push_back({page, first.data() + i * bytes});
    back.push_back({page, second.data() + i * bytes});
  }
  copy(*backend, tensor::CopyDirection::kToDevice, [&] { cache->write_layer(1, from); });
  copy(*backend, tensor::CopyDirection::kToHost, [&] { cache->read_pages(back); });
  const size_t layer = bytes / kLayers;
  for (uint32_t i = 0; i < kPages; ++i) {
    const std::byte* wanted = first.data() + i * bytes;
    const std::byte* found = second.data() + i * bytes;
    REQUIRE(std::memcmp(found + layer, wanted + layer, layer) == 0);
    for (const size_t other : {size_t{0}, 2 * layer}) {
      REQUIRE(std::all_of(found + other, found + other + layer, [](std::byte byte) { return byte == std::byte{0}; }));
    }
  }
  copy(*backend, tensor::CopyDirection::kToDevice, [&] {
    for (const int32_t each : {0, 2}) cache->write_layer(each, from);
  });
  copy(*backend, tensor::CopyDirection::kToHost, [&] { cache->read_pages(back); });
  REQUIRE(std::memcmp(second.data(), first.data(), kPages * bytes) == 0);
}

TEST_CASE("pages that move through the host change no token") {
  const auto& [family, kv_dtype] =
      GENERATE(std::pair{"qwen2", tensor::KvDType::kAuto}, std::pair{"qwen2", tensor::KvDType::kInt8},
               std::pair{"qwen2", tensor::KvDType::kFp8E4M3}, std::pair{"deepseek-v2-lite", tensor::KvDType::kInt8},
               std::pair{"deepseek-v32-sparse", tensor::KvDType::kFp8E4M3});
  std::vector<test::DecodeRig::Drawn> drawn;
  for (const bool moves : {false, true}) {
    std::vector<std::unique_ptr<tensor::Backend>> backends;
    for (int s = 0; s < 2; ++s) {
      backends.push_back(cuda::make_backend({.products = test::tested_gemm(), .kv_dtype = kv_dtype}));
    }
    test::DecodeRig rig(std::move(backends),
                        {.family = family, .page_size = 4, .host_page_count = 64, .sequence_count = 2});
    rig.prefill();
    for (int step = 0; step < 4; ++step) {
      if (moves && step % 2 == 1) rig.move_pages();
      rig.decode();
    }
    drawn.push_back(rig.drawn());
  }
  test::require_same(drawn[1], drawn[0]);
}
