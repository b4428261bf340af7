#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace millrace {

/// A strongly typed integer id: ids of different tags do not convert into each other.
template <class Tag, class Rep>
class Id {
 public:
  using rep = Rep;
  constexpr Id() = default;
  constexpr explicit Id(Rep value) : value_(value) {}
  [[nodiscard]] constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(Id, Id) = default;

 private:
  Rep value_ = 0;
};

/// One page of KV cache; the same id on every stage.
using PageId = Id<struct PageTag, uint32_t>;
/// Stands where there is no page.
inline constexpr PageId kNoPage{0xffffffff};
/// A page of the host tier, the same on every stage.
using HostPageId = Id<struct HostPageTag, uint32_t>;
/// A sequence, unique over the life of a head.
using SequenceId = Id<struct SequenceTag, uint64_t>;
/// The index of a running sequence in every stage's sequence table; reused after the sequence ends.
using SlotId = Id<struct SlotTag, uint32_t>;
/// A stage's index in the ring, 0 first.
using StageId = Id<struct StageTag, uint32_t>;
/// A plan's number within one epoch of the ring, from 0 without gaps.
using PlanId = Id<struct PlanTag, uint64_t>;
/// Counts the rings that a head has formed; messages of another epoch are dropped.
using RingEpoch = Id<struct RingEpochTag, uint32_t>;

/// A token of the vocabulary. Plain, since it is data that kernels read, not a handle.
using TokenId = int32_t;

}  // namespace millrace

template <class Tag, class Rep>
struct std::hash<millrace::Id<Tag, Rep>> {
  size_t operator()(millrace::Id<Tag, Rep> id) const noexcept { return std::hash<Rep>{}(id.value()); }
};
