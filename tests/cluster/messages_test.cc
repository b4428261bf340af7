#include "cluster/messages.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "support/hex.h"

using namespace millrace;
using namespace millrace::cluster;
using test::hex_of;

namespace {

comm::LinkStats some_link() {
  comm::LinkStats link;
  link.from = StageId(3);
  link.to = comm::kHeadId;
  link.sending = true;
  link.bytes_sent = 1;
  link.bytes_received = 2;
  link.messages_sent = 3;
  link.messages_received = 4;
  link.messages_dropped = 5;
  link.send_queue_high_water = uint64_t{1} << 60;
  link.round_trip_ns = -7;
  return link;
}

}  // namespace

TEST_CASE("a report of links survives the wire except for names") {
  const auto bytes = encode(LinkReport{{some_link(), {}, some_link()}});
  const auto message = *decode(bytes);
  const auto& links = std::get<LinkReport>(message).links;
  REQUIRE(links.size() == 3);
  for (const size_t i : {0, 2}) {
    REQUIRE(links[i].from == StageId(3));
    REQUIRE(links[i].to == comm::kHeadId);
    REQUIRE(links[i].sending);
    REQUIRE(links[i].bytes_sent == 1);
    REQUIRE(links[i].bytes_received == 2);
    REQUIRE(links[i].messages_sent == 3);
    REQUIRE(links[i].messages_received == 4);
    REQUIRE(links[i].messages_dropped == 5);
    REQUIRE(links[i].send_queue_high_water == uint64_t{1} << 60);
    REQUIRE(links[i].round_trip_ns == -7);
  }
  REQUIRE_FALSE(links[1].sending);
}

TEST_CASE("counts of page stores survive the wire in their fields") {
  StoreReport report;
  for (uint32_t stage = 0; stage < 2; ++stage) {
    cache::StageStoreStats& stats =
        report.stores.emplace_back(cache::StageStoreStats{.stage = StageId(stage + 5), .rank = stage % 2, .store = {}});
    uint64_t value = uint64_t{stage} << 40;
    for (const cache::StoreCounter& counter : cache::kStoreCounters) stats.store.*counter.value = ++value;
  }
  const auto read = std::get<StoreReport>(*decode(encode(report))).stores;
  REQUIRE(read.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    REQUIRE(read[i].stage == report.stores[i].stage);
    REQUIRE(read[i].rank == report.stores[i].rank);
    REQUIRE(std::memcmp(&read[i].store, &report.stores[i].store, sizeof(cache::StoreStats)) == 0);
  }
  REQUIRE(read[0].store.hits == 1);
  REQUIRE(read[0].store.bytes_stored == sizeof(cache::StoreStats) / sizeof(uint64_t));
}

TEST_CASE("assignments and load reports survive the wire") {
  Assignment assignment;
  assignment.ring_id = uint64_t{7} << 40;
  assignment.layers = {{0, 3}, {3, 7}};
  assignment.stage = {.memory_fraction = 0.25,
                      .dtype = tensor::DType::kF32,
                      .kv_dtype = tensor::KvDType::kInt8,
                      .reduce_dtype = tensor::DType::kBF16,
                      .isa = tensor::Isa::kAvx2,
                      .quantization = model::Quantization::kW8,
                      .watchdog = async::Duration(int64_t{7} << 40),
                      .has_store = true,
                      .has_output_head = false};
  REQUIRE(std::get<Assignment>(*decode(encode(assignment))) == assignment);
  assignment.stage.isa.reset();
  REQUIRE(std::get<Assignment>(*decode(encode(assignment))) == assignment);
  const Loaded loaded =
      std::get<Loaded>(*decode(encode(Loaded{.page_capacity = 123,
                                             .host_page_capacity = 456,
                                             .sequence_capacity = 789,
                                             .pools = {78, 90, 12},
                                             .compute = "bf16 cpu avx2",
                                             .first = {"GPU-1", "NCCL 2.28.9", ""},
                                             .last = {"GPU-2", "", "--nccl off"},
                                             .contents = {.ranks = {"first", "", "third"}, .experts = {1, 2}}})));
  REQUIRE(loaded.page_capacity == 123);
  REQUIRE(loaded.host_page_capacity == 456);
  REQUIRE(loaded.sequence_capacity == 789);
  REQUIRE(loaded.pools == cache::PoolSizes{78, 90, 12});
  REQUIRE(loaded.compute == "bf16 cpu avx2");
  REQUIRE(loaded.first.device == "GPU-1");
  REQUIRE(loaded.first.protocol == "NCCL 2.28.9");
  REQUIRE(loaded.first.unavailable_reason.empty());
  REQUIRE(loaded.last.device == "GPU-2");
  REQUIRE(loaded.last.unavailable_reason == "--nccl off");
  REQUIRE(loaded.contents.ranks == std::vector<std::string>{"first", "", "third"});
  REQUIRE(loaded.contents.experts == model::Fingerprint{1, 2});
}

