#include "sched/plan/plan.h"

#include <catch2/catch.hpp>

#include "base/random.h"
#include "cache/group_pages.h"
#include "sched/plan/plan_output.h"
#include "support/hex.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

Plan sample_plan() {
  Plan plan;
  plan.id = PlanId(41);
  plan.epoch = RingEpoch(3);
  plan.closes = {SlotId(7), SlotId(2)};
  SequenceOpen open;
  open.slot = SlotId(2);
  open.prompt_length = 5;
  open.sampling.temperature = 0.25f;
  open.sampling.seed = 0xFEDCBA9876543210u;
  open.sampling.logit_bias = {{11, -3.5f}, {12, 100.0f}};
  open.sampling.stop_token_ids = {1, 2, 3};
  open.sampling.top_logprobs = 4;
  plan.opens = {open};
  TokenMask few(70);
  for (const TokenId token : {3, 69}) few.add(token);
  plan.masks = {{9, few}, {2, TokenMask({0xFFFFFFFFu, 0x80000001u, 0x3Fu})}};
  plan.slices = {{SlotId(2), 0, 5, 2, true, 1, -1},
                 {SlotId(4), 130, 3, 0, true, -1, -1, 2},
                 {.slot = SlotId(5), .token_count = 2, .pooling = SlicePooling::kMean, .second_text = 1}};
  plan.sample_masks = {-1, 2, -1, 9};
  plan.tokens = {10, 20, 30, 40, 50, 60, 70, 80, 90, 91};
  plan.new_pages = {PageId(9), PageId(8)};
  plan.windows = {{{1, 0, 2}, {PageId(5), PageId(6), PageId(7)}}};
  plan.reports = {{StageId(1), PlanId(40), 1000, 1100, 1200, 1193, 77}};
  cache::PageKey key;
  for (size_t i = 0; i < key.bytes.size(); ++i) key.bytes[i] = static_cast<uint8_t>(i + 1);
  plan.copies = {
      {cache::CopyId(5), cache::CopyKind::kLoad, {PageId(3), PageId(4)}, {HostPageId(6), HostPageId(7)}, {}},
      {cache::CopyId(6), cache::CopyKind::kFetch, {}, {HostPageId(8)}, {key}},
      {cache::CopyId(7), cache::CopyKind::kProbe, {}, {}, {key, {}}},
      {cache::CopyId(8), cache::CopyKind::kVerify, {}, {HostPageId(1), HostPageId(0)}, {}, cache::CopyId(2)}};
  plan.copies[0].group = 1;
  plan.digest = 0x123456789ABCDEF0u;
  plan.step = 77;
  return plan;
}

PlanOutput sample_output() {
  PlanOutput output;
  output.id = PlanId(41);
  output.epoch = RingEpoch(3);
  SliceOutput sampled;
  sampled.samples.resize(2);
  sampled.samples[0].token = 99;
  sampled.samples[0].logprobs = {99, -0.5f, 2, {{98, -0.25f}, {99, -0.5f}}};
  sampled.samples[1].token = 7;
  SliceOutput scored;
  scored.scores = {{5, -1.0f, 3, {}}, {6, -2.0f, 1, {{6, -2.0f}}}};
  SliceOutput faulty;
  faulty.fault = tensor::LogitFault::kAllNegativeInfinity;
  SliceOutput pooled;
  pooled.pooled = {0.5f, -2.0f};
  output.slices = {sampled, scored, SliceOutput{}, faulty, pooled};
  output.reports = {{StageId(0), PlanId(41), 1, 2, 3, 4, 5}};
  return output;
}

}  // namespace

