// What the backend makes of streams, events, graphs and memory: no result depends on when the device does its work, and
// no failure looks like a result.

#include <catch2/catch.hpp>
#include <future>

#include "conformance/harness.h"
#include "cuda/device.h"
#include "cuda/kernels.h"
#include "cuda/submissions.h"
#include "cuda_backend/fake_rig.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

TEST_CASE("graphs and stages and links change no token") {
  const CleanRuntime clean;
  const DecodeRig::Drawn wanted = wanted_draws();
  REQUIRE(wanted.size() == 3);
  for (const bool graphs : {true, false}) {
    for (const size_t stages : {1, 2, 4}) {
      for (const bool to_host : {false, true}) {
        CAPTURE(graphs, stages, to_host);
        emulator::reset();
        DecodeRig rig = make_rig(stages, graphs, {.activations_to_host = to_host});
        REQUIRE(same(generate(rig, kSteps), wanted));
        REQUIRE((emulator::counts().graph_launches > 0) == graphs);
      }
    }
  }
}

TEST_CASE("steps are padded to a known graph and change only own pages") {
  const CleanRuntime clean;
  const std::string family = GENERATE(as<std::string>{}, "qwen2", "qwen3moe");
  constexpr size_t kSequences = 8;
  constexpr uint32_t kHostPages = 2 * kSequences * DecodeRig::kPagesEach;
  std::vector<DecodeRig::Drawn> drawn;
  std::vector<std::vector<std::byte>> pages;
  for (const size_t stages : {1, 2}) {
    for (const bool graphs : {false, true}) {
      CAPTURE(family, stages, graphs);
      DecodeRig rig =
          make_rig(stages, graphs, {.family = family, .host_page_count = kHostPages, .sequence_count = kSequences});
      rig.prefill();
      for (int i = 0; i < 4; ++i) rig.decode();  // two output buffers, each of which runs once and is captured
      emulator::reset();
      for (const size_t count : {7, 5, 6, 8, 5, 7}) rig.decode(count);
      REQUIRE(emulator::counts().graph_launches == (graphs ? 6 * stages : 0));
      REQUIRE(emulator::counts().creations == 0);
      rig.decode(3);  // padded to four, and launched one by one
      REQUIRE(emulator::counts().graph_launches == (graphs ? 6 * stages : 0));
      drawn.push_back(rig.drawn());
      pages.push_back(rig.pages());
    }
  }
  REQUIRE((same(drawn[1], drawn[0]) && same(drawn[2], drawn[0]) && same(drawn[3], drawn[0])));
  REQUIRE((pages[1] == pages[0] && pages[3] == pages[2]));
}

TEST_CASE("work that is late changes nothing") {
  const CleanRuntime clean;
  const DecodeRig::Drawn wanted = wanted_draws();
  for (const uint64_t seed : {1, 2, 3}) {
    CAPTURE(seed);
    emulator::delay_randomly(seed, 120us);
    DecodeRig rig = make_rig(2, seed != 2, {.activations_to_host = seed == 3});
    REQUIRE(same(generate(rig, kSteps), wanted));
  }
}

TEST_CASE("pages go to the host and back in parallel to the work") {
  const CleanRuntime clean;
  const DecodeRig::Drawn wanted = wanted_draws();
  for (const uint64_t seed : {1, 2}) {
    CAPTURE(seed);
    DecodeRig rig = make_rig(2, true, {.page_size = 4, .host_page_count = 64});
    rig.prefill();
    emulator::delay_randomly(seed, 100us);
    for (size_t step = 0; step < kSteps; ++step) {
      if (step % 3 == 1) rig.move_pages();
      rig.decode();
    }
    REQUIRE(same(rig.drawn(), wanted));
  }
}

TEST_CASE("pages are stored by one launch and loaded by one per layer") {
  const CleanRuntime clean;
  constexpr uint64_t kLayers = 3;
  constexpr int32_t kPages = 300;
  static_assert(kPages > cuda::PageCopyList::kMaxPages && kPages <= 2 * cuda::PageCopyList::kMaxPages);
  const auto backend = cuda::make_backend({});
  const auto cache = backend->make_kv_cache(
      {.layer_count = kLayers, .kv_head_count = 1, .head_dim = 8, .page_size = 2, .page_count = kPages});
  const tensor::Buffer host = backend->allocate_host(kPages * cache->page_bytes());
  std::vector<tensor::PageTransfer> places;
  for (uint32_t i = 0; i < kPages; ++i) places.push_back({PageId(i), host.data() + i * cache->page_bytes()});
  const auto launches_of = [&](tensor::CopyDirection direction, size_t count) {
    const auto pages = std::span(places).first(count);
    emulator::reset();
    std::promise<void> done;
    backend->submit_copy(
        direction,
        [&] {
          if (direction == tensor::CopyDirection::kToHost) return cache->read_pages(pages);
          for (int32_t layer = 0; layer < static_cast<int32_t>(kLayers); ++layer) cache->write_layer(layer, pages);
        },
        [&](const std::exception_ptr&) { done.set_value(); });
    done.get_future().get();
    REQUIRE(emulator::counts().copies == 0);
    return emulator::counts().launches;
  };
  REQUIRE(launches_of(tensor::CopyDirection::kToHost, 1) == 1);
  REQUIRE(launches_of(tensor::CopyDirection::kToHost, 200) == 1);
  REQUIRE(launches_of(tensor::CopyDirection::kToHost, kPages) == 2);
  REQUIRE(launches_of(tensor::CopyDirection::kToDevice, 200) == kLayers);
  REQUIRE(launches_of(tensor::CopyDirection::kToDevice, kPages) == 2 * kLayers);
  REQUIRE(launches_of(tensor::CopyDirection::kToDevice, 0) == 0);
}

