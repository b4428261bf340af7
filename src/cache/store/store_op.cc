#include "cache/store/store_op.h"

#include <algorithm>
#include <new>
#include <utility>

namespace millrace::cache {
namespace {

constexpr size_t kAlignment = 4096;

}  // namespace

StoreOp::StoreOp(Kind kind, const PageKey& key, std::span<std::byte> into, std::span<const std::byte> page,
                 async::Event done)
    : kind_(kind), key_(key), into_(into), page_(page), done_(std::move(done)) {}

bool StoreOp::begin() {
  if (kind_ != Kind::kExists) {
    const size_t bytes = (into_.size() + page_.size() + kAlignment - 1) / kAlignment * kAlignment;
    buffer_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes)));
    if (buffer_ == nullptr) throw std::bad_alloc();
  }
  const std::lock_guard lock(mutex_);
  if (done_) std::ranges::copy(page_, buffer_.get());
  return done_.has_value();
}

bool StoreOp::finish(bool ok) {
  const std::lock_guard lock(mutex_);
  const auto done = std::exchange(done_, std::nullopt);
  if (!done) return false;
  if (ok && kind_ == Kind::kGet) std::ranges::copy(buffer(), into_.begin());
  ok_ = ok;
  done->set();
  return true;
}

bool StoreOp::give_up() {
  const std::lock_guard lock(mutex_);
  return std::exchange(done_, std::nullopt).has_value();
}

bool StoreOp::ok() const {
  const std::lock_guard lock(mutex_);
  return ok_;
}

}  // namespace millrace::cache
