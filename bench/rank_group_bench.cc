#include "rank_group_bench.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <future>

#include "async/real_runtime.h"
#include "async/task_group.h"
#include "comm/collective/shared_collective.h"
#include "cpu/cpu_backend.h"

namespace millrace::bench {
namespace {

using namespace std::chrono_literals;

BenchRanks make_backends(int32_t ranks, int threads) {
  BenchRanks made;
  for (int32_t rank = 0; rank < ranks; ++rank) made.backends.push_back(cpu::make_backend({.threads = threads}));
  return made;
}

asio::awaitable<void> connect_rank(async::Runtime& runtime, comm::TcpListener& listener,
                                   comm::TcpCollectiveOptions options, tensor::Backend& backend,
                                   std::unique_ptr<tensor::Collective>& end) {
  auto connected =
      co_await comm::connect_tcp_collective(runtime, listener, std::move(options), backend, runtime.now() + 10s);
  end = std::move(connected).value();
}

asio::awaitable<void> connect_all(async::Runtime& runtime,
                                  const std::vector<std::unique_ptr<comm::TcpListener>>& listeners,
                                  comm::TcpCollectiveOptions options, BenchRanks& ranks) {
  async::TaskGroup tasks(runtime);
  for (size_t rank = 0; rank < ranks.backends.size(); ++rank) {
    options.position.rank = static_cast<int32_t>(rank);
    tasks.spawn("connect a rank",
                connect_rank(runtime, *listeners[rank], options, *ranks.backends[rank], ranks.ends[rank]));
  }
  co_await tasks.join();
  for (const auto& listener : listeners) co_await listener->shutdown();
}

}  // namespace

BenchRanks make_shared_ranks(int32_t ranks, int threads) {
  BenchRanks made = make_backends(ranks, threads);
  std::vector<tensor::Backend*> backends;
  for (const auto& backend : made.backends) backends.push_back(backend.get());
  made.ends = comm::make_shared_collectives(backends);
  return made;
}

BenchRanks make_tcp_ranks(int32_t ranks, int threads, tensor::DType reduce_dtype) {
  BenchRanks made = make_backends(ranks, threads);
  made.ends.resize(made.backends.size());
  asio::io_context context{1};
  async::RealRuntime runtime(context);
  std::vector<std::unique_ptr<comm::TcpListener>> listeners;
  comm::TcpCollectiveOptions options;
  options.position.size = ranks;
  options.silence = 10s;
  options.reduce_dtype = reduce_dtype;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    listeners.push_back(comm::TcpListener::open(runtime, {"127.0.0.1", 0}).value());
    options.endpoints.push_back(listeners.back()->endpoint());
  }
  std::exception_ptr failure;
  asio::co_spawn(context, connect_all(runtime, listeners, options, made),
                 [&failure](std::exception_ptr thrown) { failure = std::move(thrown); });
  context.run();
  if (failure) std::rethrow_exception(failure);
  return made;
}

void run_on_ranks(const BenchRanks& ranks, const std::function<void(int32_t rank)>& work) {
  std::vector<std::promise<void>> done(ranks.backends.size());
  for (size_t rank = 0; rank < done.size(); ++rank) {
    ranks.backends[rank]->submit([&work, rank] { work(static_cast<int32_t>(rank)); },
                                 [&done, rank](std::exception_ptr failure) {
                                   failure ? done[rank].set_exception(failure) : done[rank].set_value();
                                 });
  }
  for (auto& each : done) each.get_future().get();
}

}  // namespace millrace::bench
