#include <thread>

#include "app/engine_client.h"
#include "app/local_rings.h"
#include "sched/head/engine_status.h"
#include "sched/head/ring_set.h"
#include "sched/head/ring_stats.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

namespace {

app::EngineOptions sharing_options(const std::string& family, int32_t dp_size, int32_t pp_size, int32_t tp_size) {
  app::EngineOptions options = options_for(family, pp_size);
  options.node.device = app::DeviceChoice::kCpu;
  options.dp_size = dp_size;
  options.tp_size = tp_size;
  options.enable_ep = true;
  return options;
}

bool all_ready(sched::RingSet& rings) {
  for (size_t ring = 0; ring < rings.size(); ++ring) {
    if (!rings.report(ring).status.ready) return false;
  }
  return true;
}

std::unique_ptr<app::LocalRings> start(const app::EngineOptions& options) {
  auto rings = app::LocalRings::create(options, {}, 512);
  if (rings.has_error()) FAIL(rings.error().message);
  const auto started = (*rings)->start();
  if (started.has_error()) FAIL(started.error().message);
  while (!all_ready(*(*rings)->engine().rings())) std::this_thread::sleep_for(1ms);
  return std::move(*rings);
}

sched::StepCounts steps_of(sched::RingSet& rings, size_t ring) {
  return rings.ring(ring).ring_stats()->snapshot(0).steps;
}

/// Waits until all rings are at one step, which is where idle rings stop.
void wait_for_same_step(sched::RingSet& rings) {
  const auto same = [&rings] {
    for (size_t ring = 1; ring < rings.size(); ++ring) {
      if (steps_of(rings, ring).newest != steps_of(rings, 0).newest) return false;
    }
    return true;
  };
  while (!same()) std::this_thread::sleep_for(1ms);
}

std::vector<Reply> replies_of_one_ring(const std::string& family, const std::vector<sched::GenerateRequest>& requests) {
  auto options = options_for(family, 1);
  options.node.device = app::DeviceChoice::kCpu;
  auto rings = app::LocalRings::create(options, {}, 512);
  if (rings.has_error()) FAIL(rings.error().message);
  REQUIRE_FALSE((*rings)->start().has_error());
  while (!(*rings)->engine().status().ready) std::this_thread::sleep_for(1ms);
  return ask((*rings)->engine(), requests);
}

}  // namespace

TEST_CASE("replies do not depend on rings that share experts") {
  const std::string family = GENERATE("qwen3moe", "mixtral");
  auto requests = mixed_requests(12);
  const auto wanted = replies_of_one_ring(family, requests);
  for (const int32_t dp_size : {2, 4}) {
    for (const int32_t pp_size : {1, 2}) {
      for (const int32_t tp_size : {1, 2}) {
        auto options = sharing_options(family, dp_size, pp_size, tp_size);
        options.head.scheduler.chunked_prefill_size = static_cast<uint32_t>(20 * pp_size + dp_size);
        options.async_batch_depth = tp_size - 1;
        for (size_t i = 0; i < requests.size(); ++i)
          requests[i].ring = static_cast<uint32_t>(i) % static_cast<uint32_t>(dp_size);
        const auto rings = start(options);
        const auto replies = ask(rings->engine(), requests);
        for (size_t i = 0; i < requests.size(); ++i) {
          INFO(family << " dp " << dp_size << " pp " << pp_size << " tp " << tp_size << " request " << i);
          require_same(replies[i], wanted[i]);
        }
        sched::RingSet& set = *rings->engine().rings();
        wait_for_same_step(set);
        for (size_t ring = 0; ring < set.size(); ++ring) REQUIRE(steps_of(set, ring).with_rows > 0);
      }
    }
  }
}

TEST_CASE("an idle ring steps along with the one that has its experts") {
  auto requests = mixed_requests(2);
  for (auto& request : requests) request.ring = 1;
  const auto wanted = replies_of_one_ring("qwen3moe", mixed_requests(2));
  const auto rings = start(sharing_options("qwen3moe", 2, 2, 1));
  sched::RingSet& set = *rings->engine().rings();
  const sched::StepCounts before = steps_of(set, 0);
  const auto replies = ask(rings->engine(), requests);
  for (size_t i = 0; i < requests.size(); ++i) require_same(replies[i], wanted[i]);
  wait_for_same_step(set);
  const sched::StepCounts idle = steps_of(set, 0);
  REQUIRE(idle.with_rows == before.with_rows);
  REQUIRE(idle.without_rows > before.without_rows);
  REQUIRE(idle.newest <= steps_of(set, 1).newest_with_rows + 24);
}

TEST_CASE("rings that share experts break together and come back") {
  auto requests = mixed_requests(4);
  const auto wanted = replies_of_one_ring("mixtral", requests);
  const auto rings = start(sharing_options("mixtral", 2, 1, 2));
  sched::RingSet& set = *rings->engine().rings();
  const auto epochs = [&set](size_t ring) { return set.ring(ring).ring_stats()->snapshot(0).epochs; };
  REQUIRE(set.ring(0).rebuild("a test wants it"));
  while (epochs(0) < 2 || epochs(1) < 2 || !all_ready(set)) std::this_thread::sleep_for(1ms);
  const auto replies = ask(rings->engine(), requests);
  for (size_t i = 0; i < requests.size(); ++i) require_same(replies[i], wanted[i]);
}

TEST_CASE("experts that cannot be shared are refused by the flag") {
  const auto refusal = [](const app::EngineOptions& options) {
    auto refused = app::LocalRings::create(options, {}, 512);
    REQUIRE(refused.has_error());
    REQUIRE(refused.error().code == ErrorCode::kInvalidArgument);
    return refused.error().message;
  };
  REQUIRE_THAT(refusal(sharing_options("llama-untied", 2, 1, 1)), Mentions("--enable-ep", "no experts"));
  REQUIRE_THAT(refusal(sharing_options("qwen3moe", 3, 1, 1)), Mentions("--enable-ep", "3 rings of 1 ranks"));
  REQUIRE_THAT(refusal(sharing_options("qwen3moe", 8, 1, 2)), Mentions("--enable-ep", "--dp-size 8", "--tp-size 2"));
}
