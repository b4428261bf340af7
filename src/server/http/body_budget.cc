#include "server/http/body_budget.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::server {

BodyBudget::~BodyBudget() {
  CHECK(used_bytes_ == 0, "{} bytes of request bodies outlive their budget", used_bytes_);
}

size_t BodyBudget::charged_bytes(size_t bytes) {
  return bytes - std::min(bytes, kUnchargedBytes);
}

bool BodyBudget::has_room_for(size_t wanted, size_t already) const {
  const size_t others = used_bytes_ - already;
  return wanted == 0 || others == 0 || (wanted <= limit_ && others <= limit_ - wanted);
}

bool BodyBudget::Reservation::resize(size_t bytes) {
  if (budget_ == nullptr) return true;
  const size_t wanted = charged_bytes(bytes);
  if (wanted > used_bytes_ && !budget_->has_room_for(wanted, used_bytes_)) return false;
  budget_->used_bytes_ = budget_->used_bytes_ - used_bytes_ + wanted;
  used_bytes_ = wanted;
  return true;
}

}  // namespace millrace::server
