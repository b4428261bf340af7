#include "comm/collective/tcp_group.h"

#include "async/task_group.h"
#include "comm/tcp_support.h"

namespace millrace::test {
namespace {

using Ends = std::vector<std::unique_ptr<tensor::Collective>>;

asio::awaitable<void> connect_rank(TcpWorld& world, comm::TcpListener& listener, comm::TcpCollectiveOptions options,
                                   tensor::Backend& backend, std::unique_ptr<tensor::Collective>& end) {
  auto connected =
      co_await comm::connect_tcp_collective(world.runtime, listener, std::move(options), backend, world.soon());
  end = std::move(connected).value();
}

asio::awaitable<void> connect_all(TcpWorld& world, const std::vector<std::unique_ptr<comm::TcpListener>>& listeners,
                                  const std::vector<std::unique_ptr<tensor::Backend>>& backends,
                                  comm::TcpCollectiveOptions options, Ends& ends) {
  async::TaskGroup tasks(world.runtime);
  for (size_t rank = 0; rank < backends.size(); ++rank) {
    options.position.rank = static_cast<int32_t>(rank);
    tasks.spawn("connect a rank", connect_rank(world, *listeners[rank], options, *backends[rank], ends[rank]));
  }
  co_await tasks.join();
  for (const auto& listener : listeners) co_await listener->shutdown();
}

}  // namespace

Ends connect_ranks(const std::vector<std::unique_ptr<tensor::Backend>>& backends, comm::TcpCollectiveOptions options) {
  TcpWorld world;
  std::vector<std::unique_ptr<comm::TcpListener>> listeners;
  options.position.size = static_cast<int32_t>(backends.size());
  options.stage = StageId(0);
  options.facts = sample_hello();
  options.sockets = patient_options();
  for (size_t rank = 0; rank < backends.size(); ++rank) {
    listeners.push_back(comm::TcpListener::open(world.runtime, {"127.0.0.1", 0}).value());
    options.endpoints.push_back(listeners.back()->endpoint());
  }
  Ends ends(backends.size());
  world.run(connect_all(world, listeners, backends, options, ends));
  return ends;
}

}  // namespace millrace::test
