#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "comm/frame.h"

/// libFuzzer's entry: bytes as a peer may send them, read as frames and as hellos. Whatever is accepted must be within
/// its limits and encode to the same bytes again. tests/comm runs it over a bounded number of inputs.
namespace {

using namespace millrace::comm;

void check_hello(const FrameHeader& header, std::span<const std::byte> payload) {
  const auto hello = decode_hello(header, payload);
  if (hello.has_error()) {
    CHECK(!hello.error().message.empty());
    return;
  }
  const std::vector<std::byte> again = encode_hello(*hello);
  CHECK(std::ranges::equal(std::span(again).subspan(kFrameHeaderBytes), payload));
  const auto difference = compare_hello(LinkHello{}, hello->hello);
  CHECK(difference.has_value() || hello->hello == LinkHello{});
}

/// Walks over the frames of `input` as a reader of one lane does.
void check_frames(std::span<const std::byte> input, const FrameLimits& limits, uint64_t max_bytes) {
  while (input.size() >= kFrameHeaderBytes) {
    const auto bytes = input.first<kFrameHeaderBytes>();
    input = input.subspan(kFrameHeaderBytes);
    const auto header = decode_header(bytes, true);
    if (header.has_error()) return;
    CHECK(std::ranges::equal(encode_header(*header), bytes));
    const auto payload = input.first(std::min<uint64_t>(header->payload_bytes, input.size()));
    if (header->kind == FrameKind::kHello) check_hello(*header, payload);
    CHECK(sanitize_reason(payload).size() <= kMaxReasonBytes);
    if (limits.check(*header).has_error()) return;
    CHECK(header->payload_bytes <= max_bytes);
    input = input.subspan(payload.size());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span input(reinterpret_cast<const std::byte*>(data), size);
  TcpLinkOptions options;
  options.max_plan_bytes = options.max_output_bytes = options.max_activation_bytes = options.max_ack_bytes = 4096;
  for (const Lane lane : {Lane::kControl, Lane::kData}) {
    for (const bool receiving : {false, true}) check_frames(input, FrameLimits(lane, options, receiving), 4096);
  }
  // The header gets a valid checksum, which no mutation finds by chance.
  if (size >= kFrameHeaderBytes) {
    FrameHeader header;
    header.kind = static_cast<FrameKind>(data[0] % kFrameKindCount);
    header.flags = data[1];
    header.payload_bytes = size - kFrameHeaderBytes;
    const FrameHeaderBytes bytes = encode_header(header);
    std::vector<std::byte> frame(bytes.begin(), bytes.end());
    frame.insert(frame.end(), input.begin() + kFrameHeaderBytes, input.end());
    for (const Lane lane : {Lane::kControl, Lane::kData}) {
      check_frames(frame, FrameLimits(lane, options, true), 4096);
    }
    check_hello(header, input);
  }
  return 0;
}
