#include "app/remote_rings.h"

#include <boost/asio/post.hpp>

#include "base/log.h"

namespace millrace::app {

using cluster::remote::RemoteEngine;

RemoteRings::RemoteRings(const RingPlacement& placement, uint32_t first, uint32_t count,
                         std::chrono::milliseconds silence_limit, const sched::Engine& like, sched::StepGroup* steps)
    : address_(placement.front) {
  std::vector<RemoteEngine*> engines;
  for (uint32_t ring = first; ring < first + count; ++ring) {
    engines_.push_back(std::make_unique<RemoteEngine>(thread_.runtime(), ring, like, address_.to_string()));
    engines.push_back(engines_.back().get());
  }
  cluster::ControlTiming timing;
  timing.silence_limit = silence_limit;
  listener_ = std::make_unique<cluster::remote::RingListener>(thread_.runtime(), std::move(engines), timing, steps);
}

RemoteRings::~RemoteRings() {
  asio::post(thread_.context(), [this] { listener_->stop(); });
  thread_.join();
}

Result<void> RemoteRings::listen(const std::stop_token& stop) {
  RETURN_IF_ERROR(listener_->listen(address_, stop));
  log::info("waiting at {} for rings {} to {}", address_.to_string(), engines_.front()->ring(),
            engines_.back()->ring());
  return {};
}

void RemoteRings::serve(cluster::remote::RingFacts facts) {
  asio::post(thread_.context(), [this, facts = std::move(facts)] { tasks_.spawn("rings", listener_->serve(facts)); });
}

}  // namespace millrace::app
