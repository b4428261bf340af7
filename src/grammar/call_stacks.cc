#include "grammar/call_stacks.h"

#include <algorithm>

#include "base/hash.h"

namespace millrace::grammar {

CallStacks::CallStacks() {
  const FrameId end = frame_of({0, kBottom});
  (void)stack_of({&end, 1});
}

FrameId CallStacks::frame_of(Frame frame) {
  const uint64_t hash = mix_bits(uint64_t{frame.state} << 32 | frame.stack);
  // The first frame is kTextEnd, which is no frame of a state.
  const auto known = frame_index_.find(hash, [&](FrameId id) { return id != kTextEnd && frames_[id] == frame; });
  if (known) return *known;
  const auto id = static_cast<FrameId>(frames_.size());
  frames_.push_back(frame);
  frame_index_.add(hash, id);
  return id;
}

StackId CallStacks::stack_of(std::span<const FrameId> returns) {
  const uint64_t hash = hash_bytes(std::as_bytes(returns));
  const auto known = stack_index_.find(hash, [&](StackId id) { return std::ranges::equal(returns_of(id), returns); });
  if (known) return *known;
  Stack stack{returns_.copy_of(returns), UINT32_MAX};
  for (const FrameId frame : returns) {
    stack.depth = frame == kTextEnd ? 0 : std::min(stack.depth, depth_of(frames_[frame].stack) + 1);
  }
  return_count_ += returns.size();
  const auto id = static_cast<StackId>(stacks_.size());
  stacks_.push_back(stack);
  stack_index_.add(hash, id);
  return id;
}

size_t CallStacks::bytes() const {
  return frames_.size() * (sizeof(Frame) + HashIndex<FrameId>::kBytesPerId) +
         stacks_.size() * (sizeof(Stack) + HashIndex<StackId>::kBytesPerId) + return_count_ * sizeof(FrameId);
}

}  // namespace millrace::grammar
