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

/// The ranks of one process, and where others reach them.
struct Process {
  int32_t ring = 0;
  comm::RankBlock here;
  std::unique_ptr<comm::TcpListener> listener;
};

std::vector<Process> make_processes(TcpWorld& world, const comm::SharedExperts::Shape& shape, bool divided) {
  std::vector<Process> processes;
  const auto add = [&](int32_t ring, const comm::RankBlock& here) {
    processes.push_back(
        {.ring = ring, .here = here, .listener = comm::TcpListener::open(world.runtime, {"127.0.0.1", 0}).value()});
  };
  for (int32_t ring = 0; ring < shape.ring_count; ++ring) {
    if (!divided) add(ring, comm::RankBlock::all(shape));
    for (int32_t index = 0; divided && index < shape.stage_count * shape.rank_count; ++index) {
      add(ring, {.first_stage = index / shape.rank_count,
                 .stage_count = 1,
                 .first_rank = index % shape.rank_count,
                 .rank_count = 1});
    }
  }
  return processes;
}

asio::awaitable<void> connect_all(TcpWorld& world, const std::vector<Process>& processes,
                                  comm::TcpExpertsOptions options, comm::TcpExperts::AbortFn on_abort,
                                  TcpRings& rings) {
  async::TaskGroup tasks(world.runtime);
  for (size_t i = 0; i < processes.size(); ++i) {
    options.ring = processes[i].ring;
    options.here = processes[i].here;
    tasks.spawn("connect ranks", connect_ring(world, *processes[i].listener, options, on_abort, rings[i]));
  }
  co_await tasks.join();
  for (const Process& process : processes) co_await process.listener->shutdown();
}

}  // namespace

TcpRings connect_rings(const comm::SharedExperts::Shape& shape, const comm::TcpExperts::AbortFn& on_abort,
                       bool divided) {
  TcpWorld world;
  const std::vector<Process> processes = make_processes(world, shape, divided);
  comm::TcpExpertsOptions options{.shape = shape,
                                  .ring = 0,
                                  .here = {},
                                  .epoch = {.number = 77, .endpoints = {}},
                                  .sockets = patient_options(),
                                  .silence = kPatience};
  options.epoch.endpoints.resize(static_cast<size_t>(shape.ring_count));
  for (const Process& process : processes) {
    const auto ranks = static_cast<size_t>(process.here.stage_count * process.here.rank_count);
    comm::RankEndpoints& ring = options.epoch.endpoints[static_cast<size_t>(process.ring)];
    ring.insert(ring.end(), ranks, process.listener->endpoint());
  }
  TcpRings rings(processes.size());
  world.run(connect_all(world, processes, options, on_abort, rings));
  return rings;
}

}  // namespace millrace::test
