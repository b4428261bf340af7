#include "cache/copy_tracker.h"

#include <catch2/catch.hpp>

using namespace millrace;
using namespace millrace::cache;

namespace {

PendingCopy copy_of(CopyKind kind, size_t pages, uint64_t request = 0) {
  PendingCopy copy{.copy = {.kind = kind}, .request = SequenceId(request)};
  if (kind == CopyKind::kProbe) {
    copy.copy.keys.resize(pages);
  } else {
    copy.copy.host.resize(pages, HostPageId(0));
  }
  return copy;
}

}  // namespace

TEST_CASE("copies leave in order with numbers from the first id on, and end once") {
  CopyTracker tracker(7);
  tracker.request(copy_of(CopyKind::kFetch, 3, 5));
  tracker.request(copy_of(CopyKind::kStore, 2));
  const auto taken = tracker.take();
  REQUIRE(taken.size() == 2);
  REQUIRE(taken[0].id == CopyId(7));
  REQUIRE(taken[1].id == CopyId(8));
  REQUIRE_FALSE(tracker.has_unsent());
  REQUIRE(tracker.pending_count(CopyKind::kFetch) == 1);
  const auto ended = tracker.acknowledge({CopyId(7), 2});
  REQUIRE(ended.has_value());
  REQUIRE(ended->done == 2);
  REQUIRE(ended->request == SequenceId(5));
  REQUIRE(tracker.pending_count(CopyKind::kFetch) == 0);
  REQUIRE(tracker.pending().size() == 1);
  REQUIRE(tracker.acknowledge({CopyId(7), 2}).error().code == ErrorCode::kData);
  REQUIRE(tracker.acknowledge({CopyId(8), 3}).error().code == ErrorCode::kData);  // more than it has
  REQUIRE(tracker.acknowledge({CopyId(8), 0}).has_value());
}

TEST_CASE("a plan's copies are bounded, loads apart, and the rest follows in order") {
  CopyTracker tracker(1);
  constexpr size_t kMost = CopyTracker::kPagesPerPlan;
  tracker.request(copy_of(CopyKind::kFetch, kMost));
  tracker.request(copy_of(CopyKind::kStore, 1));
  tracker.request(copy_of(CopyKind::kLoad, 1));
  tracker.request(copy_of(CopyKind::kPersist, 1));
  const auto first = tracker.take();
  REQUIRE(first.size() == 2);
  REQUIRE(first[1].kind == CopyKind::kLoad);
  REQUIRE(tracker.has_unsent());
  const auto second = tracker.take();
  REQUIRE(second.size() == 2);
  REQUIRE(second[0].kind == CopyKind::kStore);
  REQUIRE(tracker.take().empty());
}

TEST_CASE("a probe is withdrawn before a plan carries it, not after") {
  CopyTracker tracker(1);
  tracker.request(copy_of(CopyKind::kProbe, 4, 1));
  tracker.request(copy_of(CopyKind::kProbe, 4, 2));
  REQUIRE(tracker.withdraw_probe(SequenceId(1)));
  REQUIRE_FALSE(tracker.withdraw_probe(SequenceId(1)));
  REQUIRE(tracker.pending_count(CopyKind::kProbe) == 1);
  REQUIRE(tracker.take().size() == 1);
  REQUIRE_FALSE(tracker.withdraw_probe(SequenceId(2)));
}

TEST_CASE("each verification names the one that a plan carried before it") {
  CopyTracker tracker(3);
  tracker.request(copy_of(CopyKind::kVerify, 0));
  REQUIRE(tracker.take()[0].previous_verify == CopyId(0));
  tracker.request(copy_of(CopyKind::kVerify, 0));  // no plan carries it
  tracker.clear();
  REQUIRE(tracker.pending_count(CopyKind::kVerify) == 0);
  tracker.request(copy_of(CopyKind::kVerify, 0));
  const auto taken = tracker.take();
  REQUIRE(taken[0].previous_verify == CopyId(3));
  REQUIRE(taken[0].id == CopyId(5));
}
