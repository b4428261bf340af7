#include "sched/stage/sequence_table.h"
#include "cache/group_pages.h"
#include "support/mentions.h"

#include <catch2/catch.hpp>

#include "cache/group_pages.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::sched;
using millrace::test::Mentions;

namespace {

constexpr StageBounds kBounds{
    .slot_count = 4, .page_size = 4, .page_count = 10, .max_batch_tokens = 8, .vocab_size = 100, .sampling_vocab = 90};

/// Gives a plan of one slice the digest of a table that ends up with these pages.
Plan with_table(Plan plan, const std::vector<PageId>& table) {
  uint64_t digest = 0;
  for (const PageId page : table) digest = table_digest(digest, page);
  plan.digest = plan_digest(0, plan.slices.front(), digest);
  return plan;
}

Plan prefill(SlotId slot, std::vector<TokenId> tokens, std::vector<PageId> pages) {
  Plan plan;
  SequenceOpen open;
  open.slot = slot;
  open.prompt_length = static_cast<uint32_t>(tokens.size());
  open.sampling.repetition_penalty = 1.5f;
  plan.opens = {open};
  plan.slices = {{slot, 0, static_cast<uint32_t>(tokens.size()), static_cast<uint32_t>(pages.size()), true, -1, -1}};
  plan.tokens = std::move(tokens);
  plan.new_pages = std::move(pages);
  return with_table(plan, plan.new_pages);
}

Plan decode_step(SlotId slot, uint32_t prefix, TokenId token, const std::vector<PageId>& table,
                 std::vector<PageId> pages = {}) {
  Plan plan;
  plan.slices = {{slot, prefix, 1, static_cast<uint32_t>(pages.size()), true, -1, -1}};
  plan.tokens = {token};
  plan.new_pages = std::move(pages);
  return with_table(plan, table);
}

std::string refusal(SequenceTable& table, const Plan& plan) {
  const auto batch = table.apply(plan);
  REQUIRE(batch.has_error());
  REQUIRE(batch.error().code == ErrorCode::kData);
  return batch.error().message;
}

}  // namespace

TEST_CASE("a table turns plans into layouts and sampling state") {
  SequenceTable table(kBounds, true);
  const Plan first = prefill(SlotId(1), {5, 6, 7}, {PageId(3)});
  auto batch = table.apply(first);
  REQUIRE(batch.has_value());
  REQUIRE(batch->layout.row_count() == 3);
  REQUIRE(batch->layout.prefix[0] == 0);
  REQUIRE(batch->sample_specs[0].position == 3);
  REQUIRE(batch->sample_specs[0].output_count == 0);

  const Plan second = decode_step(SlotId(1), 3, 50, {PageId(3)});
  REQUIRE(table.apply(second).has_value());
  const Plan third = decode_step(SlotId(1), 4, 51, {PageId(3), PageId(9)}, {PageId(9)});
  batch = table.apply(third);
  REQUIRE(batch.has_value());
  REQUIRE(std::vector(batch->layout.pages.begin(), batch->layout.pages.end()) == std::vector{PageId(3), PageId(9)});
  REQUIRE(batch->layout.prefix[0] == 4);
  const tensor::SampleSpec& spec = batch->sample_specs[0];
  REQUIRE(spec.position == 5);
  REQUIRE(spec.output_count == 2);
  REQUIRE(std::vector(spec.prompt.begin(), spec.prompt.end()) == std::vector<TokenId>{5, 6, 7});
  REQUIRE(std::vector(spec.output.begin(), spec.output.end()) == std::vector<TokenId>{50, 51});
}

TEST_CASE("a slot closed and opened in one plan starts afresh") {
  SequenceTable table(kBounds, true);
  REQUIRE(table.apply(prefill(SlotId(0), {1, 2}, {PageId(0)})).has_value());
  Plan next = prefill(SlotId(0), {3}, {PageId(0)});
  next.closes = {SlotId(0)};
  const auto batch = table.apply(next);
  REQUIRE(batch.has_value());
  REQUIRE(batch->layout.pages.size() == 1);
  REQUIRE(batch->sample_specs[0].position == 1);
}

