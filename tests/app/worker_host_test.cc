#include "app/worker_host.h"

#include <catch2/catch.hpp>

#include "app/stage_backend.h"
#include "model/families/read_config.h"
#include "support/paths.h"

using namespace millrace;

namespace {

/// The assignment of the second of two stages.
cluster::Assignment second_stage(const model::ModelConfig& config, uint64_t ring_id) {
  cluster::Assignment assignment{.ring_id = ring_id, .first_stage = 1, .stage_count = 2, .layers = {}, .stage = {}};
  assignment.layers = {model::divide_layers(config.layer_count(), 2).value()[1]};
  assignment.stage.page_size = 16;
  assignment.stage.max_batch_tokens = 64;
  assignment.stage.max_running = 2;
  assignment.stage.window = 2;
  assignment.stage.sampling_vocab = static_cast<uint32_t>(config.vocab_size);
  return assignment;
}

}  // namespace

TEST_CASE("a worker keeps its pools for one ring but for no other") {
  const auto checkpoint = model::Checkpoint::open(test::source_dir() / "tests/golden/qwen2").value();
  const model::ModelConfig config = model::read_config(checkpoint->folder()).value();
  async::IoThread control("control");
  app::EngineOptions options;
  options.node.threads = 1;
  options.node.device = app::DeviceChoice::kCpu;
  const std::atomic<bool> interrupted = false;
  {
    app::WorkerHost host(control.runtime(), config, *checkpoint, options, interrupted);
    REQUIRE(host.measure().error().code == ErrorCode::kInternal);
    const cluster::Assignment assignment = second_stage(config, 1);
    const auto loaded = host.load(assignment);
    REQUIRE(loaded->page_capacity > 4);
    REQUIRE(loaded->host_page_capacity > loaded->page_capacity);
    REQUIRE(loaded->pools == cache::PoolSizes{});
    const auto made = host.stages(assignment, {.device = 4, .host = 3}, "");
    REQUIRE(made.has_value());
    REQUIRE(*host.stages(assignment, {.device = 4, .host = 3}, "") == *made);

    // A process returns to the head that it left.
    const auto kept = host.load(assignment);
    REQUIRE(kept->pools == cache::PoolSizes{.device = 4, .host = 3});
    REQUIRE(kept->page_capacity == 4);
    REQUIRE(*host.stages(assignment, {.device = 4, .host = 3}, "") == *made);
    REQUIRE(host.measure()->pools == cache::PoolSizes{});
    REQUIRE(host.load(assignment)->pools == cache::PoolSizes{});

    REQUIRE(host.stages(assignment, {.device = 5, .host = 0}, "").has_value());
    const auto other = host.load(second_stage(config, 2));
    REQUIRE(other->pools == cache::PoolSizes{});
    REQUIRE(other->page_capacity > 5);

    // What cannot be made leaves the weights for the next attempt.
    REQUIRE(host.stages(assignment, {.device = 5, .host = UINT32_MAX}, "").error().code == ErrorCode::kExhausted);
    REQUIRE(host.stages(assignment, {.device = 5, .host = 1}, "").has_value());
    REQUIRE(host.measure()->page_capacity > 5);
    host.join();
  }
  control.join();
}
