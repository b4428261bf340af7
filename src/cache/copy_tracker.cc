#include "cache/copy_tracker.h"

#include <algorithm>
#include <utility>

namespace millrace::cache {

void CopyTracker::request(PendingCopy copy) {
  copy.copy.id = next_id_;
  next_id_ = CopyId(next_id_.value() + 1);
  ++by_kind_[static_cast<size_t>(copy.copy.kind)];
  unsent_.push_back(copy.copy);
  pending_.emplace(copy.copy.id, std::move(copy));
}

bool CopyTracker::withdraw_probe(SequenceId request) {
  const auto unsent = std::ranges::find_if(unsent_, [&](const PageCopy& copy) {
    return copy.kind == CopyKind::kProbe && pending_.at(copy.id).request == request;
  });
  if (unsent == unsent_.end()) return false;
  --by_kind_[static_cast<size_t>(CopyKind::kProbe)];
  pending_.erase(unsent->id);
  unsent_.erase(unsent);
  return true;
}

std::vector<PageCopy> CopyTracker::take() {
  std::vector<PageCopy> taken;
  size_t pages = 0;
  for (PageCopy& copy : std::exchange(unsent_, {})) {
    const bool fits = copy.kind == CopyKind::kLoad || pages < kPagesPerPlan;
    if (!fits) {
      unsent_.push_back(std::move(copy));
      continue;
    }
    if (copy.kind != CopyKind::kLoad) pages += copy.page_count();
    if (copy.kind == CopyKind::kVerify) copy.previous_verify = std::exchange(last_verify_, copy.id);
    taken.push_back(std::move(copy));
  }
  return taken;
}

Result<PendingCopy> CopyTracker::acknowledge(const CopyAck& ack) {
  const auto found = pending_.find(ack.copy);
  if (found == pending_.end() || ack.done > found->second.copy.page_count()) {
    return make_error(ErrorCode::kData, "{} pages of copy {} are acknowledged, which is not under way", ack.done,
                      ack.copy.value());
  }
  PendingCopy ended = std::move(found->second);
  pending_.erase(found);
  --by_kind_[static_cast<size_t>(ended.copy.kind)];
  ended.done = ack.done;
  return ended;
}

void CopyTracker::clear() {
  unsent_.clear();
  pending_.clear();
  by_kind_ = {};
}

}  // namespace millrace::cache