TEST_CASE("a sequence opens after cached pages with its history") {
  SequenceTable table(kBounds, true);
  REQUIRE(table.apply(prefill(SlotId(0), {1, 2, 3, 4, 5}, {PageId(4), PageId(5)})).has_value());
  Plan shared = prefill(SlotId(1), {9, 8}, {PageId(4), PageId(6)});
  shared.opens[0].cached_length = 4;
  shared.slices[0].prefix = 4;
  shared = with_table(shared, {PageId(4), PageId(6)});
  REQUIRE_THAT(refusal(table, shared), test::Mentions("4 cached", "0"));

  SequenceTable other(kBounds, true);
  REQUIRE(other.apply(prefill(SlotId(0), {1, 2, 3, 4, 5}, {PageId(4), PageId(5)})).has_value());
  shared.opens[0].history = {1, 2, 3, 4};
  const auto batch = other.apply(shared);
  REQUIRE(batch.has_value());
  REQUIRE(batch->layout.prefix[0] == 4);
  REQUIRE(batch->layout.row_count() == 2);
  REQUIRE(batch->sample_specs[0].position == 6);
  REQUIRE(std::vector(batch->sample_specs[0].prompt.begin(), batch->sample_specs[0].prompt.end()) ==
          std::vector<TokenId>{1, 2});
}

TEST_CASE("a stage that means other pages than the head says so") {
  SequenceTable table(kBounds, false);
  REQUIRE(table.apply(prefill(SlotId(0), {1, 2, 3, 4}, {PageId(4)})).has_value());
  REQUIRE_THAT(refusal(table, decode_step(SlotId(0), 4, 7, {PageId(5), PageId(6)}, {PageId(6)})),
               Catch::Contains("digest"));
  Plan unwritten = prefill(SlotId(1), {1}, {PageId(7), PageId(8)});
  unwritten.opens[0].cached_length = 4;
  unwritten.slices[0].prefix = 4;
  REQUIRE(refusal(table, unwritten) == "slot 1: page 7 of its prefix was never written");
  Plan copies;
  copies.copies = {{cache::CopyId(1), cache::CopyKind::kStore, {PageId(3)}, {HostPageId(0)}, {}}};
  REQUIRE(refusal(table, copies) == "plan 0: copies host page 0 of a pool of 0");
}

TEST_CASE("plans that cannot be are refused with what is wrong") {
  SequenceTable table(kBounds, false);
  REQUIRE(refusal(table, decode_step(SlotId(2), 0, 1, {})) == "a slice of slot 2, which is not open");
  REQUIRE(refusal(table, decode_step(SlotId(77), 0, 1, {})) == "a slice of slot 77, which is not open");
  REQUIRE(refusal(table, prefill(SlotId(4), {1}, {PageId(0)})) == "plan 0: opens slot 4, which is not free");
  REQUIRE(refusal(table, prefill(SlotId(0), {1}, {PageId(10)})) == "slot 0: page 10 of a pool of 10");
  REQUIRE(refusal(table, prefill(SlotId(1), {1, 2, 3, 4, 5}, {PageId(0)})) ==
          "slot 1: 5 tokens do not fit its 1 pages");
  REQUIRE(refusal(table, prefill(SlotId(2), {1, 100}, {PageId(0)})) == "plan 0: token 100 of a vocabulary of 100");
  REQUIRE(refusal(table, prefill(SlotId(2), {1, -1}, {PageId(0)})) == "plan 0: token -1 of a vocabulary of 100");
  REQUIRE(refusal(table, prefill(SlotId(2), std::vector<TokenId>(9, 1), {})) ==
          "plan 0: 9 tokens, at most 8 fit a batch");
  REQUIRE(table.apply(prefill(SlotId(3), {1}, {PageId(0)})).has_value());
  REQUIRE(refusal(table, decode_step(SlotId(3), 2, 1, {})) ==
          "slot 3: a slice at 2, the sequence has 1 tokens, 0 of them drafts");
  Plan close;
  close.closes = {SlotId(2), SlotId(2)};
  REQUIRE_THAT(refusal(table, close), Catch::Contains("closes slot 2"));
}

