#include "app/engine_options.h"

#include <catch2/catch.hpp>

using namespace millrace;

TEST_CASE("the pool has the requested pages or as many as fit and help") {
  app::EngineOptions options;
  options.stage.page_size = 16;
  options.stage.max_running = 4;
  options.head.scheduler.share_prefixes = false;
  REQUIRE(app::pool_pages(options, 100, 20) == 20);
  REQUIRE(app::pool_pages(options, 100, 1000) == 4 * 7);
  options.head.scheduler.share_prefixes = true;
  REQUIRE(app::pool_pages(options, 100, 1000) == 8 * 4 * 7);
  options.max_total_tokens = 95;
  REQUIRE(app::pool_pages(options, 100, 1000) == 5);
  options.max_total_tokens = 15;
  REQUIRE(app::pool_pages(options, 100, 1000) == 0);
}

TEST_CASE("the page count of the pool fits 31 bits") {
  app::EngineOptions options;
  options.stage.page_size = 1;
  options.stage.max_running = 4096;
  options.max_total_tokens = int64_t{1} << 32;
  REQUIRE(app::pool_pages(options, 131072, 1) == INT32_MAX);
  options.max_total_tokens = 0;
  REQUIRE(app::pool_pages(options, 131072, UINT64_MAX) == INT32_MAX);
}

TEST_CASE("an explicit pool size may take all of the memory") {
  app::EngineOptions options;
  REQUIRE(app::stage_config(options, 100).memory_fraction == 0);  // the device's default
  options.max_total_tokens = 1000;
  REQUIRE(app::stage_config(options, 100).memory_fraction == 1);
  options.stage.memory_fraction = 0.25;
  REQUIRE(app::stage_config(options, 100).memory_fraction == 0.25);
}

TEST_CASE("an explicit pool has windows and states for short requests") {
  app::EngineOptions options;
  options.stage.max_running = 16;
  const WindowSpec states[] = {{.kind = GroupKind::kState, .state_tokens = 3000}};
  REQUIRE(app::window_sequences(options, states, 256, 1000) == 0);  // the pages follow from the memory
  options.max_total_tokens = 16'384;
  REQUIRE(app::stage_config(options, 100).wanted_pages == 256);
  REQUIRE(app::window_sequences(options, states, 256, 1000) == 16);
  REQUIRE(app::window_sequences(options, {}, 256, 1000) == 0);
  REQUIRE(app::window_sequences(options, states, 256, 7) == 7);  // what fits the memory
  REQUIRE(app::window_sequences(options, states, 256, 0) == 1);
  REQUIRE(app::window_sequences(options, states, 20, 1000) == 5);  // requests of 256 tokens
  options.stage.expected_tokens = 8192;
  REQUIRE(app::window_sequences(options, states, 256, 1000) == 0);
}