TEST_CASE("a plan survives its wire form") {
  const Plan plan = sample_plan();
  const auto bytes = plan.encode();
  const auto read = Plan::decode(bytes);
  REQUIRE(read.has_value());
  REQUIRE(read->encode() == bytes);
  REQUIRE(read->id == plan.id);
  REQUIRE(read->closes == plan.closes);
  REQUIRE(read->opens[0].sampling.seed == plan.opens[0].sampling.seed);
  REQUIRE(read->opens[0].sampling.logit_bias == plan.opens[0].sampling.logit_bias);
  REQUIRE(read->slices[1].prefix == 130);
  REQUIRE(read->slices[0].draft_count == 0);
  REQUIRE(read->slices[1].draft_count == 2);
  REQUIRE(read->slices[1].pooling == SlicePooling::kNone);
  REQUIRE(read->slices[2].pooling == SlicePooling::kMean);
  REQUIRE(read->slices[2].second_text == 1);
  REQUIRE(read->sample_masks == plan.sample_masks);
  REQUIRE(read->masks.size() == 2);
  for (size_t i = 0; i < plan.masks.size(); ++i) {
    REQUIRE(read->masks[i].index == plan.masks[i].index);
    REQUIRE(read->masks[i].mask == plan.masks[i].mask);
  }
  REQUIRE(read->slices[0].prompt_top_logprobs == 1);
  REQUIRE(read->tokens == plan.tokens);
  REQUIRE(read->new_pages == plan.new_pages);
  REQUIRE(read->windows.size() == 1);
  REQUIRE(read->windows[0].counts == plan.windows[0].counts);
  REQUIRE(read->windows[0].pages == plan.windows[0].pages);
  REQUIRE(read->reports[0].run_ns() == -7);
  REQUIRE(read->reports[0].sent_bytes == 77);
  REQUIRE(read->digest == plan.digest);
  REQUIRE(read->step == plan.step);
  REQUIRE(read->copies.size() == plan.copies.size());
  for (size_t i = 0; i < plan.copies.size(); ++i) {
    REQUIRE(read->copies[i].id == plan.copies[i].id);
    REQUIRE(read->copies[i].kind == plan.copies[i].kind);
    REQUIRE(read->copies[i].device == plan.copies[i].device);
    REQUIRE(read->copies[i].host == plan.copies[i].host);
    REQUIRE(read->copies[i].keys == plan.copies[i].keys);
    REQUIRE(read->copies[i].previous_verify == plan.copies[i].previous_verify);
    REQUIRE(read->copies[i].group == plan.copies[i].group);
  }
}

TEST_CASE("an output survives its wire form") {
  const auto bytes = sample_output().encode();
  const auto read = PlanOutput::decode(bytes);
  REQUIRE(read.has_value());
  REQUIRE(read->encode() == bytes);
  REQUIRE(read->slices[0].samples.size() == 2);
  REQUIRE(read->slices[0].samples[0].token == 99);
  REQUIRE(read->slices[0].samples[0].logprobs.top == sample_output().slices[0].samples[0].logprobs.top);
  REQUIRE(read->slices[0].samples[1].token == 7);
  REQUIRE(read->slices[1].scores[1].rank == 1);
  REQUIRE(read->slices[2].samples.empty());
  REQUIRE(read->slices[2].fault == tensor::LogitFault::kNone);
  REQUIRE(read->slices[3].fault == tensor::LogitFault::kAllNegativeInfinity);
  REQUIRE(read->slices[4].pooled == std::vector<float>{0.5f, -2.0f});
  PlanOutput unknown = sample_output();
  unknown.slices[0].fault = static_cast<tensor::LogitFault>(4);
  REQUIRE(PlanOutput::decode(unknown.encode()).error().message == "output: a fault of unknown kind 4");
}