TEST_CASE("how a node joins an epoch survives the wire") {
  const JoinedNode first{.host = "", .port = 9, .part = {}};
  const JoinedNode second{
      .host = "host", .port = 7, .part = {.first_stage = 2, .stage_count = 1, .first_rank = 4, .rank_count = 4}};
  const comm::ExpertEpoch experts{.number = 5, .endpoints = {{{"", 1}, {"host", 2}}, {{"other", 3}, {"other", 4}}}};
  const auto form = std::get<JoinRing>(*decode(encode(JoinRing{.epoch = RingEpoch(4),
                                                               .pages = {10, 20, 30},
                                                               .nodes = {first, second},
                                                               .experts = experts,
                                                               .channel_in = true,
                                                               .channel_out = false,
                                                               .fingerprint = "0a1b"})));
  REQUIRE(form.epoch == RingEpoch(4));
  REQUIRE(form.pages == cache::PoolSizes{10, 20, 30});
  REQUIRE(form.nodes.size() == 2);
  REQUIRE(form.nodes[0].host.empty());
  REQUIRE(form.nodes[1].host == "host");
  REQUIRE(form.nodes[1].port == 7);
  REQUIRE(form.nodes[1].part == second.part);
  REQUIRE(form.experts.number == 5);
  REQUIRE(form.experts.endpoints == experts.endpoints);
  REQUIRE(form.channel_in);
  REQUIRE_FALSE(form.channel_out);
  REQUIRE(form.fingerprint == "0a1b");
}

TEST_CASE("a cut or overlong or boastful message is refused") {
  auto bytes = encode(LinkReport{{some_link()}});
  for (size_t size = 0; size < bytes.size(); ++size) {
    REQUIRE(decode(std::span(bytes).first(size)).error().code == ErrorCode::kData);
  }
  bytes[1] = bytes[2] = bytes[3] = std::byte{0xFF};  // the count
  REQUIRE(decode(bytes).has_error());
  bytes = encode(LinkReport{});
  bytes.push_back(std::byte{0});
  REQUIRE(decode(bytes).has_error());
  REQUIRE(decode(std::vector{std::byte{200}}).error().message == "cluster message of unknown kind 200");
}

TEST_CASE("an assignment with an unknown name is malformed") {
  const std::vector<std::byte> bytes = encode(Assignment{});
  const auto at = std::ranges::search(bytes, std::as_bytes(std::span("bf16", 4))).begin();
  REQUIRE(at != bytes.end());
  std::vector<std::byte> changed = bytes;
  changed[static_cast<size_t>(at - bytes.begin())] = std::byte{'x'};
  REQUIRE(decode(bytes).has_value());
  REQUIRE(decode(changed).error().code == ErrorCode::kData);
}

