#include "sched/scheduler/pool_room.h"

#include "cache/pool_division.h"
#include "sched/scheduler/scheduler_parts.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

/// The window groups of published models, and the bytes of a token in the first group.
struct Shape {
  const char* name;
  std::vector<WindowSpec> windows;
};

const std::vector<Shape> kShapes = {
    {"qwen3-next-80b", {{.kind = GroupKind::kState, .state_tokens = 3216}}},
    {"gpt-oss-20b", {{.window = 128, .token_percent = 100}}},
    {"gemma3-27b", {{.window = 1024, .token_percent = 520}}},
    {"lfm2-1.2b", {{.kind = GroupKind::kState, .state_tokens = 13}}},
    {"nemotron-h-8b", {{.kind = GroupKind::kState, .state_tokens = 6432}}},
    {"window and states", {{.window = 512, .token_percent = 50}, {.kind = GroupKind::kState, .state_tokens = 700}}},
};

SchedulerOptions options_of(const Shape& shape, uint32_t max_running, uint32_t page_count) {
  return {.page_size = 64,
          .page_count = page_count,
          .max_running = max_running,
          .chunked_prefill_size = 512,
          .context_length = 262'144,
          .windows = shape.windows,
          .draft_tokens = 8};
}

/// Returns what a page of a window group weighs, in bytes of which the first group has 100 per token.
double page_weight(const WindowSpec& spec, const SchedulerOptions& options) {
  return spec.kind == GroupKind::kState ? 100.0 * spec.state_tokens
                                        : double{1} * spec.token_percent * options.page_size;
}

/// Returns how many requests of a length would run if the memory of all pools were divided for them.
double best_concurrency(const SchedulerOptions& options, uint32_t tokens) {
  double memory = 100.0 * options.page_count * options.page_size;
  double each = 100.0 * ((tokens + options.page_size - 1) / options.page_size) * options.page_size;
  const auto pools = window_pools(options, first_pools(options));
  for (size_t i = 0; i < pools.size(); ++i) {
    const WindowSpec& spec = options.windows[i];
    const double weight = page_weight(spec, options);
    memory += weight * pools[i].pages.device - weight * static_cast<double>(prompt_window_pages(options, spec));
    each += weight * static_cast<double>(running_window_pages(options, spec, tokens));
  }
  return std::min<double>(memory / each, options.max_running);
}

}  // namespace

TEST_CASE("requests of any length find two fifths of the best room") {
  for (const Shape& shape : kShapes) {
    for (const uint32_t max_running : {1u, 4u, 8u, 64u, 256u}) {
      for (const uint32_t page_count : {64u, 200u, 1000u, 5000u, 20'000u, 100'000u}) {
        const SchedulerOptions options = options_of(shape, max_running, page_count);
        for (uint32_t tokens = 64; tokens <= std::min(page_count * 64, options.context_length); tokens *= 4) {
          CAPTURE(shape.name, max_running, page_count, tokens);
          const double best = best_concurrency(options, tokens);
          REQUIRE(concurrency_at(options, tokens).requests + 1 >= 0.4 * best);
        }
      }
    }
  }
}

TEST_CASE("windows and states for all requests keep none waiting") {
  for (const Shape& shape : kShapes) {
    CAPTURE(shape.name);
    SchedulerOptions options = options_of(shape, 64, 256);  // 16384 tokens
    options.window_sequences = 64;
    REQUIRE(concurrency_at(options, 256) == Concurrency{256, 64, ConcurrencyLimit::kMaxRunning});
    REQUIRE(concurrency_at(options, 1024) == Concurrency{1024, 16, ConcurrencyLimit::kTokens});
    REQUIRE(concurrency_at(options, 16'384) == Concurrency{16'384, 1, ConcurrencyLimit::kTokens});
  }
}

TEST_CASE("the reported lengths end with the context") {
  SchedulerOptions options = options_of(kShapes.front(), 64, 640);
  options.context_length = 40'960;
  const auto all = concurrency(options);
  REQUIRE(all.size() == 3);
  REQUIRE(all[0].tokens == 1024);
  REQUIRE(all[0].limit == ConcurrencyLimit::kStates);
  REQUIRE(all[1].tokens == 8192);
  REQUIRE(all[2] == Concurrency{40'960, 1, ConcurrencyLimit::kTokens});
  options.context_length = 1024;
  REQUIRE(concurrency(options).size() == 1);
}

TEST_CASE("as many requests are admitted as have room at once") {
  auto options = small_options();
  options.max_running = 8;
  options.page_count = GENERATE(16u, 40u, 100u);
  options.new_token_ratio = 0;
  options.share_prefixes = false;
  options.windows = GENERATE(std::vector<WindowSpec>{{.window = 8}},
                             std::vector<WindowSpec>{{.kind = GroupKind::kState, .state_tokens = 12}},
                             std::vector<WindowSpec>{{.window = 6}, {.kind = GroupKind::kState, .state_tokens = 30}});
  const auto prompt_length = GENERATE(size_t{3}, size_t{11}, size_t{15});
  const Concurrency room = concurrency_at(options, static_cast<uint32_t>(prompt_length) + 1);
  SchedulerParts parts(options);
  uint32_t admitted = 0;
  for (uint64_t id = 1; id <= 10; ++id) {
    const Sequence& candidate = parts.add(id, prompt_length, 1);
    parts.begin_turn();
    if (!parts.admission.has_room(*parts.state.find(candidate.id))) break;
    (void)parts.run(*parts.state.find(candidate.id));
    ++admitted;
  }
  CAPTURE(options.page_count, prompt_length, options.windows.size(), enum_name(room.limit));
  // Each running request has pages of its own, and one that is not full is not counted by length.
  REQUIRE(admitted <= room.requests + 1);
  REQUIRE(admitted + 1 >= room.requests);
  if (room.limit != ConcurrencyLimit::kTokens) REQUIRE(admitted == room.requests);
}
