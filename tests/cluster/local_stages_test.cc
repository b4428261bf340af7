#include "sched/stage/local_stages.h"

#include <catch2/catch.hpp>

#include "async/virtual_runtime.h"
#include "base/result.h"
#include "cluster/node_link.h"
#include "cluster/support.h"
#include "comm/in_process_link.h"
#include "model/families/read_config.h"
#include "sim/simulated_runner.h"
#include "support/paths.h"

using namespace millrace;
using test::kPages;

namespace {

/// Two simulated stages of one node, whose links with each other fail as often as the test says.
class TwoStages {
 public:
  TwoStages() {
    sched::RingConfig shape = cluster::ring_shape(test::one_stage(0, 2, 1), config_, {.device = kPages});
    shape.make_link = [this](async::Runtime& from, async::Runtime& to, size_t capacity) {
      if (failures_left > 0) {
        --failures_left;
        throw std::runtime_error("the device is lost");
      }
      return comm::make_in_process_link(from, to, capacity);
    };
    std::vector<sched::LocalStages::RunnerFactory> runners;
    for (const bool is_first : {true, false}) {
      sim::SimulatedStage stage;
      stage.layer_begin = is_first ? 0 : 1;
      stage.layer_end = stage.layer_begin + 1;
      stage.first = is_first;
      stage.last = !is_first;
      const sim::SimulatedModel model{2, shape.bounds.vocab_size};
      runners.emplace_back([model, stage, shape](async::Runtime& home) {
        return std::make_unique<sim::SimulatedRunner>(home, model, stage, shape.bounds, [] { return uint64_t{0}; });
      });
    }
    stages_.emplace(control_, std::vector{&control_, &control_}, runners, StageId(0), shape);
  }

  /// Starts an epoch with a head that does nothing.
  void start() {
    comm::Link in = comm::make_in_process_link(control_, control_, 4);
    comm::Link out = comm::make_in_process_link(control_, control_, 4);
    to_first_ = std::move(in.sender);
    from_last_ = std::move(out.receiver);
    stages_->start(std::move(in.receiver), std::move(out.sender));
  }

  /// Returns whether all loops end.
  bool join() {
    bool has_joined = false;
    async::TaskGroup tasks(control_);
    tasks.spawn("join", wait(has_joined));
    world_.run();
    return has_joined;
  }

  [[nodiscard]] sched::LocalStages& stages() { return *stages_; }

  int failures_left = 0;

 private:
  asio::awaitable<void> wait(bool& has_joined) {
    co_await stages_->join();
    has_joined = true;
  }

  const model::ModelConfig config_ = *model::read_config(test::source_dir() / "tests/golden/llama-tied");
  async::VirtualWorld world_{1};
  async::Runtime& control_ = world_.add_thread();
  std::unique_ptr<comm::LinkSender> to_first_;
  std::unique_ptr<comm::LinkReceiver> from_last_;
  std::optional<sched::LocalStages> stages_;
};

}  // namespace

TEST_CASE("An epoch whose links cannot be made leaves no loop behind") {
  TwoStages node;
  node.failures_left = 2;
  for (int attempt = 0; attempt < 2; ++attempt) {
    CHECK_THROWS_WITH(node.start(), "the device is lost");
    CHECK(node.join());
  }
  node.start();
  node.stages().stop("the test is over");
  CHECK(node.join());
  CHECK(node.stages().end_reason() == "the test is over");
}
