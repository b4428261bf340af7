#include "app/local_rings.h"

#include <set>
#include <thread>

#include "app/engine_client.h"
#include "cpu/cpu_backend.h"
#include "sched/head/engine_status.h"
#include "sched/head/ring_set.h"
#include "support/captured_log.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

namespace {

bool serve_all(sched::Engine& engine) {
  const sched::EngineStatus status = engine.status();
  return status.ready && status.degraded.empty();
}

std::unique_ptr<app::LocalRings> start_rings(const app::EngineOptions& options) {
  auto rings = app::LocalRings::create(options, {}, 512);
  if (rings.has_error()) FAIL(rings.error().message);
  const auto started = (*rings)->start();
  if (started.has_error()) FAIL(started.error().message);
  while (!serve_all((*rings)->engine())) std::this_thread::sleep_for(1ms);
  return std::move(*rings);
}

app::EngineOptions cpu_options(const std::string& family, int32_t dp_size) {
  app::EngineOptions options = options_for(family, 2);
  options.node.device = app::DeviceChoice::kCpu;
  options.dp_size = dp_size;
  return options;
}

}  // namespace

TEST_CASE("rings pack weights once and reply alike") {
  struct Case {
    std::string family;
    int32_t tp_size = 1;
    model::Quantization quantization = model::Quantization::kNone;
  };
  const auto tried = GENERATE(Case{.family = "qwen3"}, Case{.family = "mixtral", .tp_size = 2},
                              Case{.family = "deepseek-v3"}, Case{"mistral", 1, model::Quantization::kW8A8});
  INFO(tried.family);
  const uint64_t before = cpu::packed_bytes();
  auto requests = mixed_requests(6);
  std::vector<Reply> wanted;
  uint64_t bytes_of_one = 0;
  for (const int32_t dp_size : {1, 3}) {
    auto options = cpu_options(tried.family, dp_size);
    options.tp_size = tried.tp_size;
    options.stage.quantization = tried.quantization;
    if (dp_size > 1) options.layer_partition = {.rule = model::LayerPartition::Rule::kEven};
    const auto rings = start_rings(options);
    const uint64_t bytes = cpu::packed_bytes() - before;
    if (dp_size == 1) {
      wanted = ask(rings->engine(), requests);
      bytes_of_one = bytes;
      REQUIRE(bytes > 0);
      continue;
    }
    REQUIRE(bytes == bytes_of_one);
    for (uint32_t ring = 0; ring < 3; ++ring) {
      for (auto& request : requests) request.ring = ring;
      const auto replies = ask(rings->engine(), requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        INFO("ring " << ring << " request " << i);
        require_same(replies[i], wanted[i]);
      }
    }
  }
  REQUIRE(cpu::packed_bytes() == before);
}

TEST_CASE("a ring that is built again keeps the shared weights") {
  auto requests = mixed_requests(4);
  const auto rings = start_rings(cpu_options("qwen3", 2));
  const uint64_t bytes = cpu::packed_bytes();
  const auto wanted = ask(rings->engine(), requests);
  sched::RingSet& set = *rings->engine().rings();
  for (const uint32_t ring : {0u, 1u}) {
    REQUIRE(set.ring(ring).rebuild("a test wants it"));
    while (set.report(ring).status.ready) std::this_thread::sleep_for(1ms);
    while (!serve_all(rings->engine())) std::this_thread::sleep_for(1ms);
    for (auto& request : requests) request.ring = 1 - ring;
    const auto replies = ask(rings->engine(), requests);
    for (size_t i = 0; i < requests.size(); ++i) require_same(replies[i], wanted[i]);
  }
  REQUIRE(cpu::packed_bytes() == bytes);
}

TEST_CASE("rings divide the layers as the first of them does") {
  CapturedLog log;
  auto options = cpu_options("qwen3", 3);
  options.layer_partition = {.rule = model::LayerPartition::Rule::kAuto};
  const uint64_t before = cpu::packed_bytes();
  const auto one = [&] {
    auto alone = options;
    alone.dp_size = 1;
    const auto rings = start_rings(alone);
    return cpu::packed_bytes() - before;
  }();
  const auto rings = start_rings(options);
  REQUIRE(cpu::packed_bytes() - before == one);
  REQUIRE(log.count("shared with ring 0") == 4);
}
