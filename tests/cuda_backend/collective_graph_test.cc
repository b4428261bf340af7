// Collectives inside recorded graphs, and ends that do not open.

#include <array>
#include <chrono>

#include "conformance/rank_group.h"
#include "cuda/emulator/fake_runtime.h"
#include "support/mentions.h"
#include "tensor/replay.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;

TEST_CASE("a graph with collectives is replayed with equal sums") {
  constexpr int64_t kCols = 65;
  constexpr int32_t kRanks = 4;
  Random random(test_seed());
  INFO("MILLRACE_TEST_SEED=" << test_seed());
  RankGroup group = collective_cases().front().make(kRanks);
  std::vector<DeviceMatrix> sums;
  std::vector<DeviceMatrix> gathered;
  std::vector<std::unique_ptr<tensor::Replay>> replays;
  for (const auto& backend : group.backends) {
    sums.push_back(make_matrix(*backend, DType::kF32, 2, kCols));
    gathered.push_back(make_matrix(*backend, DType::kF32, 2, kCols * kRanks));
    replays.push_back(backend->make_replay());
  }
  const std::array<int32_t, 3> row_begin = {0, 1, 2};
  const std::array<int32_t, 2> prefix = {4, 5};
  const std::array<int32_t, 3> page_begin = {0, 1, 2};
  const std::array<PageId, 2> pages = {PageId(0), PageId(1)};
  const tensor::BatchLayout layout{.row_begin = row_begin, .prefix = prefix, .page_begin = page_begin, .pages = pages};
  for (int step = 0; step < 5; ++step) {
    CAPTURE(step);
    std::vector<Values> values;
    for (int32_t rank = 0; rank < kRanks; ++rank) values.push_back(random.normal(2 * kCols));
    std::array<tensor::GraphOutcome, kRanks> outcomes{};
    run_on_all(group, [&](tensor::Backend& backend, tensor::Collective& end, int32_t rank) {
      const auto at = static_cast<size_t>(rank);
      const tensor::UploadedBatch batch = backend.upload(layout);
      const tensor::ReplayKey key{.hidden = sums[at].matrix.data, .row_count = 2, .tail_count = 2};
      outcomes[at] = replays[at]->run(
          key, batch, [&] { upload(backend, values[at], sums[at]); },
          [&] {
            end.all_reduce(sums[at].matrix);
            end.all_gather(sums[at].matrix, gathered[at].matrix);
          });
    });
    const Values wanted = add_in_tree(values);
    for (size_t at = 0; at < kRanks; ++at) {
      REQUIRE(outcomes[at] == (step == 0 ? tensor::GraphOutcome::kNew : tensor::GraphOutcome::kReplayed));
      check_same_bits(read_back(*group.backends[at], sums[at].matrix), wanted);
      const Values whole = read_back(*group.backends[at], gathered[at].matrix);
      for (size_t i = 0; i < whole.size(); ++i) REQUIRE(whole[i] == wanted[i / (kCols * kRanks) * kCols + i % kCols]);
    }
  }
  replays.clear();
}

TEST_CASE("ranks that exchange by copies record no graph") {
  const RankGroup group = collective_cases()[1].make(2);
  const auto replay = group.backends[0]->make_replay();
  const tensor::BatchSize size{.rows = 3, .sequences = 3, .sequence_rows = 1};
  REQUIRE(replay->padded(size).rows == size.rows);
}

TEST_CASE("an end of a group whose other ranks never come gives up") {
  RankGroup group = collective_cases().front().make(2);
  const auto id = group.backends[0]->make_channel_id();
  std::string message;
  try {
    const auto end = group.backends[0]->open_collective(
        {.position = {0, 2}, .id = id, .name = "the ranks of stage 7", .open_timeout = std::chrono::milliseconds(50)});
  } catch (const std::runtime_error& error) {
    message = error.what();
  }
  REQUIRE_THAT(message, Mentions("the ranks of stage 7", "2 ranks"));
}