TEST_CASE("scored tokens get a logit and unscored may be any") {
  SequenceTable table(kBounds, true);
  const auto scored = [](std::vector<TokenId> tokens, TokenId next) {
    Plan plan = prefill(SlotId(0), std::move(tokens), {PageId(0)});
    plan.slices.front().prompt_top_logprobs = 0;
    plan.slices.front().next_token = next;
    return plan;
  };
  REQUIRE(table.check(prefill(SlotId(0), {1, 99}, {PageId(0)})).has_value());
  REQUIRE(table.check(scored({99, 2}, -1)).has_value());
  REQUIRE(table.check(scored({1, 89}, 89)).has_value());
  REQUIRE_THAT(table.check(scored({1, 90}, -1)).error().message, test::Mentions("plan 0", "token 90", "90 ids"));
  REQUIRE_THAT(table.check(scored({1, 2}, 1000)).error().message, test::Mentions("plan 0", "token 1000", "90 ids"));
  Plan second = prefill(SlotId(0), {1, 2, 3, 95}, {PageId(0)});
  second.slices = {{SlotId(0), 0, 2, 1}, {SlotId(1), 0, 2, 0, false, 0, -1}};
  REQUIRE_THAT(table.check(second).error().message, test::Mentions("plan 0", "token 95", "90 ids"));
}

namespace {

/// A step with drafts, behind `prefix` tokens.
Plan draft_step(SlotId slot, uint32_t prefix, std::vector<TokenId> tokens, const std::vector<PageId>& table,
                std::vector<PageId> pages = {}) {
  Plan plan;
  PlanSlice slice{slot, prefix, static_cast<uint32_t>(tokens.size()), static_cast<uint32_t>(pages.size()), true};
  slice.draft_count = slice.token_count - 1;
  plan.slices = {slice};
  plan.tokens = std::move(tokens);
  plan.new_pages = std::move(pages);
  return with_table(plan, table);
}

std::vector<TokenId> outputs(const tensor::SampleSpec& spec) {
  return {spec.output.begin(), spec.output.end()};
}

}  // namespace

TEST_CASE("each draft sample knows its prefix and rejects roll back") {
  SequenceTable table(kBounds, true);
  REQUIRE(table.apply(prefill(SlotId(1), {5, 6, 7}, {PageId(3)})).has_value());
  auto batch = table.apply(draft_step(SlotId(1), 3, {50, 51, 52}, {PageId(3), PageId(4)}, {PageId(4)}));
  REQUIRE(batch.has_value());
  REQUIRE(batch->sample_specs.size() == 3);
  for (uint32_t draw = 0; draw < 3; ++draw) {
    const tensor::SampleSpec& spec = batch->sample_specs[draw];
    REQUIRE(spec.position == 4 + draw);
    REQUIRE(spec.output_count == 1 + draw);
    REQUIRE(std::ranges::equal(spec.prompt, std::vector<TokenId>{5, 6, 7}));
    const std::vector<TokenId> drawn{50, 51, 52};
    REQUIRE(std::ranges::equal(spec.output, std::span(drawn).first(1 + draw)));
  }
  SECTION("none of them") {
    batch = table.apply(decode_step(SlotId(1), 4, 60, {PageId(3), PageId(4)}));
    REQUIRE(batch.has_value());
    REQUIRE(batch->sample_specs[0].position == 5);
    REQUIRE(outputs(batch->sample_specs[0]) == std::vector<TokenId>{50, 60});
  }
  SECTION("all of them") {
    batch = table.apply(decode_step(SlotId(1), 6, 60, {PageId(3), PageId(4)}));
    REQUIRE(batch.has_value());
    REQUIRE(outputs(batch->sample_specs[0]) == std::vector<TokenId>{50, 51, 52, 60});
  }
  SECTION("no more than them") {
    REQUIRE(refusal(table, decode_step(SlotId(1), 3, 60, {PageId(3), PageId(4)})) ==
            "slot 1: a slice at 3, the sequence has 6 tokens, 2 of them drafts");
  }
  SECTION("no draft can be taken back twice") {
    REQUIRE(table.apply(decode_step(SlotId(1), 5, 60, {PageId(3), PageId(4)})).has_value());
    REQUIRE(refusal(table, decode_step(SlotId(1), 5, 60, {PageId(3), PageId(4)})) ==
            "slot 1: a slice at 5, the sequence has 6 tokens, 0 of them drafts");
  }
}