TEST_CASE("acknowledgements survive their wire form") {
  const std::vector<cache::CopyAck> acks{{cache::CopyId(4), 9}, {cache::CopyId(uint64_t{1} << 40), 0}};
  const auto bytes = encode_acks(acks);
  const auto read = decode_acks(bytes);
  REQUIRE(read.has_value());
  REQUIRE(read->size() == 2);
  REQUIRE(read->at(0).copy == acks[0].copy);
  REQUIRE(read->at(0).done == 9);
  REQUIRE(read->at(1).copy == acks[1].copy);
  for (size_t length = 0; length < bytes.size(); ++length) {
    REQUIRE(decode_acks(std::span(bytes).first(length)).has_error());
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  REQUIRE(decode_acks(longer).error().message == "acks: malformed message of 33 bytes");
  REQUIRE(decode_acks(sample_plan().encode()).error().message == "acks: wrong magic number");
}

TEST_CASE("every truncation of a message is refused") {
  const auto plan = sample_plan().encode();
  for (size_t length = 0; length < plan.size(); ++length) {
    REQUIRE(Plan::decode(std::span(plan).first(length)).has_error());
  }
  const auto output = sample_output().encode();
  for (size_t length = 0; length < output.size(); ++length) {
    REQUIRE(PlanOutput::decode(std::span(output).first(length)).has_error());
  }
  auto longer = plan;
  longer.push_back(std::byte{0});
  REQUIRE(Plan::decode(longer).has_error());
}

TEST_CASE("corrupted messages are refused or consistent") {
  const auto original = sample_plan().encode();
  size_t refused = 0;
  constexpr int kTries = 20000;
  for (int i = 0; i < kTries; ++i) {
    auto bytes = original;
    for (uint64_t flip = 0; flip < 3; ++flip) {
      const auto at =
          static_cast<size_t>(uniform_at(static_cast<uint64_t>(i), flip) * static_cast<double>(bytes.size()));
      bytes[at] = static_cast<std::byte>(uniform_at(static_cast<uint64_t>(i), 10 + flip) * 256);
    }
    const auto plan = Plan::decode(bytes);
    refused += plan.has_error();
    if (plan.has_error()) continue;
    size_t tokens = 0;
    for (const PlanSlice& slice : plan->slices) tokens += slice.token_count;
    REQUIRE(tokens == plan->tokens.size());
  }
  REQUIRE(refused > kTries / 10);
}

TEST_CASE("a plan carries the holes of state groups") {
  Plan plan = sample_plan();
  plan.windows[0].pages[1] = cache::kNoPage;
  const auto read = Plan::decode(plan.encode());
  REQUIRE(read.has_value());
  REQUIRE(read->windows[0].pages == plan.windows[0].pages);
}

TEST_CASE("a plan whose parts disagree is refused with both numbers") {
  Plan plan = sample_plan();
  plan.tokens.pop_back();
  REQUIRE(Plan::decode(plan.encode()).error().message == "plan: 9 tokens, its slices want 10");
  plan = sample_plan();
  plan.new_pages.push_back(PageId(1));
  REQUIRE(Plan::decode(plan.encode()).error().message == "plan: 3 new pages, its slices want 2");
  plan = sample_plan();
  plan.windows[0].pages.pop_back();
  REQUIRE(Plan::decode(plan.encode()).error().code == ErrorCode::kData);
  plan = sample_plan();
  plan.windows[0].counts.pop_back();
  plan.windows[0].pages = {PageId(5)};
  REQUIRE(Plan::decode(plan.encode()).error().code == ErrorCode::kData);
  plan = sample_plan();
  plan.sample_masks.pop_back();
  REQUIRE(Plan::decode(plan.encode()).error().message == "plan: masks of 3 draws, its slices have 4");
  plan.sample_masks.clear();
  REQUIRE(Plan::decode(plan.encode()).has_value());
}

TEST_CASE("a slice with drafts samples after each of them") {
  const auto message = [](auto change) {
    Plan plan = sample_plan();
    plan.sample_masks.clear();
    change(plan.slices[1]);
    return Plan::decode(plan.encode()).error().message;
  };
  REQUIRE(message([](PlanSlice& slice) { slice.draft_count = 3; }) ==
          "plan: a slice of 3 tokens with 3 drafts, draws and no scores");
  REQUIRE(message([](PlanSlice& slice) { slice.draft_count = UINT32_MAX; }) ==
          "plan: a slice of 3 tokens with 4294967295 drafts, draws and no scores");
  REQUIRE(message([](PlanSlice& slice) { slice.sample = false; }) ==
          "plan: a slice of 3 tokens with 2 drafts, no draw and no scores");
  REQUIRE(message([](PlanSlice& slice) { slice.prompt_top_logprobs = 0; }) ==
          "plan: a slice of 3 tokens with 2 drafts, draws and scores");
}

TEST_CASE("a slice that is pooled does nothing else") {
  const auto message = [](auto change) {
    Plan plan = sample_plan();
    plan.sample_masks.clear();
    change(plan.slices[2]);
    return Plan::decode(plan.encode()).error().message;
  };
  REQUIRE(message([](PlanSlice& slice) { slice.sample = true; }) == "plan: a slice that is pooled (kind 4) also draws");
  REQUIRE(message([](PlanSlice& slice) { slice.prompt_top_logprobs = 0; }) ==
          "plan: a slice that is pooled (kind 4) also scores");
  REQUIRE(message([](PlanSlice& slice) { slice.pooling = static_cast<SlicePooling>(5); }) ==
          "plan: pooling of unknown kind 5");
}

TEST_CASE("a slice keeps the rows that its pooling takes") {
  const auto tails = [](SlicePooling pooling) { return PlanSlice{.token_count = 5, .pooling = pooling}.tail_rows(); };
  REQUIRE(tails(SlicePooling::kNone) == 0);
  REQUIRE(tails(SlicePooling::kLastRow) == 1);
  for (const auto pooling : {SlicePooling::kFirstRow, SlicePooling::kSum, SlicePooling::kMean}) {
    REQUIRE(tails(pooling) == 5);
  }
  REQUIRE_FALSE(PlanSlice{.pooling = SlicePooling::kSum}.returns_vector());
  REQUIRE(PlanSlice{.pooling = SlicePooling::kMean}.returns_vector());
}

TEST_CASE("a mask whose parts disagree is refused") {
  Plan plan;
  plan.masks = {{0, TokenMask({1u, 2u, 3u})}};
  auto bytes = plan.encode();
  // After magic, id, epoch, and the counts of closes, opens and masks come its index and its words.
  constexpr size_t kWords = 4 + 8 + 4 + 4 + 4 + 4 + 4;
  bytes[kWords] = std::byte{4};
  REQUIRE(Plan::decode(bytes).error().message == "plan: a mask of 4 words has 3 of them");
  bytes[kWords + 3] = std::byte{0x7F};
  REQUIRE(Plan::decode(bytes).has_error());
  TokenMask few(320);
  few.add(319);
  plan.masks = {{0, few}};
  bytes = plan.encode();
  bytes[kWords] = std::byte{9};
  REQUIRE(Plan::decode(bytes).error().message == "plan: token 319 in a mask of 9 words");
}

TEST_CASE("a copy has just the pages and keys that its kind wants") {
  using cache::CopyKind;
  for (uint8_t kind = 0; kind < cache::kCopyKindCount; ++kind) {
    const bool device = CopyKind(kind) == CopyKind::kLoad || CopyKind(kind) == CopyKind::kStore;
    const bool host = CopyKind(kind) != CopyKind::kProbe;
    const bool keys = !device && CopyKind(kind) != CopyKind::kVerify;
    for (int given = 0; given < 8; ++given) {
      CAPTURE(int{kind}, given);
      Plan plan;
      cache::PageCopy& copy = plan.copies.emplace_back();
      copy.kind = CopyKind(kind);
      if ((given & 1) != 0) copy.device = {PageId(1)};
      if ((given & 2) != 0) copy.host = {HostPageId(1)};
      if ((given & 4) != 0) copy.keys = {{}};
      const bool empty = given == 0;
      const bool right = device == ((given & 1) != 0) && host == ((given & 2) != 0) && keys == ((given & 4) != 0);
      REQUIRE(Plan::decode(plan.encode()).has_value() == (empty || right));
    }
  }
  Plan plan;
  plan.copies.emplace_back().kind = CopyKind(cache::kCopyKindCount);
  REQUIRE(Plan::decode(plan.encode()).error().message == "plan: a copy of kind 6");
}

TEST_CASE("a plan has the bytes that docs/wire.md says") {
  Plan plan = sample_plan();
  tensor::SamplingParams& sampling = plan.opens.front().sampling;
  sampling = {};
  sampling.temperature = 0.25f;
  sampling.top_p = 0.5f;
  sampling.min_p = 0.125f;
  sampling.top_k = 40;
  sampling.repetition_penalty = 1.5f;
  sampling.frequency_penalty = 2;
  sampling.presence_penalty = -2;
  sampling.seed = 0xFEDCBA9876543210u;
  sampling.logit_bias = {{11, -3.5f}};
  sampling.top_logprobs = 4;
  sampling.min_tokens = 2;
  sampling.stop_token_ids = {3};
  plan.copies.resize(2);
  REQUIRE(test::hex_of(plan.encode()) == test::hex_of(R"(
      504c414e 2900000000000000 03000000
      02000000 07000000 02000000
      01000000  02000000 05000000 00000000 00000000
        0000803e 0000003f 0000003e 28000000 0000c03f 00000040 000000c0 1032547698badcfe
        01000000 0b000000 000060c0 04000000 02000000 01000000 03000000
      02000000  09000000 03000000 01 02000000 03000000 45000000
                02000000 03000000 00 03000000 ffffffff 01000080 3f000000
      03000000  02000000 00000000 05000000 02000000 01 01000000 ffffffff 00000000 00000000 00 00000000
                04000000 82000000 03000000 00000000 01 ffffffff ffffffff 02000000 00000000 00 00000000
                05000000 00000000 02000000 00000000 00 ffffffff ffffffff 00000000 00000000 04 01000000
      04000000 ffffffff 02000000 ffffffff 09000000
      0a000000 0a000000 14000000 1e000000 28000000 32000000 3c000000 46000000 50000000 5a000000 5b000000
      02000000 09000000 08000000
      01000000  03000000 01000000 00000000 02000000 03000000 05000000 06000000 07000000
      02000000  0500000000000000 00 01000000 02000000 03000000 04000000 02000000 06000000 07000000 00000000
                0000000000000000
                0600000000000000 04 00000000 00000000 01000000 08000000 01000000
                0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20 0000000000000000
      f0debc9a78563412 4d00000000000000
      01000000  01000000 2800000000000000 e803000000000000 4c04000000000000 b004000000000000 a904000000000000
                4d00000000000000 00000000)"));
}

TEST_CASE("an output has the bytes that docs/wire.md says") {
  REQUIRE(test::hex_of(sample_output().encode()) == test::hex_of(R"(
      4f555450 2900000000000000 03000000
      05000000
        00 02000000 63000000  63000000 000000bf 02000000 02000000 62000000 000080be 63000000 000000bf
                    07000000  00000000 00000000 00000000 00000000  00000000 00000000
        00 00000000 02000000  05000000 000080bf 03000000 00000000
                              06000000 000000c0 01000000 01000000 06000000 000000c0 00000000
        00 00000000 00000000 00000000
        03 00000000 00000000 00000000
        00 00000000 00000000 02000000 0000003f 000000c0
      01000000  00000000 2900000000000000 0100000000000000 0200000000000000 0300000000000000 0400000000000000
                0500000000000000 00000000)"));
}

TEST_CASE("acknowledgements have the bytes that docs/wire.md says") {
  const std::vector<cache::CopyAck> acks{{cache::CopyId(4), 9}, {cache::CopyId(5), 0}};
  REQUIRE(test::hex_of(encode_acks(acks)) == test::hex_of(R"(
      41434b53 02000000  0400000000000000 09000000  0500000000000000 00000000)"));
}
