// Graphs that cannot be made: the ops run as they come, the stream goes on, and nothing of the attempt is left.

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <set>

#include "cuda/graph_cache.h"
#include "cuda/submissions.h"
#include "cuda_backend/fake_rig.h"

using namespace millrace;
using namespace millrace::test;

TEST_CASE("rows are padded to few sizes, of as many tiles as they have themselves, and to few rows more") {
  using cuda::GraphCache;
  constexpr int32_t kWidest = 128;  // of product.cuh's tiles
  const auto tiles = [&](int32_t rows) {
    const int32_t width = std::clamp(static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(rows))), 8, kWidest);
    return std::pair((rows + width - 1) / width, width);
  };
  std::set<int32_t> sizes;
  for (int32_t rows = 1; rows <= GraphCache::kMaxRows; ++rows) {
    const int32_t padded = GraphCache::bucket(rows);
    CAPTURE(rows, padded);
    REQUIRE(padded >= rows);
    REQUIRE(tiles(padded) == tiles(rows));
    REQUIRE((rows <= kWidest || padded - rows < 64));
    REQUIRE(GraphCache::bucket(padded) == padded);
    sizes.insert(padded);
  }
  REQUIRE(sizes.size() == 14);
  REQUIRE(*sizes.rbegin() == GraphCache::kMaxRows);
  REQUIRE(GraphCache::bucket(GraphCache::kMaxRows + 1) == GraphCache::kMaxRows + 1);
}

TEST_CASE("decode steps of more than 128 rows are replayed, and draw what they draw without graphs") {
  const CleanRuntime clean;
  constexpr size_t kSequences = 260;
  std::vector<DecodeRig::Drawn> drawn;
  for (const bool graphs : {false, true}) {
    DecodeRig rig = make_rig(1, graphs, {.sequence_count = kSequences, .first_prompt = 3, .prompt_growth = 0});
    emulator::reset();
    rig.prefill();
    for (const size_t count : {200, 200, 193, 256, 250, 130, 192, 140, 131}) rig.decode(count);
    using Counts = tensor::DecodeSteps::Counts;  // replayed, new, failed, too large, loading, off
    REQUIRE(rig.decode_steps() == (graphs ? Counts{5, 4, 0, 0, 0, 0} : Counts{0, 0, 0, 0, 0, 9}));
    for (int i = 0; i < 3; ++i) rig.decode();  // padded to what the buffers of rows that are drawn from hold
    REQUIRE(rig.decode_steps() == (graphs ? Counts{6, 6, 0, 0, 0, 0} : Counts{0, 0, 0, 0, 0, 12}));
    REQUIRE(emulator::counts().allocations == 0);
    drawn.push_back(rig.drawn());
  }
  REQUIRE(same(drawn[1], drawn[0]));
}

TEST_CASE("a graph that fails at whatever call leaves its steps to the ops, says why, and leaves nothing behind") {
  const CleanRuntime clean;
  const DecodeRig::Drawn wanted = wanted_draws();
  emulator::reset();
  uint64_t graph_launches = 0;
  {
    DecodeRig rig = make_rig(1, true, {});
    REQUIRE(same(generate(rig, kSteps), wanted));
    graph_launches = emulator::counts().graph_launches;
    REQUIRE(emulator::live_graphs() == 2);
  }
  std::vector<std::string> reasons = {""};
  for (uint64_t nth = 1; reasons.back().find("cudaGraphUpload") == std::string::npos; ++nth) {
    CAPTURE(nth);
    emulator::reset();
    std::vector<std::string> warned;
    {
      DecodeRig rig = make_rig(1, true, {}, [&](const std::string& what) { warned.push_back(what); });
      emulator::fail_graph_call(nth);
      REQUIRE(same(generate(rig, kSteps), wanted));
      REQUIRE(emulator::counts().graph_launches == graph_launches / 2);  // of the other output buffer
      REQUIRE(emulator::live_graphs() == 1);
    }
    REQUIRE(emulator::live_graphs() == 0);
    REQUIRE(warned.size() == 1);
    REQUIRE_THAT(warned[0],
                 Catch::StartsWith("device 0: decode steps of up to 4 rows and 2048 tokens of all contexts run "
                                   "without a graph: ") &&
                     Catch::Contains("out of memory"));
    reasons.push_back(warned[0]);
  }
  for (const char* call :
       {"cudaStreamBeginCapture", "a launch", "cudaStreamEndCapture", "cudaGraphInstantiate", "cudaGraphUpload"}) {
    CAPTURE(call);
    REQUIRE(std::ranges::count_if(reasons, [&](const auto& reason) { return reason.find(call) != std::string::npos; }) >
            0);
  }
}

