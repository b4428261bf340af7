#include "grammar/call_stacks.h"

#include <algorithm>
#include <unordered_map>

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
  Stack stack{static_cast<uint32_t>(returns_.size()), static_cast<uint32_t>(returns.size()), UINT32_MAX};
  for (const FrameId frame : returns) {
    stack.depth = frame == kTextEnd ? 0 : std::min(stack.depth, depth_of(frames_[frame].stack) + 1);
  }
  returns_.insert(returns_.end(), returns.begin(), returns.end());
  const auto id = static_cast<StackId>(stacks_.size());
  stacks_.push_back(stack);
  stack_index_.add(hash, id);
  return id;
}

// What a stack returns to has smaller ids than the stack, so that ascending order copies it first.
std::vector<FrameId> CallStacks::import(const CallStacks& from, std::span<const FrameId> frames) {
  std::unordered_map<StackId, StackId> copies{{kBottom, kBottom}};
  std::vector<StackId> found;
  const auto find = [&](std::span<const FrameId> tops) {
    for (const FrameId frame : tops) {
      const StackId stack = from.frame(frame).stack;
      if (frame != kTextEnd && copies.try_emplace(stack, kBottom).second) found.push_back(stack);
    }
  };
  find(frames);
  for (size_t i = 0; i < found.size(); ++i) find(from.returns_of(found[i]));
  std::ranges::sort(found);
  const auto copy_of = [&](std::span<const FrameId> tops) {
    std::vector<FrameId> copied;
    copied.reserve(tops.size());
    for (const FrameId top : tops) {
      const Frame& frame = from.frame(top);
      copied.push_back(top == kTextEnd ? kTextEnd : frame_of({frame.state, copies.at(frame.stack)}));
    }
    std::ranges::sort(copied);
    return copied;
  };
  for (const StackId stack : found) copies[stack] = stack_of(copy_of(from.returns_of(stack)));
  return copy_of(frames);
}

size_t CallStacks::bytes() const {
  return frames_.size() * (sizeof(Frame) + HashIndex<FrameId>::kBytesPerId) +
         stacks_.size() * (sizeof(Stack) + HashIndex<StackId>::kBytesPerId) + returns_.size() * sizeof(FrameId);
}

}  // namespace millrace::grammar
