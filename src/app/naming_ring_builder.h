#pragma once

#include <functional>
#include <optional>
#include <string>

#include "cluster/loader_thread.h"
#include "sched/ring/in_process_ring_builder.h"

namespace millrace::app {

/// Builds a ring of one process that shares experts with rings of others and keeps pages in a store. Their names follow
/// from the experts of all rings, which are known once a common epoch begins: where the names change, the stages are
/// made again first. Used on the head's Runtime; owned by LocalEngine.
class NamingRingBuilder final : public sched::RingBuilder {
 public:
  /// Returns the fingerprint that names stored pages in the epoch that is built.
  using Namer = std::function<std::string()>;
  /// Makes the stages with this fingerprint, in place of those that exist. It blocks, on a thread of its own.
  using Maker = std::function<Result<sched::LocalStages*>(const std::string& fingerprint)>;

  NamingRingBuilder(async::Runtime& head_runtime, const sched::RingConfig& config, Namer name, Maker make)
      : runtime_(head_runtime), config_(config), name_(std::move(name)), make_(std::move(make)) {}
  [[nodiscard]] asio::awaitable<sched::RingEnds> build(RingEpoch epoch) override;
  [[nodiscard]] asio::awaitable<void> tear_down(RingEpoch epoch, std::string reason) override;
  void interrupt() override {}  // what build() waits for ends by itself

 private:
  async::Runtime& runtime_;
  const sched::RingConfig config_;
  const Namer name_;
  const Maker make_;
  cluster::LoaderThread loader_{runtime_};
  std::string made_for_;
  std::optional<sched::InProcessRingBuilder> builder_;  // around stages that are made for made_for_
};

}  // namespace millrace::app
