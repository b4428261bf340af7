#include "sim/simulated_steps.h"

#include <boost/asio/post.hpp>
#include <chrono>

namespace millrace::sim {
namespace {

using namespace std::chrono_literals;

constexpr auto kStepBytes = comm::MessageKind::kPlan;
constexpr size_t kStepCapacity = 4096;
/// Time until a connection is made again.
constexpr async::Duration kReconnectDelay = 20ms;

void send_bytes(comm::LinkSender& sender, std::vector<std::byte> bytes) {
  sender.send(kStepBytes, RingEpoch(), PlanId(), std::move(bytes));
}

/// Waits for the next message. Throws as LinkReceiver::receive().
asio::awaitable<sched::StepMessage> receive_message(comm::LinkReceiver& receiver) {
  const comm::Message message = co_await receiver.receive(kStepBytes);
  co_return sched::decode_step_message(message.payload.bytes()).value();
}

}  // namespace

struct SimulatedSteps::Connection {
  comm::Link to_front;
  comm::Link to_ring;
  async::Event ring_is_done;
};

SimulatedSteps::SimulatedSteps(async::VirtualWorld& world, sched::StepGroup& group, uint32_t ring, uint32_t ring_count,
                               const SimulatedLinkOptions& links, sched::StepEpochs::EndFn on_end)
    : front_(world.add_thread()),
      ring_thread_(world.add_thread()),
      group_(group),
      ring_(ring),
      links_(links),
      steps_(ring, ring_count, std::move(on_end)),
      front_tasks_(front_),
      ring_tasks_(ring_thread_) {
  front_tasks_.spawn("steps of a ring elsewhere", run());
}

SimulatedSteps::~SimulatedSteps() = default;

void SimulatedSteps::break_off(const std::string& reason) {
  if (!connection_) return;
  asio::post(ring_thread_.executor(), [connection = connection_, reason] {
    connection->to_front.sender->close(reason);
    connection->to_ring.receiver->close(reason);
  });
}

void SimulatedSteps::stop() {
  stopping_ = true;
  break_off("the end");
}

asio::awaitable<void> SimulatedSteps::run() {
  while (!stopping_) {
    connection_ = std::make_shared<Connection>(
        Connection{.to_front = make_simulated_link(links_, ring_thread_, front_, kStepCapacity),
                   .to_ring = make_simulated_link(links_, front_, ring_thread_, kStepCapacity),
                   .ring_is_done = async::Event(front_)});
    asio::post(ring_thread_.executor(),
               [this, connection = connection_] { ring_tasks_.spawn("steps of a ring", serve_ring(connection)); });
    co_await serve_front(connection_);
    co_await connection_->ring_is_done.wait();
    if (!stopping_) co_await async::sleep_for(front_, kReconnectDelay);
  }
}

asio::awaitable<void> SimulatedSteps::serve_front(std::shared_ptr<Connection> connection) {
  const auto send = [connection](const sched::StepMessage& message) {
    send_bytes(*connection->to_ring.sender, sched::encode(message));
  };
  sched::StepServer server(front_, group_, ring_, "", send);
  std::string reason;
  try {
    for (;;) {
      sched::StepMessage message = co_await receive_message(*connection->to_front.receiver);
      server.handle(std::move(message));
    }
  } catch (const std::exception& ended) {
    reason = ended.what();
  }
  co_await server.close(reason);
}

asio::awaitable<void> SimulatedSteps::serve_ring(std::shared_ptr<Connection> connection) {
  const auto send = [connection, &thread = ring_thread_](const sched::StepMessage& message) {
    asio::post(thread.executor(), [connection, bytes = sched::encode(message)]() mutable {
      send_bytes(*connection->to_front.sender, std::move(bytes));
    });
  };
  steps_.attach("front", send);
  std::string reason;
  try {
    for (;;) {
      sched::StepMessage message = co_await receive_message(*connection->to_ring.receiver);
      steps_.handle(std::move(message));
    }
  } catch (const std::exception& ended) {
    reason = ended.what();
  }
  steps_.detach("the front is gone: " + reason);
  connection->ring_is_done.set();
}

}  // namespace millrace::sim