TEST_CASE("a load that fails fails the run that waits for it") {
  const CleanRuntime clean;
  for (const uint64_t nth : {1, 3, 6}) {
    CAPTURE(nth);
    DecodeRig rig = make_rig(1, true, {.page_size = 4, .host_page_count = 64});
    rig.prefill();
    rig.decode();
    rig.move_pages([&] { emulator::fail_call(nth); });
    REQUIRE_THROWS_WITH(rig.decode(), "copying pages to the device has failed");
    rig.decode();  // what it says is not the matter: the pages hold nothing
  }
}

TEST_CASE("a load that failed in an ended epoch fails no later run") {
  const CleanRuntime clean;
  DecodeRig rig = make_rig(1, true, {.page_size = 4, .host_page_count = 64});
  rig.prefill();
  rig.move_pages([] { emulator::fail_call(1); });
  rig.drop_loads();
  REQUIRE_NOTHROW(rig.decode());
}

TEST_CASE("nothing is allocated from the first batch on") {
  const CleanRuntime clean;
  const std::string family = GENERATE(as<std::string>{}, "qwen2", "qwen3moe");
  for (const size_t stages : {1, 2}) {
    CAPTURE(family, stages);
    DecodeRig rig =
        make_rig(stages, true, {.family = family, .page_size = 4, .host_page_count = 64, .activations_to_host = true});
    emulator::reset();
    rig.prefill();
    for (int i = 0; i < 5; ++i) rig.decode();
    rig.move_pages();
    rig.decode();
    REQUIRE(emulator::counts().allocations == 0);
    REQUIRE(emulator::counts().synchronisations == 0);
  }
}

TEST_CASE("a step allocates nothing and waits by events only") {
  const CleanRuntime clean;
  for (const bool graphs : {true, false}) {
    emulator::reset();
    DecodeRig rig = make_rig(1, graphs, {.page_size = 16, .activations_to_host = true});
    rig.prefill();
    for (int i = 0; i < 4; ++i) rig.decode();  // scratch grows, graphs are captured
    REQUIRE(emulator::counts().timed_events == 0);
    emulator::reset();
    for (int i = 0; i < 100; ++i) rig.decode();
    const emulator::Counts counts = emulator::counts();
    CAPTURE(graphs, counts.creations);
    REQUIRE(counts.allocations == 0);
    REQUIRE(counts.synchronisations == 0);
    REQUIRE(counts.creations == 0);
    REQUIRE(counts.graph_launches == (graphs ? 100 : 0));
    REQUIRE(counts.launches > 100);
  }
}

TEST_CASE("growing uploads and downloads free nothing while running") {
  const CleanRuntime clean;
  cuda::Device device(cuda::CudaOptions{});
  cuda::Submissions submissions(device);
  for (const size_t bytes : {size_t{1} << 10, size_t{1} << 20, size_t{4} << 20}) {
    CAPTURE(bytes);
    emulator::reset();
    std::promise<void> done;
    uint64_t frees = 0;
    bool same = false;
    const auto work = [&] {
      const std::byte* there = submissions.upload(bytes, [&](std::byte* to) { std::fill_n(to, bytes, std::byte{7}); });
      submissions.download(there, bytes, [&](const std::byte* back) {
        same = std::all_of(back, back + bytes, [](std::byte byte) { return byte == std::byte{7}; });
      });
      frees = emulator::counts().frees;
    };
    submissions.submit(work, [&](const std::exception_ptr&) { done.set_value(); });
    done.get_future().get();
    REQUIRE(frees == 0);
    REQUIRE(same);
  }
  device.poller.finish();
}

TEST_CASE("a failed call ends its run or drops a graph") {
  const CleanRuntime clean;
  const DecodeRig::Drawn wanted = wanted_draws();
  for (const bool graphs : {true, false}) {
    for (uint64_t nth = 1; nth <= 40; nth += graphs ? 1 : 13) {
      CAPTURE(graphs, nth);
      size_t graphs_less = 0;
      DecodeRig rig = make_rig(1, graphs, {}, [&](const std::string&) { ++graphs_less; });
      rig.prefill();
      rig.decode();
      size_t failures = 0;
      emulator::fail_call(nth);
      while (rig.drawn()[0].size() < wanted[0].size()) {
        try {
          rig.decode();
        } catch (const std::runtime_error& error) {
          REQUIRE_THAT(error.what(), Catch::Contains("too many resources requested for launch"));
          ++failures;
        }
      }
      REQUIRE(failures <= 1);
      REQUIRE(graphs_less <= (graphs ? 1 : 0));
      REQUIRE(failures + graphs_less > 0);
      REQUIRE(same(rig.drawn(), wanted));
      emulator::reset();
    }
  }
}

