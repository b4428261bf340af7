#include "app/naming_ring_builder.h"

#include <utility>

#include "base/log.h"

namespace millrace::app {

asio::awaitable<sched::RingEnds> NamingRingBuilder::build(RingEpoch epoch) {
  std::string name = name_();
  if (!builder_ || name != made_for_) {
    if (!made_for_.empty()) log::warn("the weights of the rings have changed: pages stored so far are not used");
    builder_.reset();
    const auto made = co_await loader_.run<sched::LocalStages*>([this, &name] { return make_(name); });
    if (made.has_error()) throw ErrorException(made.error());
    made_for_ = std::move(name);
    builder_.emplace(runtime_, **made, config_);
  }
  sched::RingEnds ends = co_await builder_->build(epoch);
  co_return ends;
}

asio::awaitable<void> NamingRingBuilder::tear_down(RingEpoch epoch, std::string reason) {
  if (builder_) co_await builder_->tear_down(epoch, std::move(reason));
}

}  // namespace millrace::app