TEST_CASE("where no graph can be made, the attempts end after a few, and every step is as ever") {
  const CleanRuntime clean;
  static_assert(cuda::GraphCache::kMostFailures == 4);
  constexpr size_t kSequences = 8;
  std::vector<DecodeRig::Drawn> drawn;
  std::vector<std::string> warned;
  for (const bool graphs : {false, true}) {
    DecodeRig rig =
        make_rig(1, graphs, {.sequence_count = kSequences}, [&](const std::string& what) { warned.push_back(what); });
    emulator::refuse_graphs();
    rig.prefill();
    for (const size_t count : {8, 4, 2, 1}) {
      for (int i = 0; i < 6; ++i) rig.decode(count);  // two output buffers, each of which runs once before its graph
    }
    drawn.push_back(rig.drawn());
  }
  REQUIRE(same(drawn[1], drawn[0]));
  REQUIRE(emulator::counts().captures == 0);
  REQUIRE(emulator::counts().graph_launches == 0);
  REQUIRE(warned.size() == 3);  // two buffers for 8 rows and two for 4, of which the last ends the attempts
  REQUIRE_THAT(warned.front(),
               Catch::EndsWith("cudaStreamBeginCapture: operation not supported (cudaErrorNotSupported)"));
  REQUIRE_THAT(warned.back(), Catch::EndsWith("; no further graph is tried"));
}

TEST_CASE("failures that are not in a row do not end the attempts") {
  const CleanRuntime clean;
  size_t warned = 0;
  DecodeRig rig = make_rig(1, true, {.sequence_count = 8}, [&](const std::string&) { ++warned; });
  rig.prefill();
  static_assert(cuda::GraphCache::kMostFailures == 4);
  for (const size_t count : {1, 2, 4, 8}) {
    const uint64_t launches = emulator::counts().graph_launches;
    emulator::fail_graph_call(1);
    for (int i = 0; i < 6; ++i) rig.decode(count);
    REQUIRE(emulator::counts().graph_launches == launches + 2);  // of the other output buffer
  }
  REQUIRE(warned == 4);
}

TEST_CASE("a graph that was made and is not launched leaves that step to the ops, whatever of it has begun") {
  const CleanRuntime clean;
  const DecodeRig::Drawn wanted = wanted_draws();
  for (const size_t stages : {1, 2}) {
    for (const size_t begun : {0, 1, 9, 1000}) {
      for (uint64_t nth = 1; nth <= stages; ++nth) {
        CAPTURE(stages, begun, nth);
        emulator::reset();
        std::vector<std::string> warned;
        DecodeRig rig = make_rig(stages, true, {}, [&](const std::string& what) { warned.push_back(what); });
        rig.prefill();
        for (int i = 0; i < 4; ++i) rig.decode();
        const uint64_t launches = emulator::counts().graph_launches;
        emulator::fail_graph_launch(nth, begun);
        while (rig.drawn()[0].size() < wanted[0].size()) rig.decode();
        REQUIRE(same(rig.drawn(), wanted));
        REQUIRE(warned.size() == 1);
        REQUIRE_THAT(warned[0], Catch::Contains("CUDA: cudaGraphLaunch: out of memory"));
        const size_t steps = kSteps - 4;
        REQUIRE(emulator::counts().graph_launches == launches + stages * steps - steps / 2);
        REQUIRE(emulator::live_graphs() == static_cast<int64_t>(2 * stages) - 1);
      }
    }
  }
}

