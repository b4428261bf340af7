#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <filesystem>
#include <fstream>
#include <functional>

#include "comm/frame.h"
#include "comm/tcp_support.h"

using namespace millrace;
using namespace millrace::comm;
using namespace std::chrono_literals;
using test::bytes_of;
using test::failure_of;
using test::kEpoch;
using test::patient_options;
using test::sample_hello;
using test::TcpWorld;
using tcp = asio::ip::tcp;

namespace {

size_t open_descriptors() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

/// Resident bytes of this process.
size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  size_t total = 0;
  size_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

/// A process that connects to `port` as stage 0, sends one plan and stays until it is killed.
class ChildSender {
 public:
  ChildSender(uint16_t port, TcpLinkOptions options) : process_(fork()) {
    if (process_ == 0) run(port, options);
  }
  ~ChildSender() {
    signal(SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  void signal(int number) const { kill(process_, number); }

 private:
  [[noreturn]] static void run(uint16_t port, TcpLinkOptions options) {
    asio::io_context context(1);
    async::RealRuntime runtime(context);
    TcpLinkGroup group(runtime);
    test::run_to_end(context, send_forever(runtime, group, port, options));
    _exit(1);
  }
  static asio::awaitable<void> send_forever(async::Runtime& runtime, TcpLinkGroup& group, uint16_t port,
                                            TcpLinkOptions options) {
    auto sender = co_await connect_link(runtime, group, {"127.0.0.1", port}, sample_hello(), options,
                                        runtime.now() + test::kPatience);
    (*sender)->send(MessageKind::kPlan, kEpoch, PlanId(1), bytes_of("alive"));
    co_await async::sleep_for(runtime, 10 * test::kPatience);
  }

  const pid_t process_;
};

asio::awaitable<void> notice_a_killed_peer(TcpWorld& world, ChildSender& child) {
  auto receiver = co_await world.listener->accept_link(world.group, sample_hello(), patient_options(), world.soon());
  (void)co_await (*receiver)->receive(MessageKind::kPlan);
  child.signal(SIGKILL);
  const std::string reason = co_await failure_of(**receiver, MessageKind::kPlan);
  REQUIRE_THAT(reason, Catch::StartsWith("stage 0 at 127.0.0.1:") || Catch::Contains("with stage 0 at"));
}

/// The kernel keeps answering for a stopped process; only its silence tells.
asio::awaitable<void> notice_a_stopped_peer(TcpWorld& world, ChildSender& child, TcpLinkOptions options) {
  auto receiver = co_await world.listener->accept_link(world.group, sample_hello(), options, world.soon());
  (void)co_await (*receiver)->receive(MessageKind::kPlan);
  co_await async::sleep_for(world.runtime, options.silence * 3 / 2);
  REQUIRE((*receiver)->stats().open);
  child.signal(SIGSTOP);
  const std::string reason = co_await failure_of(**receiver, MessageKind::kPlan);
  REQUIRE_THAT(reason, Catch::StartsWith("stage 0 at 127.0.0.1:") && Catch::Contains("has been silent for "));
}

/// Both lanes of a sender, spoken by hand.
struct HandSender {
  explicit HandSender(TcpWorld& world) : control(world.context), data(world.context) {
    const tcp::endpoint there(asio::ip::make_address("127.0.0.1"), world.listener->endpoint().port);
    control.connect(there);
    data.connect(there);
    asio::write(control, asio::buffer(encode_hello({sample_hello(), Lane::kControl, 1})));
    asio::write(data, asio::buffer(encode_hello({sample_hello(), Lane::kData, 1})));
  }
  tcp::socket control;
  tcp::socket data;
};

std::vector<std::byte> half_a_frame(FrameKind kind, uint64_t payload_bytes) {
  const auto header = encode_header({kProtocolVersion, kind, 0, kEpoch, 1, payload_bytes});
  std::vector<std::byte> bytes(header.begin(), header.end());
  bytes.resize(bytes.size() + payload_bytes / 2);
  return bytes;
}

asio::awaitable<void> notice_death_mid_frame(TcpWorld& world, FrameKind kind) {
  HandSender peer(world);
  auto receiver = co_await world.listener->accept_link(world.group, sample_hello(), patient_options(), world.soon());
  const bool on_data = kind == FrameKind::kActivations;
  std::vector<std::byte> memory(1000);
  (*receiver)->post(PlanId(1), memory);
  const auto bytes = half_a_frame(kind, memory.size());
  co_await asio::async_write(on_data ? peer.data : peer.control, asio::buffer(bytes), asio::use_awaitable);
  co_await async::sleep_for(world.runtime, 5ms);
  (on_data ? peer.data : peer.control).close();
  const std::string reason = co_await failure_of(**receiver, on_data ? MessageKind::kActivations : MessageKind::kPlan);
  REQUIRE_THAT(reason, Catch::Contains("closed the connection without a goodbye") || Catch::Contains("reset by peer"));
}

/// A length that nobody allows closes the link; nothing of that size is allocated, which would throw something else.
asio::awaitable<void> refuse_a_huge_length(TcpWorld& world, FrameKind kind) {
  HandSender peer(world);
  auto receiver = co_await world.listener->accept_link(world.group, sample_hello(), patient_options(), world.soon());
  const auto bytes = encode_header({kProtocolVersion, kind, 0, kEpoch, 1, uint64_t{1} << 62});
  const bool on_data = kind == FrameKind::kActivations;
  co_await asio::async_write(on_data ? peer.data : peer.control, asio::buffer(bytes), asio::use_awaitable);
  const std::string reason = co_await failure_of(**receiver, on_data ? MessageKind::kActivations : MessageKind::kPlan);
  REQUIRE_THAT(reason, Catch::Contains("malformed frame") && Catch::Contains("frame of 4611686018427387904 bytes"));
}

/// A round of a link's life: it forms, carries something, and dies in one of several ways with work under way.
asio::awaitable<void> live_and_die(TcpWorld& world, uint32_t round, const std::vector<std::byte>& tensor,
                                   std::vector<std::byte>& memory) {
  LinkHello hello = sample_hello();
  hello.epoch = RingEpoch(round + 1);
  Link link = co_await world.make_link(patient_options(), hello);
  const bool commits = round % 3 == 0;
  if (commits || round % 7 < 4) link.receiver->post(PlanId(1), memory);
  Work work = link.sender->send_borrowed(MessageKind::kActivations, hello.epoch, PlanId(1), tensor);
  link.sender->send(MessageKind::kPlan, hello.epoch, PlanId(1), bytes_of("plan"));
  if (round % 2 == 0) (void)co_await link.receiver->receive(MessageKind::kPlan);
  switch (round % 5) {
    case 0: link.receiver->close("stage 1 failed"); break;
    case 1: link.sender->close("stage 0 failed"); break;
    case 2: link.receiver.reset(); break;
    case 3: link.sender.reset(); break;
    default: break;
  }
  if (commits) co_await work.commit();
}

asio::awaitable<void> live_and_die_often(TcpWorld& world) {
  const std::vector<std::byte> tensor(size_t{8} << 20);
  std::vector<std::byte> memory(tensor.size());
  size_t descriptors = 0;
  size_t resident = 0;
  for (uint32_t round = 0; round < 200; ++round) {
    co_await live_and_die(world, round, tensor, memory);
    if (round == 50) {
      while (!world.group.stats().empty()) co_await async::sleep_for(world.runtime, 1ms);
      descriptors = open_descriptors();
      resident = resident_bytes();
    }
  }
  while (!world.group.stats().empty()) co_await async::sleep_for(world.runtime, 1ms);
  REQUIRE(open_descriptors() <= descriptors);
  // A link that leaked would leave a tensor of 8 MiB behind each time. AddressSanitizer keeps up to 256 MiB of what was
  // freed.
  REQUIRE(resident_bytes() < resident + (size_t{320} << 20));
}

asio::awaitable<void> shut_down_in_full_flight(TcpWorld& world, std::vector<std::byte>& tensor) {
  Link link = co_await world.make_link(patient_options());
  Work work = link.sender->send_borrowed(MessageKind::kActivations, kEpoch, PlanId(1), tensor);
  co_await world.group.shutdown();
  co_await work.commit();
  const std::string reason = co_await failure_of(*link.receiver, MessageKind::kActivations);
  REQUIRE(reason == "the process is shutting down");
  const auto late =
      co_await world.listener->accept_link(world.group, sample_hello(), patient_options(), world.runtime.now());
  REQUIRE(late.has_error());
}

}  // namespace

TEST_CASE("TCP: a peer that is killed is noticed") {
  TcpWorld world;
  ChildSender child(world.listener->endpoint().port, patient_options());
  world.run(notice_a_killed_peer(world, child));
}

TEST_CASE("TCP: a stopped peer is noticed by silence but no idle one") {
  TcpWorld world;
  TcpLinkOptions options = patient_options();
  options.heartbeat = 100ms;
  options.silence = 2s;  // for longer a process of its own is hardly kept from its processor
  ChildSender child(world.listener->endpoint().port, options);
  world.run(notice_a_stopped_peer(world, child, options));
}

TEST_CASE("TCP: a peer that dies in the middle of a frame is noticed") {
  for (const FrameKind kind : {FrameKind::kPlan, FrameKind::kActivations}) {
    TcpWorld world;
    world.run(notice_death_mid_frame(world, kind));
  }
}

TEST_CASE("TCP: a hostile length closes the link before allocation") {
  for (const FrameKind kind : {FrameKind::kPlan, FrameKind::kOutput, FrameKind::kActivations, FrameKind::kGoodbye}) {
    TcpWorld world;
    world.run(refuse_a_huge_length(world, kind));
  }
}

TEST_CASE("TCP: 200 links leak neither descriptors nor memory") {
  TcpWorld world;
  world.run(live_and_die_often(world));
}

TEST_CASE("TCP: a group shuts down in full flight") {
  std::vector<std::byte> tensor(size_t{64} << 20);
  TcpWorld world;
  world.run(shut_down_in_full_flight(world, tensor));
}
