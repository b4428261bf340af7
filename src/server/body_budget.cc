#include "server/body_budget.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::server {

BodyBudget::~BodyBudget() {
  CHECK(held_ == 0, "{} bytes of request bodies outlive their budget", held_);
}

size_t BodyBudget::counted(size_t bytes) {
  return bytes - std::min(bytes, kFreeBytes);
}

bool BodyBudget::has_room_for(size_t wanted, size_t already) const {
  const size_t others = held_ - already;
  return wanted == 0 || others == 0 || (wanted <= limit_ && others <= limit_ - wanted);
}

bool BodyBudget::Share::resize(size_t bytes) {
  if (budget_ == nullptr) return true;
  const size_t wanted = counted(bytes);
  if (wanted > held_ && !budget_->has_room_for(wanted, held_)) return false;
  budget_->held_ = budget_->held_ - held_ + wanted;
  held_ = wanted;
  return true;
}

}  // namespace millrace::server