TEST_CASE("a device that is lost fails the step, in whatever state its graph is, and no graph is to blame") {
  const CleanRuntime clean;
  for (const size_t stages : {1, 2}) {
    for (const int steps_before : {0, 2, 4}) {  // the step is the first of its kind, is captured, is launched
      CAPTURE(stages, steps_before);
      std::vector<std::string> warned;
      DecodeRig rig = make_rig(stages, true, {}, [&](const std::string& what) { warned.push_back(what); });
      rig.prefill();
      for (int i = 0; i < steps_before; ++i) rig.decode();
      const auto drawn = rig.drawn();
      emulator::lose_device();
      for (int i = 0; i < 2; ++i) {
        REQUIRE_THROWS_WITH(rig.decode(), Catch::Contains("an illegal memory access was encountered"));
      }
      REQUIRE(same(rig.drawn(), drawn));
      REQUIRE(warned.empty());
      emulator::reset();
    }
  }
}

TEST_CASE("an error that sticks and shows first where a graph is launched fails the step") {
  const CleanRuntime clean;
  for (const size_t stages : {1, 2}) {
    CAPTURE(stages);
    std::vector<std::string> warned;
    DecodeRig rig = make_rig(stages, true, {}, [&](const std::string& what) { warned.push_back(what); });
    rig.prefill();
    for (int i = 0; i < 4; ++i) rig.decode();
    emulator::lose_device_at_graph_launch();
    REQUIRE_THROWS_WITH(rig.decode(), Catch::Contains("an illegal memory access was encountered"));
    REQUIRE(warned.empty());
    emulator::reset();
  }
}

TEST_CASE("the rows that go on from the last layer have the bounds by which the graph of all rows is known") {
  const CleanRuntime clean;
  const auto backend = cuda::make_backend({});
  const std::vector<int32_t> page_begin{0, 1, 2, 3};
  const std::vector<PageId> pages(3);
  const std::vector<int32_t> all{0, 1, 2, 3};
  const std::vector<int32_t> some{0, 0, 1, 1};
  for (const int32_t longest : {256, 257, 5000, 100'000}) {
    const std::vector<int32_t> prefix{longest - 1, 699, 12};
    const std::vector<int32_t> some_prefix{longest, 699, 13};
    const auto bounds_of = [&](const tensor::BatchLayout& layout) {
      return static_cast<const cuda::CudaBatch*>(backend->place(layout).placed)->bounds;
    };
    cuda::BatchBounds whole;
    cuda::BatchBounds tails;
    backend->run_and_wait([&] {
      whole = bounds_of({all, prefix, page_begin, pages, 4, 4});
      tails = bounds_of({some, some_prefix, page_begin, pages, 1, 4});
    });
    REQUIRE(tails.splits == whole.splits);
    REQUIRE(tails.sequences == whole.sequences);
    REQUIRE(tails.sequence_rows == whole.sequence_rows);
    REQUIRE(whole.splits >= cuda::splits_of(1, longest) + 4);
  }
}

TEST_CASE("decode steps are counted by what became of their graphs") {
  const CleanRuntime clean;
  using Counts = tensor::DecodeSteps::Counts;  // replayed, new, failed, too large, loading, off
  DecodeRig rig = make_rig(1, true, {.page_size = 4, .host_page_count = 64, .sequence_count = 3});
  rig.prefill();
  REQUIRE(rig.decode_steps() == Counts{});
  for (int i = 0; i < 2; ++i) rig.decode();
  REQUIRE(rig.decode_steps() == Counts{0, 2, 0, 0, 0, 0});
  for (int i = 0; i < 3; ++i) rig.decode();
  REQUIRE(rig.decode_steps() == Counts{3, 2, 0, 0, 0, 0});
  rig.move_pages();
  rig.decode();
  REQUIRE(rig.decode_steps() == Counts{3, 2, 0, 0, 1, 0});
  emulator::fail_graph_launch(1);
  rig.decode();
  REQUIRE(rig.decode_steps() == Counts{3, 2, 1, 0, 1, 0});
  for (int i = 0; i < 2; ++i) rig.decode();
  REQUIRE(rig.decode_steps() == Counts{4, 2, 2, 0, 1, 0});

  DecodeRig off = make_rig(1, false, {});
  (void)generate(off, 3);
  REQUIRE(off.decode_steps() == Counts{0, 0, 0, 0, 0, 3});

  constexpr size_t kMany = cuda::GraphCache::kMaxRows + 1;
  DecodeRig many = make_rig(1, true, {.sequence_count = kMany, .first_prompt = 3, .prompt_growth = 0});
  many.prefill();
  many.decode(1);
  many.decode(kMany);
  REQUIRE(many.decode_steps() == Counts{0, 1, 0, 1, 0, 0});
}
