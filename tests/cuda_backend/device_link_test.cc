// A link between stages whose activations take a channel, over the fakes of the runtime and of NCCL.

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_future.hpp>

#include "async/real_runtime.h"
#include "async/task_group.h"
#include "base/result.h"
#include "comm/in_process_link.h"
#include "cuda_backend/two_gpus.h"
#include "sched/stage/device_link.h"

using namespace millrace;
using namespace millrace::test;

namespace {

using comm::MessageKind;

asio::awaitable<void> open_sender(async::Runtime& runtime, tensor::Backend& gpu,
                                  std::unique_ptr<comm::LinkSender> hosts, sched::DeviceLinkOptions options,
                                  std::unique_ptr<comm::LinkSender>& opened) {
  opened = co_await sched::open_device_sender(runtime, gpu, std::move(hosts), std::move(options));
}

asio::awaitable<void> exchange(const TwoGpus& both, async::Runtime& runtime) {
  comm::Link hosts = comm::make_in_process_link(runtime, runtime, 4);
  std::unique_ptr<comm::LinkSender> sender;
  std::unique_ptr<comm::LinkReceiver> receiver;
  async::TaskGroup tasks(runtime);
  const sched::DeviceLinkOptions options{RingEpoch(3), StageId(0), StageId(1)};
  tasks.spawn("sender", open_sender(runtime, *both.gpus[0], std::move(hosts.sender), options, sender));
  receiver = co_await sched::open_device_receiver(runtime, *both.gpus[1], std::move(hosts.receiver), options);
  co_await tasks.join();
  REQUIRE((sender->reads_device() && receiver->fills_device()));

  const tensor::Buffer from = both.gpus[0]->allocate(256);
  const tensor::Buffer into = both.gpus[1]->allocate(256);
  put(*both.gpus[0], bytes_of(256, 9), from.data());
  receiver->post(PlanId(7), piece(into, 0, 256));
  sender->send(MessageKind::kPlan, RingEpoch(3), PlanId(7), bytes_of(5, 1));
  comm::Work sent = sender->send_borrowed(MessageKind::kActivations, RingEpoch(3), PlanId(7), piece(from, 0, 256));
  const comm::Message plan = co_await receiver->receive(MessageKind::kPlan);
  REQUIRE(plan.payload.bytes().size() == 5);
  const comm::Message input = co_await receiver->receive(MessageKind::kActivations);
  REQUIRE((input.plan == PlanId(7) && input.epoch == RingEpoch(3)));
  REQUIRE(input.payload.bytes().data() == into.data());
  co_await input.arrival->event.wait();
  REQUIRE(input.arrival->at <= runtime.now());
  co_await sent.commit();
  REQUIRE(get(*both.gpus[1], piece(into, 0, 256)) == bytes_of(256, 9));

  receiver->post(PlanId(8), piece(into, 0, 256));
  const comm::Message next = co_await receiver->receive(MessageKind::kActivations);
  sender->close("stage 0 has ended");
  std::string reason;
  try {
    (void)co_await receiver->receive(MessageKind::kPlan);
  } catch (const ErrorException& ended) {
    reason = ended.what();
  }
  REQUIRE(reason == "stage 0 has ended");
  receiver->close(reason);
  try {
    co_await next.arrival->event.wait();
    reason.clear();
  } catch (const std::exception& ended) {
    reason = ended.what();
  }
  REQUIRE(reason == "stage 0 has ended");
}

}  // namespace

TEST_CASE("a device link sends plans by host and activations by device") {
  const TwoGpus both;
  async::IoThread thread("link");
  asio::co_spawn(thread.context(), exchange(both, thread.runtime()), asio::use_future).get();
}