TEST_CASE("masks stay in their places until others come there") {
  SequenceTable table(kBounds, true);
  TokenMask odd(kBounds.sampling_vocab);
  odd.add(51);
  TokenMask even(kBounds.sampling_vocab);
  even.add(50);
  Plan plan = prefill(SlotId(1), {5, 6, 7}, {PageId(3)});
  plan.masks = {{66, odd}, {67, even}};
  plan.sample_masks = {67};
  auto batch = table.apply(plan);
  REQUIRE(batch.has_value());
  REQUIRE(std::ranges::equal(batch->sample_specs[0].allowed, even.words()));
  plan = decode_step(SlotId(1), 3, 50, {PageId(3)});
  plan.sample_masks = {66};
  batch = table.apply(plan);
  REQUIRE(batch.has_value());
  REQUIRE(std::ranges::equal(batch->sample_specs[0].allowed, odd.words()));
  plan = decode_step(SlotId(1), 4, 51, {PageId(3), PageId(9)}, {PageId(9)});
  plan.masks = {{66, even}};
  plan.sample_masks = {66};
  batch = table.apply(plan);
  REQUIRE(batch.has_value());
  REQUIRE(std::ranges::equal(batch->sample_specs[0].allowed, even.words()));
  plan = decode_step(SlotId(1), 5, 51, {PageId(3), PageId(9)});
  REQUIRE(table.apply(plan)->sample_specs[0].allowed.empty());
}

TEST_CASE("masks that cannot be are refused") {
  const auto refused = [](const std::vector<MaskWrite>& masks, int32_t used) {
    SequenceTable table(kBounds, true);
    Plan plan = prefill(SlotId(1), {5, 6, 7}, {PageId(3)});
    plan.masks = masks;
    plan.sample_masks = {used};
    return refusal(table, plan);
  };
  const TokenMask right(kBounds.sampling_vocab);
  REQUIRE_THAT(refused({{68, right}}, -1), test::Mentions("plan 0", "3 words", "place 68", "3 words", "below 68"));
  REQUIRE_THAT(refused({{0, TokenMask(97)}}, -1),
               test::Mentions("plan 0", "4 words", "place 0", "3 words", "below 68"));
  REQUIRE_THAT(refused({{0, right}}, 68), test::Mentions("plan 0", "place 68", "68"));
  REQUIRE(refused({{0, right}}, 1) == "plan 0: the mask in place 1, where none is");
}

TEST_CASE("a stage without an output head refuses to sample") {
  StageBounds bounds = kBounds;
  bounds.has_output_head = false;
  const SequenceTable table(bounds, true);
  Plan plan;
  plan.tokens = {1};
  plan.slices = {{.slot = SlotId(2), .token_count = 1, .sample = true}};
  REQUIRE_THAT(table.check(plan).error().message, Mentions("slot 2", "output head"));
  plan.slices[0].sample = false;
  plan.slices[0].prompt_top_logprobs = 0;
  REQUIRE(table.check(plan).has_error());
  plan.slices[0].prompt_top_logprobs = -1;
  plan.slices[0].pooling = SlicePooling::kLastRow;
  REQUIRE_FALSE(table.check(plan).has_error());
}

namespace {

/// Bounds with one window group: a token sees itself and the four before it.
StageBounds bounds_with_window() {
  StageBounds bounds = kBounds;
  bounds.windows = {{.window = 5, .pages = {.device = 6, .host = 3}}};
  return bounds;
}

/// A plan of one slice that appends these pages to both tables, whose digests it takes on from those before.
struct WindowPlanner {
  uint64_t first_digest = 0;
  uint64_t window_table = 0;

