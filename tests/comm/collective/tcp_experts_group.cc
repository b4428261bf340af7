#include "comm/collective/tcp_experts_group.h"

#include "async/task_group.h"
#include "comm/tcp_support.h"

namespace millrace::test {
namespace {

asio::awaitable<void> connect_ring(TcpWorld& world, comm::TcpListener& listener, comm::TcpExpertsOptions options,
                                   comm::TcpExperts::AbortFn on_abort, std::shared_ptr<comm::TcpExperts>& ring) {
  const async::Event done(world.runtime);
  auto connected = co_await comm::TcpExperts::connect(world.runtime, listener, std::move(options), std::move(on_abort),
                                                      done, world.soon());
  ring = std::move(connected).value();
}

asio::awaitable<void> connect_all_rings(TcpWorld& world,
                                        const std::vector<std::unique_ptr<comm::TcpListener>>& listeners,
                                        comm::TcpExpertsOptions options, comm::TcpExperts::AbortFn on_abort,
                                        TcpRings& rings) {
  async::TaskGroup tasks(world.runtime);
  for (size_t ring = 0; ring < rings.size(); ++ring) {
    options.ring = static_cast<int32_t>(ring);
    tasks.spawn("connect a ring", connect_ring(world, *listeners[ring], options, on_abort, rings[ring]));
  }
  co_await tasks.join();
  for (const auto& listener : listeners) co_await listener->shutdown();
}

}  // namespace

TcpRings connect_rings(const comm::SharedExperts::Shape& shape, const comm::TcpExperts::AbortFn& on_abort) {
  TcpWorld world;
  std::vector<std::unique_ptr<comm::TcpListener>> listeners;
  comm::TcpExpertsOptions options{
      .shape = shape, .ring = 0, .epoch = 77, .endpoints = {}, .sockets = patient_options(), .silence = kPatience};
  for (int32_t ring = 0; ring < shape.ring_count; ++ring) {
    listeners.push_back(comm::TcpListener::open(world.runtime, {"127.0.0.1", 0}).value());
    options.endpoints.push_back(listeners.back()->endpoint());
  }
  TcpRings rings(static_cast<size_t>(shape.ring_count));
  world.run(connect_all_rings(world, listeners, options, on_abort, rings));
  return rings;
}

}  // namespace millrace::test
