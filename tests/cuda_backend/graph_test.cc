// Graphs that cannot be made: the ops run as they come, the stream goes on, and nothing of the attempt is left.

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <future>
#include <random>
#include <set>

#include "cuda/graph_cache.h"
#include "cuda/submissions.h"
#include "cuda_backend/fake_rig.h"
#include "support/test_seed.h"

using namespace millrace;
using namespace millrace::test;

TEST_CASE("rows are padded to few sizes of equal tile count") {
  using cuda::GraphCache;
  constexpr int32_t kWidest = 128;  // of gemm.cuh's tiles
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

TEST_CASE("decode steps of over 128 rows replay with equal tokens") {
  const CleanRuntime clean;
  constexpr size_t kSequences = 260;
  std::vector<DecodeRig::Drawn> drawn;
  for (const bool graphs : {false, true}) {
    DecodeRig rig = make_rig(1, graphs, {.sequence_count = kSequences, .first_prompt = 3, .prompt_growth = 0});
    emulator::reset();
    rig.prefill();
    for (const size_t count : {200, 200, 193, 256, 250, 130, 192, 140, 131}) rig.decode(count);
    using Counts = tensor::GraphStats::Counts;  // replayed, new, failed, too large, loading, off
    REQUIRE(rig.graph_stats() == (graphs ? Counts{5, 4, 0, 0, 0, 0} : Counts{0, 0, 0, 0, 0, 9}));
    for (int i = 0; i < 3; ++i) rig.decode();  // padded to what the buffers of rows that are drawn from hold
    REQUIRE(rig.graph_stats() == (graphs ? Counts{6, 6, 0, 0, 0, 0} : Counts{0, 0, 0, 0, 0, 12}));
    REQUIRE(emulator::counts().allocations == 0);
    drawn.push_back(rig.drawn());
  }
  REQUIRE(same(drawn[1], drawn[0]));
}

TEST_CASE("draft steps replay few graphs with equal tokens") {
  const CleanRuntime clean;
  const std::string family = GENERATE(as<std::string>{}, "qwen2", "qwen3moe");
  constexpr size_t kSequences = 5;
  constexpr size_t kDraws = 60;
  const DecodeRig::Options plain{.family = family, .sequence_count = kSequences, .max_batch_tokens = 512};
  DecodeRig without = make_rig(1, false, plain);
  const DecodeRig::Drawn wanted = generate(without, kDraws);
  // The last layer also computes all rows, or only those that are sampled.
  for (const auto& [draft_rows, stages] : {std::pair{0, 1}, std::pair{20, 2}}) {
    CAPTURE(family, draft_rows, stages);
    DecodeRig::Options options = plain;
    options.draft_rows = draft_rows;
    DecodeRig rig = make_rig(static_cast<size_t>(stages), true, options);
    emulator::reset();
    rig.prefill();
    std::minstd_rand random(7);
    uint64_t steps = 0;
    for (; std::ranges::any_of(rig.drawn(), [&](const auto& own) { return own.size() < kDraws; }); ++steps) {
      rig.decode(random_drafts(wanted, rig.drawn(), kSequences, 4, random));
    }
    for (size_t s = 0; s < kSequences; ++s) {
      const auto& own = rig.drawn()[s];
      const size_t both = std::min(own.size(), wanted[s].size());
      REQUIRE(std::equal(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(both), wanted[s].begin(),
                         [](const auto& left, const auto& right) { return same(left, right); }));
    }
    const auto [replayed, fresh, failed, too_large, loading, off] = rig.graph_stats();
    REQUIRE(steps < kDraws * 3 / 4);  // drafts were right
    REQUIRE(replayed + fresh == steps);
    REQUIRE(fresh <= 12);
    REQUIRE(replayed > fresh);
    REQUIRE(emulator::counts().graph_launches == static_cast<uint64_t>(stages) * replayed);
    REQUIRE(emulator::counts().allocations == 0);
    REQUIRE(emulator::counts().synchronisations == 0);
  }
}

TEST_CASE("launch sizes of a step are the key of its graph") {
  const CleanRuntime clean;
  cuda::Device device(cuda::CudaOptions{});
  cuda::Submissions submissions(device);
  cuda::GraphCache graphs(device, submissions, {});
  const auto run = [&](const tensor::ReplayKey& key, const cuda::BatchBounds& bounds) {
    auto step = tensor::GraphOutcome::kOff;
    std::promise<void> done;
    const auto work = [&] {
      const cuda::CudaBatch batch{{}, bounds};
      step = graphs.run(key, {.layout = {}, .handle = &batch}, {}, [] {});
    };
    submissions.submit(work, [&](const std::exception_ptr&) { done.set_value(); });
    done.get_future().get();
    return step;
  };
  using tensor::GraphOutcome;
  std::byte hidden[2];
  const std::vector<std::pair<tensor::ReplayKey, cuda::BatchBounds>> all{
      {{&hidden[0], 16, 8}, {16, 4, 2, 16}}, {{&hidden[1], 16, 8}, {16, 4, 2, 16}},
      {{&hidden[0], 32, 8}, {32, 4, 2, 16}}, {{&hidden[0], 16, 16}, {16, 4, 2, 16}},
      {{&hidden[0], 16, 8}, {16, 8, 2, 16}}, {{&hidden[0], 16, 8}, {16, 4, 4, 16}},
      {{&hidden[0], 16, 8}, {16, 4, 2, 32}}, {{&hidden[0], 16, 8, 128}, {16, 4, 2, 16}}};
  for (const auto& [key, bounds] : all) REQUIRE(run(key, bounds) == GraphOutcome::kNew);
  for (const auto& [key, bounds] : all) REQUIRE(run(key, bounds) == GraphOutcome::kReplayed);
  REQUIRE(emulator::live_graphs() == static_cast<int64_t>(all.size()));
  REQUIRE(run({&hidden[0], 513, 8}, {513, 4, 2, 16}) == GraphOutcome::kTooLarge);
  REQUIRE(run({&hidden[0], 64, 8}, {64, 4, 33, 16}) == GraphOutcome::kTooLarge);
  device.poller.finish();
}

TEST_CASE("a graph serves other drafts and changes only their pages") {
  const CleanRuntime clean;
  constexpr size_t kSequences = 8;
  constexpr uint32_t kHostPages = 2 * kSequences * DecodeRig::kPagesEach;
  using Drafts = std::vector<std::vector<TokenId>>;  // of each sequence, whatever they are worth
  const Drafts first{{1, 2, 3, 4, 5, 6, 7}, {1}, {}, {}, {}, {}, {}, {}};
  const std::vector<Drafts> others{
      {{}, {1, 2, 3, 4, 5, 6}, {7, 8}, {}, {}},             // 5 sequences, 13 rows
      {{}, {}, {9, 9, 9, 9, 9, 9, 9}, {}, {}, {}, {}, {}},  // 8 sequences, 15 rows
      {{4, 4, 4, 4}, {}, {}, {}, {}, {}},                   // 6 sequences, 10 rows
      {{1}, {1}, {1}, {1}, {}, {}, {}, {4, 3, 2, 1, 2}},    // 8 sequences, 17 rows: of another graph
  };
  std::vector<DecodeRig::Drawn> drawn;
  std::vector<std::vector<std::byte>> pages;
  for (const bool graphs : {false, true}) {
    DecodeRig rig = make_rig(1, graphs,
                             {.host_page_count = kHostPages,
                              .sequence_count = kSequences,
                              .first_prompt = 3,
                              .prompt_growth = 5,
                              .max_batch_tokens = 512,
                              .draft_rows = 24});
    rig.prefill();
    for (int i = 0; i < 4; ++i) rig.decode(Drafts(kSequences, {1}));  // as many rows, but none of 8
    for (int i = 0; i < 4; ++i) rig.decode(first);  // two output buffers, each of which runs once and is captured
    emulator::reset();
    for (const Drafts& drafts : others) rig.decode(drafts);
    REQUIRE(emulator::counts().graph_launches == (graphs ? 3 : 0));
    REQUIRE(emulator::counts().creations == 0);
    drawn.push_back(rig.drawn());
    pages.push_back(rig.pages());
  }
  REQUIRE(same(drawn[1], drawn[0]));
  REQUIRE(pages[1] == pages[0]);
}

TEST_CASE("a graph that fails at any call falls back to ops with reason") {
  const CleanRuntime clean;
  const DecodeRig::Drawn wanted = wanted_draws();
  emulator::reset();
  uint64_t graph_launches = 0;
  uint64_t calls = 0;  // that make one graph
  {
    DecodeRig rig = make_rig(1, true, {});
    REQUIRE(same(generate(rig, kSteps), wanted));
    graph_launches = emulator::counts().graph_launches;
    calls = emulator::counts().graph_calls / 2;
    REQUIRE(emulator::live_graphs() == 2);
  }
  // The first is cudaStreamBeginCapture, the last three end the capture, instantiate the graph and upload it.
  std::set<uint64_t> failing{1, 2, calls - 3, calls - 2, calls - 1, calls};
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < 4; ++i) failing.insert(std::uniform_int_distribution<uint64_t>(3, calls - 4)(random));
  INFO("seed " << test_seed());
  std::vector<std::string> reasons;
  for (const uint64_t nth : failing) {
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

TEST_CASE("graph attempts end after a few failures") {
  const CleanRuntime clean;
  static_assert(cuda::GraphCache::kMaxFailures == 4);
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
  static_assert(cuda::GraphCache::kMaxFailures == 4);
  for (const size_t count : {1, 2, 4, 8}) {
    const uint64_t launches = emulator::counts().graph_launches;
    emulator::fail_graph_call(1);
    for (int i = 0; i < 6; ++i) rig.decode(count);
    REQUIRE(emulator::counts().graph_launches == launches + 2);  // of the other output buffer
  }
  REQUIRE(warned == 4);
}

TEST_CASE("a graph that fails to launch leaves its step to the ops") {
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

TEST_CASE("a lost device fails the step and no graph is blamed") {
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

TEST_CASE("a sticky error that shows at a graph launch fails the step") {
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

TEST_CASE("tail rows have the bounds of the key of their graph") {
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
      return static_cast<const cuda::CudaBatch*>(backend->upload(layout).handle)->bounds;
    };
    cuda::BatchBounds whole;
    cuda::BatchBounds tails;
    backend->run_and_wait([&] {
      whole = bounds_of({all, prefix, page_begin, pages, {}, 4, 4});
      tails = bounds_of({some, some_prefix, page_begin, pages, {}, 1, 4});
    });
    REQUIRE(tails.splits == whole.splits);
    REQUIRE(tails.sequences == whole.sequences);
    REQUIRE(tails.sequence_rows == whole.sequence_rows);
    REQUIRE(whole.splits >= cuda::splits_of(1, longest) + 4);
    const std::vector<int32_t> drafted{0, 4, 5, 7};
    const std::vector<int32_t> drafted_tails{0, 1, 1, 3};
    const std::vector<int32_t> tails_prefix{longest + 2, 700, 12};
    backend->run_and_wait([&] {
      whole = bounds_of({drafted, prefix, page_begin, pages, {}, 8, 4, 4});
      tails = bounds_of({drafted_tails, tails_prefix, page_begin, pages, {}, 4, 4, 4});
    });
    REQUIRE(tails.splits == whole.splits);
    REQUIRE(tails.sequences == whole.sequences);
    REQUIRE(tails.sequence_rows == whole.sequence_rows);
  }
}

TEST_CASE("decode steps are counted by what became of their graphs") {
  const CleanRuntime clean;
  using Counts = tensor::GraphStats::Counts;  // replayed, new, failed, too large, loading, off
  DecodeRig rig = make_rig(1, true, {.page_size = 4, .host_page_count = 64, .sequence_count = 3});
  rig.prefill();
  REQUIRE(rig.graph_stats() == Counts{});
  for (int i = 0; i < 2; ++i) rig.decode();
  REQUIRE(rig.graph_stats() == Counts{0, 2, 0, 0, 0, 0});
  for (int i = 0; i < 3; ++i) rig.decode();
  REQUIRE(rig.graph_stats() == Counts{3, 2, 0, 0, 0, 0});
  rig.move_pages();
  rig.decode();
  REQUIRE(rig.graph_stats() == Counts{3, 2, 0, 0, 1, 0});
  emulator::fail_graph_launch(1);
  rig.decode();
  REQUIRE(rig.graph_stats() == Counts{3, 2, 1, 0, 1, 0});
  for (int i = 0; i < 2; ++i) rig.decode();
  REQUIRE(rig.graph_stats() == Counts{4, 2, 2, 0, 1, 0});

  DecodeRig off = make_rig(1, false, {});
  (void)generate(off, 3);
  REQUIRE(off.graph_stats() == Counts{0, 0, 0, 0, 0, 3});
}

TEST_CASE("oversized steps run op by op and prompt steps count nowhere") {
  const CleanRuntime clean;
  using Counts = tensor::GraphStats::Counts;  // replayed, new, failed, too large, loading, off
  {
    constexpr size_t kMany = cuda::GraphCache::kMaxRows + 1;
    DecodeRig many = make_rig(1, true, {.sequence_count = kMany, .first_prompt = 3, .prompt_growth = 0});
    many.prefill();
    many.decode(1);
    many.decode(kMany);
    REQUIRE(many.graph_stats() == Counts{0, 1, 0, 1, 0, 0});
  }
  const auto drafts = [](int32_t count) { return std::vector<TokenId>(static_cast<size_t>(count), 1); };
  DecodeRig rig = make_rig(1, true, {});
  rig.prefill();
  rig.decode({drafts(cuda::GraphCache::kMaxSequenceRows), {}});
  REQUIRE(rig.graph_stats() == Counts{0, 0, 0, 1, 0, 0});
  rig.decode({drafts(cuda::GraphCache::kMaxSequenceRows - 1), {}});
  REQUIRE(rig.graph_stats() == Counts{0, 1, 0, 1, 0, 0});
  rig.extend(drafts(2));
  REQUIRE(rig.graph_stats() == Counts{0, 1, 0, 1, 0, 0});
}