  Plan slice(uint32_t prefix, uint32_t tokens, std::vector<PageId> pages, std::vector<PageId> window_pages) {
    Plan plan;
    plan.slices = {{SlotId(1), prefix, tokens, static_cast<uint32_t>(pages.size()), false, -1, -1}};
    plan.tokens.assign(tokens, 7);
    for (const PageId page : pages) first_digest = table_digest(first_digest, page);
    for (const PageId page : window_pages) window_table = table_digest(window_table, page);
    plan.windows = {{{static_cast<uint32_t>(window_pages.size())}, window_pages}};
    plan.new_pages = std::move(pages);
    plan.digest = window_digest(plan_digest(0, plan.slices.front(), first_digest), window_table);
    return plan;
  }
};

std::vector<PageId> pages_of(const tensor::BatchLayout& layout) {
  return {layout.pages.begin(), layout.pages.end()};
}

}  // namespace

TEST_CASE("a window group has a table of its own") {
  SequenceTable table(bounds_with_window(), false);
  WindowPlanner planner;
  Plan plan = planner.slice(0, 8, {PageId(9), PageId(8)}, {PageId(0), PageId(1)});
  plan.opens = {{.slot = SlotId(1), .prompt_length = 30}};
  auto batch = table.apply(plan);
  REQUIRE(batch.has_value());
  REQUIRE(batch->windows.size() == 1);
  REQUIRE(pages_of(batch->layout) == std::vector{PageId(9), PageId(8)});
  REQUIRE(pages_of(batch->windows[0]) == std::vector{PageId(0), PageId(1)});
  // The token at 8 sees 4 to 8: page 0 may be written again at once.
  batch = table.apply(planner.slice(8, 4, {PageId(7)}, {PageId(0)}));
  REQUIRE(batch.has_value());
  REQUIRE(pages_of(batch->windows[0]) == std::vector{PageId(1), PageId(1), PageId(0)});
  REQUIRE(std::ranges::equal(batch->windows[0].prefix, batch->layout.prefix));
  REQUIRE(std::ranges::equal(batch->windows[0].row_begin, batch->layout.row_begin));
}

TEST_CASE("a cached prefix has no window pages before the window") {
  SequenceTable table(bounds_with_window(), false);
  WindowPlanner first;
  Plan plan = first.slice(0, 8, {PageId(9), PageId(8)}, {PageId(0), PageId(1)});
  plan.opens = {{.slot = SlotId(1), .prompt_length = 8}};
  REQUIRE(table.apply(plan).has_value());
  WindowPlanner second;
  plan = second.slice(8, 2, {PageId(9), PageId(8), PageId(3)}, {PageId(1), PageId(5)});
  plan.closes = {SlotId(1)};
  plan.opens = {{.slot = SlotId(1), .prompt_length = 10, .cached_length = 8}};
  const auto batch = table.apply(plan);
  REQUIRE(batch.has_value());
  REQUIRE(pages_of(batch->windows[0]) == std::vector{PageId(1), PageId(1), PageId(5)});
}

namespace {

/// Bounds with a state group.
StageBounds bounds_with_states() {
  StageBounds bounds = kBounds;
  bounds.windows = {
      {.window = cache::state_window(kBounds.page_size), .pages = {.device = 6, .host = 3}, .kind = GroupKind::kState}};
  return bounds;
}

constexpr PageId kHole = cache::kNoPage;

}  // namespace

TEST_CASE("a table of a state group has holes") {
  SequenceTable table(bounds_with_states(), false);
  WindowPlanner planner;
  Plan plan = planner.slice(0, 7, {PageId(9), PageId(8)}, {kHole, PageId(0)});
  plan.opens = {{.slot = SlotId(1), .prompt_length = 30}};
  auto batch = table.apply(plan);
  REQUIRE(batch.has_value());
  REQUIRE(pages_of(batch->windows[0]) == std::vector{kHole, PageId(0)});
  // A decode step reads and writes the page of its last token, and needs no other.
  batch = table.apply(planner.slice(7, 1, {}, {}));
  REQUIRE(batch.has_value());
  REQUIRE(pages_of(batch->windows[0]).back() == PageId(0));
  batch = table.apply(planner.slice(8, 6, {PageId(7), PageId(6)}, {kHole, PageId(1)}));
  REQUIRE(batch.has_value());
  REQUIRE(pages_of(batch->windows[0])[1] == PageId(0));
  REQUIRE(pages_of(batch->windows[0]).back() == PageId(1));
}

