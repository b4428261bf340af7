#include "app/ring_node.h"

#include <boost/asio/post.hpp>

#include "app/devices.h"
#include "async/real_runtime.h"
#include "async/task_group.h"
#include "base/log.h"
#include "cluster/remote/ring_server.h"
#include "server/constraint_source.h"
#include "server/grammar_cache.h"
#include "server/worker.h"

namespace millrace::app {
namespace {

using cluster::remote::RingMetrics;
using GrammarPtr = std::shared_ptr<const grammar::Grammar>;

/// Compiles grammars and writes metrics as a front over the same engine does.
class RingNodeHost final : public cluster::remote::RingHost {
 public:
  RingNodeHost(async::Runtime& runtime, LocalRings& rings, const server::Service& service)
      : rings_(rings),
        grammar_cache_(service.tokenizer, rings.engine().model_info().vocab_size, service.defaults.eos_token_ids),
        worker_(runtime) {}

  asio::awaitable<Result<GrammarPtr>> compile(std::shared_ptr<const std::string> source) override {
    Result<GrammarPtr> compiled = Error{ErrorCode::kInternal, "the grammar was not compiled"};
    co_await worker_.run([this, &source, &compiled] { compiled = compile_now(*source); });
    co_return compiled;
  }

  std::shared_ptr<const grammar::Vocabulary> tag_vocabulary() override { return grammar_cache_.tag_vocabulary(); }

  RingMetrics metrics() override {
    RingMetrics metrics;
    rings_.append_metrics(metrics.text);
    return metrics;
  }

 private:
  Result<GrammarPtr> compile_now(const std::string& source) {
    const auto constraint = server::decode_constraint(source);
    if (constraint.has_error()) return constraint.error();
    auto compiled = grammar_cache_.get_or_compile(*constraint);
    if (compiled.has_error()) return Error{ErrorCode::kInvalidArgument, compiled.error().message};
    return std::move(*compiled);
  }

  LocalRings& rings_;
  server::GrammarCache grammar_cache_;
  server::Worker worker_;
};

}  // namespace

Result<void> serve_to_front(LocalRings& rings, const server::Service& service, Signals& signals,
                            const ServeFlags& flags) {
  signals.on_first([&rings] { rings.interrupt(); });
  const auto started = rings.start();
  signals.on_first({});
  if (started.has_error()) return started.error().code == ErrorCode::kAborted ? Result<void>() : started;
  async::IoThread thread("front link");
  RingNodeHost host(thread.runtime(), rings, service);
  (void)host.tag_vocabulary();  // made before the first request waits for it
  cluster::remote::RingServerOptions options{
      .front = flags.cluster.rings.front,
      .hello = {.ring = static_cast<uint32_t>(*flags.cluster.rings.number), .facts = rings.facts()},
      .timing = {},
      .steps = rings.ring_steps()};
  options.timing.silence_limit = flags.engine.node.ring_timeout;
  cluster::remote::RingServer ring(thread.runtime(), options, rings.engine(), host);
  async::TaskGroup tasks(thread.runtime());
  asio::post(thread.context(), [&] { tasks.spawn("ring server", ring.run()); });
  const int received = signals.wait();
  const auto lost = lost_device();
  log::info("{}: leaving the front", signal_name(received));
  rings.expect_stop();
  const auto limit = lost ? std::chrono::milliseconds(0) : flags.drain_timeout;
  asio::post(thread.context(), [&] { tasks.spawn("drain", ring.drain(limit)); });
  thread.join();
  if (lost) return Error{ErrorCode::kUnavailable, *lost};
  log::info("stopped");
  return {};
}

}  // namespace millrace::app
