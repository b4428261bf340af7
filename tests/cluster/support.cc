#include "cluster/support.h"

#include "cluster/node_link.h"
#include "sim/simulated_runner.h"

namespace millrace::test {

cluster::Assignment one_stage(uint32_t stage, uint32_t stage_count, int32_t layers) {
  cluster::Assignment assignment;
  assignment.first_stage = stage;
  assignment.stage_count = stage_count;
  const int32_t first = static_cast<int32_t>(stage) * layers;
  assignment.layers = {{first, first + layers}};
  assignment.stage = {.page_size = 4, .max_batch_tokens = 16, .max_running = 4, .window = 2};
  return assignment;
}

std::unique_ptr<sched::LocalStages> simulated_stage(async::Runtime& runtime, const cluster::Assignment& assignment,
                                                    const model::ModelConfig& config, cache::PoolSizes pages) {
  const sched::RingConfig shape = cluster::ring_shape(assignment, config, pages);
  const model::LayerRange& layers = assignment.layers.front();
  sim::SimulatedStage stage;
  stage.layer_begin = layers.begin;
  stage.layer_end = layers.end;
  stage.first = assignment.first_stage == 0;
  stage.last = assignment.first_stage + 1 == assignment.stage_count;
  const sim::SimulatedModel simulated{config.layer_count(), shape.bounds.vocab_size};
  const sched::LocalStages::RunnerFactory runner = [=](async::Runtime& home) {
    return std::make_unique<sim::SimulatedRunner>(home, simulated, stage, shape.bounds, [] { return uint64_t{0}; });
  };
  return std::make_unique<sched::LocalStages>(runtime, std::vector{&runtime}, std::vector{runner},
                                              StageId(assignment.first_stage), shape);
}

asio::awaitable<void> end(std::shared_ptr<cluster::ControlConnection> connection) {
  connection->close("the test is over");
  co_await connection->join();
}

asio::awaitable<std::string> end_of(std::shared_ptr<cluster::ControlConnection> connection) {
  std::string reason;
  try {
    for (;;) (void)co_await connection->receive();
  } catch (const ErrorException& failure) {
    reason = failure.error().message;
  }
  co_await end(connection);
  co_return reason;
}

}  // namespace millrace::test