TEST_CASE("states that cannot be are refused") {
  const auto refused = [](const Plan& slice) {
    SequenceTable table(bounds_with_states(), false);
    Plan plan = slice;
    plan.opens = {{.slot = SlotId(1), .prompt_length = 8, .cached_length = slice.slices[0].prefix}};
    return refusal(table, plan);
  };
  const std::vector two{PageId(9), PageId(8)};
  WindowPlanner planner;
  REQUIRE_THAT(refused(planner.slice(0, 8, two, {PageId(0), kHole})), Mentions("slot 1", "after 8 tokens"));
  planner = {};
  REQUIRE_THAT(refused(planner.slice(0, 8, two, {kHole, PageId(6)})), Mentions("page 6", "pool of 6"));
  planner = {};
  REQUIRE_THAT(refused(planner.slice(0, 8, two, {PageId(1)})), Mentions("8 tokens", "1 pages"));
  planner = {};
  Plan plan = planner.slice(0, 4, {PageId(9)}, {PageId(0)});
  plan.copies = {
      {.id = cache::CopyId(1), .kind = cache::CopyKind::kLoad, .device = {kHole}, .host = {HostPageId(0)}, .group = 1}};
  REQUIRE_THAT(refused(plan), Mentions("page 4294967295", "pool of 6"));
  // A prefix needs its last state, which someone has written.
  SequenceTable table(bounds_with_states(), false);
  planner = {};
  plan = planner.slice(0, 8, two, {kHole, PageId(0)});
  plan.opens = {{.slot = SlotId(1), .prompt_length = 8}};
  REQUIRE(table.apply(plan).has_value());
  for (const PageId state : {kHole, PageId(3), PageId(0)}) {
    SequenceTable copy = table;
    planner = {};
    plan = planner.slice(8, 2, {PageId(9), PageId(8), PageId(3)}, {state, PageId(5)});
    plan.closes = {SlotId(1)};
    plan.opens = {{.slot = SlotId(1), .prompt_length = 10, .cached_length = 8}};
    REQUIRE(copy.apply(plan).has_value() == (state == PageId(0)));
  }
}

TEST_CASE("window pages that cannot be are refused") {
  const auto refused = [](const Plan& slice) {
    SequenceTable table(bounds_with_window(), false);
    Plan plan = slice;
    plan.opens = {{.slot = SlotId(1), .prompt_length = 8, .cached_length = slice.slices[0].prefix}};
    return refusal(table, plan);
  };
  WindowPlanner planner;
  Plan plan = planner.slice(0, 4, {PageId(9)}, {PageId(0)});
  plan.digest ^= 1;
  REQUIRE_THAT(refused(plan), Mentions("digest"));
  planner = {};
  REQUIRE_THAT(refused(planner.slice(0, 4, {PageId(9)}, {PageId(6)})), Mentions("page 6", "pool of 6"));
  planner = {};
  REQUIRE_THAT(refused(planner.slice(0, 8, {PageId(9), PageId(8)}, {PageId(1)})), Mentions("8 tokens", "1 pages"));
  planner = {};
  plan = planner.slice(0, 4, {PageId(9)}, {PageId(0)});
  plan.windows.clear();
  REQUIRE_THAT(refused(plan), Mentions("0 window groups", "1"));
  plan = planner.slice(0, 4, {PageId(9)}, {PageId(0)});
  plan.copies = {{.id = cache::CopyId(1), .kind = cache::CopyKind::kVerify, .host = {HostPageId(0)}, .group = 2}};
  REQUIRE_THAT(refused(plan), Mentions("group 2 of 2"));
  plan.copies[0].group = 1;
  plan.copies[0].host = {HostPageId(3)};
  REQUIRE_THAT(refused(plan), Mentions("host page 3", "pool of 3"));
}
