// Models whose cache stores latents in 8 bits, on every pipeline and from every tier.

#include <catch2/catch.hpp>
#include <thread>

#include "app/engine_client.h"
#include "support/temporary_folder.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

namespace {

struct Cell {
  std::string family;
  tensor::KvDType stored = tensor::KvDType::kAuto;
};

/// Returns a model and a dtype; tests of whole models on one engine cover the other pairs.
Cell drawn_cell() {
  return GENERATE(Cell{"deepseek-v3", tensor::KvDType::kInt8}, Cell{"deepseek-v32-sparse", tensor::KvDType::kFp8E4M3});
}

app::EngineOptions coded_options(const Cell& cell, int32_t pp_size) {
  app::EngineOptions options = options_for(cell.family, pp_size);
  options.stage.kv_dtype = cell.stored;
  return options;
}

std::unique_ptr<app::LocalEngine> started(const app::EngineOptions& options) {
  return start_engine(options, 512);
}

/// Returns each request's reply alone, on one stage with room for all.
std::vector<Reply> replies_alone(const Cell& cell, const std::vector<sched::GenerateRequest>& requests) {
  auto options = coded_options(cell, 1);
  options.head.scheduler.chunked_prefill_size = 512;
  const auto engine = started(options);
  std::vector<Reply> replies;
  for (const auto& request : requests) replies.push_back(ask(engine->engine(), {request}).front());
  return replies;
}

void require_all_same(const std::vector<Reply>& got, const std::vector<Reply>& wanted) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    INFO("request " << i);
    require_same(got[i], wanted[i]);
  }
}

}  // namespace

TEST_CASE("latents in 8 bits give equal bits on every pipeline") {
  const Cell cell = drawn_cell();
  const auto requests = mixed_requests(24);
  const auto wanted = replies_alone(cell, requests);
  for (const auto& [pp_size, tp_size] : {std::pair{1, 1}, std::pair{2, 1}, std::pair{2, 2}}) {
    CAPTURE(cell.family, enum_name(cell.stored), pp_size, tp_size);
    auto options = coded_options(cell, pp_size);
    options.tp_size = tp_size;
    options.stage.page_size = pp_size == 2 ? 5 : 16;
    options.max_total_tokens = 384;  // too few for all at once: some are retracted
    options.head.scheduler.chunked_prefill_size = static_cast<uint32_t>(7 + 20 * pp_size);
    options.async_batch_depth = 1;
    const auto engine = started(options);
    require_all_same(ask(engine->engine(), requests), wanted);
    if (pp_size == 1) REQUIRE(engine->engine().status().preemptions > 0);
  }
}

TEST_CASE("latents in 8 bits come back from the host and a store") {
  const Cell cell = drawn_cell();
  CAPTURE(cell.family, enum_name(cell.stored));
  const auto requests = mixed_requests(10);
  const auto wanted = replies_alone(cell, requests);
  const TemporaryFolder folder;
  auto options = coded_options(cell, 2);
  options.max_total_tokens = 384;
  options.hierarchical_cache = true;
  options.host_cache_ratio = 16;
  options.node.storage.backend = app::StoreBackend::kFile;
  options.node.storage.path = folder.path();
  options.head.scheduler.prefetch_policy = sched::PrefetchPolicy::kWaitComplete;
  for (const bool is_second : {false, true}) {
    const auto engine = started(options);
    require_all_same(ask(engine->engine(), requests), wanted);
    if (is_second) REQUIRE(engine->engine().status().cache.fetched_pages > 0);
    require_all_same(ask(engine->engine(), requests), wanted);
    REQUIRE(engine->engine().status().cache.host_hit_pages > 0);
    while (!is_second && engine->engine().status().cache.persisted_pages == 0) std::this_thread::sleep_for(1ms);
  }
  // Pages of another dtype are of no use.
  options.stage.kv_dtype = tensor::KvDType::kAuto;
  const auto engine = started(options);
  for (const Reply& reply : ask(engine->engine(), requests)) REQUIRE_FALSE(reply.error.has_value());
  REQUIRE(engine->engine().status().cache.fetched_pages == 0);
}
