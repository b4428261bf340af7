#include "sched/scheduler/new_token_ratio.h"

#include <algorithm>

namespace millrace::sched {
namespace {

constexpr double kMinRatioPart = 0.14;
constexpr double kPlansToMinRatio = 600;

}  // namespace

void NewTokenRatio::after_plan() {
  const double min = kMinRatioPart * start_;
  ratio_ = std::max(min, ratio_ - (start_ - min) / kPlansToMinRatio);
}

}  // namespace millrace::sched
