#include "app/worker.h"

#include <atomic>

#include "app/devices.h"
#include "app/signals.h"
#include "app/worker_host.h"
#include "async/real_runtime.h"
#include "base/log.h"
#include "cluster/member.h"
#include "model/adapt_config.h"
#include "model/families/read_config.h"

namespace millrace::app {

Result<void> run_worker(const ServeFlags& flags, std::stop_source& download) {
  Signals signals;
  auto config = model::read_config(flags.engine.model_path);
  if (config.has_error()) return config.error();
  auto checkpoint = open_checkpoint(flags.engine);
  if (checkpoint.has_error()) return checkpoint.error();
  RETURN_IF_ERROR(model::adapt_to_checkpoint(**checkpoint, *config));

  async::IoThread control("control");
  std::atomic<bool> interrupted = false;
  WorkerHost host(control.runtime(), *config, **checkpoint, flags.engine, interrupted);
  cluster::MemberOptions options;
  options.coordinator = flags.cluster.address;
  options.node_rank = static_cast<uint32_t>(flags.cluster.node_rank);
  options.node_count = static_cast<uint32_t>(flags.cluster.node_count);
  options.config = *config;
  options.transfer_timeout = flags.engine.node.nccl_timeout;
  options.timing.silence_limit = flags.engine.node.ring_timeout;
  cluster::Member member(control.runtime(), options, host);
  async::TaskGroup tasks(control.runtime());
  asio::post(control.context(), [&] { tasks.spawn("member", member.run()); });

  log::info("{}: leaving the ring when it does not need this node any more", signal_name(signals.wait()));
  interrupted = true;
  download.request_stop();
  asio::post(control.context(), [&] { tasks.spawn("drain", member.drain(flags.drain_timeout)); });
  control.join();
  host.join();
  if (const auto reason = lost_device()) return Error{ErrorCode::kUnavailable, *reason};
  log::info("stopped");
  return {};
}

}  // namespace millrace::app