TEST_CASE("messages have the bytes that docs/wire.md says") {
  const auto bytes_of = [](const Message& message) { return hex_of(encode(message)); };
  REQUIRE(bytes_of(Hello{kProtocolVersion, 1, 2, {0x0102030405060708, 0x1112131415161718}, 0x7594}) ==
          hex_of("00 0d000000 01000000 02000000 0807060504030201 1817161514131211 9475"));
  Assignment assignment;
  assignment.ring_id = 1;
  assignment.first_stage = 2;
  assignment.stage_count = 3;
  assignment.first_rank = 14;
  assignment.rank_count = 15;
  assignment.layers = {{4, 5}};
  assignment.stage = {.rank_count = 13,
                      .expert_ring = 15,
                      .expert_rings = 16,
                      .page_size = 6,
                      .max_batch_tokens = 7,
                      .max_running = 8,
                      .max_draft_rows = 12,
                      .window = 9,
                      .context_length = 17,
                      .expected_tokens = 14,
                      .wanted_pages = 18,
                      .shares_prefixes = false,
                      .sampling_vocab = 10,
                      .memory_fraction = 0.5,
                      .dtype = tensor::DType::kF32,
                      .kv_dtype = tensor::KvDType::kInt8,
                      .reduce_dtype = tensor::DType::kBF16,
                      .isa = tensor::Isa::kAmx,
                      .quantization = model::Quantization::kW8,
                      .watchdog = async::Duration(11),
                      .has_store = true};
  REQUIRE(bytes_of(assignment) == hex_of(R"(01 0100000000000000 02000000 03000000 0e000000 0f000000 01000000 04000000
      05000000 0d000000 0f000000 10000000 06000000 07000000 08000000 0c000000 09000000 11000000 0e000000 12000000
      00 0a000000 000000000000e03f 03000000 663332 04000000 696e7438 04000000 62663136 03000000 616d78 02000000 7738
      0b00000000000000 01 01)"));
  const Loaded loaded{.page_capacity = 1,
                      .host_page_capacity = 2,
                      .sequence_capacity = 8,
                      .pools = {3, 4, 9},
                      .expert_port = 5,
                      .compute = "c",
                      .first = {"d", "p", ""},
                      .last = {"", "", "m"},
                      .contents = {.ranks = {"s"}, .experts = {6, 7}}};
  REQUIRE(bytes_of(loaded) == hex_of(R"(02 0100000000000000 0200000000000000 08000000 03000000 04000000 09000000
      0500 01000000 63 01000000 64 01000000 70 00000000 00000000 00000000 01000000 6d 01000000 01000000 73
      0600000000000000 0700000000000000)"));
  REQUIRE(bytes_of(JoinRing{.epoch = RingEpoch(1),
                            .pages = {2, 3, 11},
                            .nodes = {{"h", 4, {5, 6, 7, 8}}},
                            .experts = {.number = 9, .endpoints = {{}, {{"i", 10}}}},
                            .channel_in = true,
                            .channel_out = false,
                            .fingerprint = "f"}) ==
          hex_of(R"(03 01000000 02000000 03000000 0b000000 01000000 01000000 68 0400 05000000 06000000 07000000 08000000
      0900000000000000 02000000 00000000 01000000 01000000 69 0a00 01 00 01000000 66)"));
  REQUIRE(bytes_of(RingJoined{RingEpoch(1)}) == hex_of("04 01000000"));
  REQUIRE(bytes_of(Stop{RingEpoch(1), "r"}) == hex_of("05 01000000 01000000 72"));
  REQUIRE(bytes_of(Stopped{RingEpoch(1), "r", StageId(2)}) == hex_of("06 01000000 01000000 72 02000000"));
  REQUIRE(bytes_of(Ping{}) == "07");
  REQUIRE(bytes_of(Goodbye{"r"}) == hex_of("08 01000000 72"));
  REQUIRE(bytes_of(LinkReport{{some_link()}}) == hex_of(R"(09 01000000 03000000 ffffffff 01 0100000000000000
      0200000000000000 0300000000000000 0400000000000000 0500000000000000 0000000000000010 f9ffffffffffffff)"));
  REQUIRE(bytes_of(Measure{}) == "0b");
  StoreReport stores;
  stores.stores.emplace_back(cache::StageStoreStats{.stage = StageId(2), .rank = 0, .store = {}}).store.misses = 3;
  REQUIRE(bytes_of(stores) ==
          hex_of("0a 01000000 02000000 00000000 0000000000000000 0300000000000000") + std::string(160, '0'));
}
