#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include "base/random.h"
#include "comm/frame.h"
#include "comm/tcp_support.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

using namespace millrace;
using namespace millrace::comm;
using tcp = asio::ip::tcp;

namespace {

/// A reproducible source of choices for one seed.
class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(seed) {}
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>(uniform_at(seed_, draws_++) * bound); }

 private:
  uint64_t seed_;
  uint64_t draws_ = 0;
};

/// Mostly a frame that could be right, with a fault here and there.
std::vector<std::byte> random_frame(Dice& dice) {
  if (dice.below(8) == 0) {
    std::vector<std::byte> garbage(dice.below(200));
    for (std::byte& each : garbage) each = static_cast<std::byte>(dice.below(256));
    return garbage;
  }
  FrameHeader header;
  header.kind = static_cast<FrameKind>(dice.below(kFrameKindCount + 1));
  header.epoch = RingEpoch(dice.below(16) == 0 ? dice.below(6) : 3);
  header.number = dice.below(100);
  header.flags = dice.below(32) == 0 ? 1 : 0;
  const bool is_empty = header.kind == FrameKind::kPing || header.kind == FrameKind::kPong;
  const uint32_t payload_bytes = is_empty ? 0 : dice.below(3000);
  header.payload_bytes = payload_bytes;
  if (dice.below(16) == 0) header.payload_bytes = uint64_t{1} << dice.below(64);
  const FrameHeaderBytes bytes = encode_header(header);
  std::vector<std::byte> frame(bytes.begin(), bytes.end());
  frame.resize(frame.size() + payload_bytes, static_cast<std::byte>(dice.below(256)));
  if (dice.below(8) == 0) frame[dice.below(static_cast<uint32_t>(frame.size()))] ^= std::byte{4};
  if (dice.below(8) == 0) frame.resize(dice.below(static_cast<uint32_t>(frame.size())));
  return frame;
}

/// Posts a receive for a frame, if it is one of activations.
void post_for(LinkReceiver& receiver, std::span<const std::byte> frame, std::span<std::byte> memory) {
  if (frame.size() < kFrameHeaderBytes) return;
  const auto header = decode_header(frame.first<kFrameHeaderBytes>());
  if (header.has_error() || header->kind != FrameKind::kActivations || header->payload_bytes > memory.size()) return;
  receiver.post(PlanId(header->number), memory.first(header->payload_bytes));
}

/// A peer with the right hello that then sends anything on both lanes: the link ends with a reason, and nothing else
/// happens.
asio::awaitable<void> meet_a_hostile_peer(test::TcpWorld& world, uint64_t seed) {
  Dice dice(seed);
  const tcp::endpoint there(asio::ip::make_address("127.0.0.1"), world.listener->endpoint().port);
  tcp::socket lanes[] = {tcp::socket(world.context), tcp::socket(world.context)};
  for (size_t i = 0; i < kLaneCount; ++i) {
    lanes[i].connect(there);
    const auto hello = encode_hello({test::sample_hello(), static_cast<Lane>(i), seed});
    co_await asio::async_write(lanes[i], asio::buffer(hello), asio::use_awaitable);
  }
  TcpLinkOptions options = test::patient_options(64);
  options.max_plan_bytes = options.max_output_bytes = options.max_activation_bytes = options.max_ack_bytes = 2900;
  const auto receiver = co_await world.listener->accept_link(world.group, test::sample_hello(), options, world.soon());
  REQUIRE(receiver.has_value());
  boost::system::error_code failure;
  std::vector<std::byte> memory(3000);
  for (uint32_t i = dice.below(30); i > 0 && !failure; --i) {
    const auto frame = random_frame(dice);
    if (dice.below(4) > 0) post_for(**receiver, frame, memory);
    co_await asio::async_write(lanes[dice.below(kLaneCount)], asio::buffer(frame),
                               asio::redirect_error(asio::use_awaitable, failure));
  }
  for (tcp::socket& lane : lanes) lane.close();
  for (const MessageKind kind :
       {MessageKind::kPlan, MessageKind::kActivations, MessageKind::kOutput, MessageKind::kAcks}) {
    std::string reason;
    while (reason.empty()) reason = co_await test::failure_of(**receiver, kind);
  }
}

asio::awaitable<void> meet_hostile_peers(test::TcpWorld& world) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    co_await meet_a_hostile_peer(world, seed);
  }
}

}  // namespace

TEST_CASE("random and mutated frames are refused or stay what they were") {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Dice dice(seed);
    std::vector<std::byte> input;
    for (uint32_t i = dice.below(4); i > 0; --i) {
      const auto frame = random_frame(dice);
      input.insert(input.end(), frame.begin(), frame.end());
    }
    REQUIRE(LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size()) == 0);
  }
}

TEST_CASE("TCP: a hostile peer ends its own link and nothing else") {
  test::TcpWorld world;
  world.run(meet_hostile_peers(world));
}