TEST_CASE("an event that ends in an error is never a success") {
  const CleanRuntime clean;
  DecodeRig rig = make_rig(2, true, {});
  rig.prefill();
  for (int i = 0; i < 3; ++i) rig.decode();
  emulator::fail_event(2, true);
  REQUIRE_THROWS_WITH(rig.decode(), Catch::Contains("an illegal memory access was encountered"));
  REQUIRE_THROWS_WITH(rig.decode(), Catch::Contains("an illegal memory access was encountered"));
  emulator::reset();
}

TEST_CASE("work completes in order and reports failures") {
  const CleanRuntime clean;
  emulator::delay_randomly(5, 50us);
  std::vector<std::string> told;
  std::promise<void> ended;
  {
    const auto backend = cuda::make_backend({});
    const auto note = [&](const char* name) {
      return [&told, name](std::exception_ptr failure) {
        try {
          if (failure) std::rethrow_exception(failure);
          told.emplace_back(name);
        } catch (const std::exception& error) {
          told.emplace_back(error.what());
        }
      };
    };
    const tensor::Buffer memory = backend->allocate(64);
    std::vector<std::byte> bytes(64, std::byte{7});
    backend->submit([&] { backend->copy_in(bytes, memory.data()); }, note("first"));
    backend->submit([] { throw std::runtime_error("broken"); }, note("second"));
    backend->submit([] {},
                    [&, third = note("third")](std::exception_ptr failure) {
                      third(std::move(failure));
                      backend->submit([] {}, [&](std::exception_ptr) { ended.set_value(); });
                    });
    ended.get_future().get();
    backend->submit([] {}, note("last"));
  }
  REQUIRE(told == std::vector<std::string>{"first", "broken", "third", "last"});
}

TEST_CASE("short memory is reported with wanted and left sizes") {
  const CleanRuntime clean;
  const auto backend = cuda::make_backend({});
  REQUIRE_THROWS_WITH(backend->allocate(size_t{3} << 30),
                      Catch::Contains("cudaMalloc of 3221.2 MB, device 0 has ") && Catch::Contains("out of memory"));
  REQUIRE_THROWS_WITH(
      backend->allocate_host(size_t{1} << 40),
      "CUDA: cudaHostAlloc of 1099511.6 MB of the host's memory: out of memory (cudaErrorMemoryAllocation)");
  REQUIRE_THROWS_WITH(cuda::make_backend({.device = 1}), Catch::Contains("cudaSetDevice"));
  REQUIRE(backend->description() == "cuda Emulated GPU, sm_90, 4 SMs, wgmma");
  REQUIRE(backend->kv_format() == "bf16 cuda sm_90 wgmma");
}

TEST_CASE("experts are packed in place with two allocations per layer") {
  const CleanRuntime clean;
  constexpr int32_t kExperts = 40;
  constexpr int32_t kHidden = 48;
  constexpr int32_t kInner = 32;
  const auto backend = cuda::make_backend({});
  const HostMatrix wide(std::vector<float>(kHidden * kInner, 0.5f), tensor::DType::kF32, kInner, kHidden);
  const HostMatrix tall(std::vector<float>(kHidden * kInner, 0.5f), tensor::DType::kF32, kHidden, kInner);
  const auto pack = [&] {
    const auto packer = backend->pack_experts(kExperts, {.routing = {.experts_per_row = 2}}, {});
    for (int32_t i = 0; i < kExperts; ++i) packer->add(wide.tensor(), wide.tensor(), tall.tensor());
    return packer->finish();
  };
  (void)pack();  // takes the blocks that rows travel in
  const uint64_t before = backend->memory().available_bytes;
  emulator::reset();
  const auto experts = pack();
  REQUIRE(emulator::counts().allocations == 2);
  REQUIRE(emulator::counts().frees == 0);
  REQUIRE(before - backend->memory().available_bytes == kExperts * (cuda::packed_weight_bytes(kInner, kHidden, true) +
                                                                    cuda::packed_weight_bytes(kHidden, kInner, false)));
}

TEST_CASE("too many experts are refused at load with their number") {
  const CleanRuntime clean;
  const auto backend = cuda::make_backend({});
  const HostMatrix matrix({1.0f}, tensor::DType::kF32, 1, 1);
  const auto experts_of = [&](int32_t count) {
    const auto packer = backend->pack_experts(count, {.routing = {.experts_per_row = 1}}, {});
    for (int32_t i = 0; i < count; ++i) packer->add(matrix.tensor(), matrix.tensor(), matrix.tensor());
    return packer->finish();
  };
  REQUIRE(experts_of(cuda::kMaxExperts)->count() == cuda::kMaxExperts);
  REQUIRE_THROWS_WITH(experts_of(cuda::kMaxExperts + 1), "CUDA: a layer has 513 experts, wanted at most 512");
}
