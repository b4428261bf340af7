#include "cuda/submissions.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cuda/error.h"

namespace millrace::cuda {
namespace {

constexpr size_t kComputeLane = 0;
constexpr size_t kMinBlockBytes = 16 << 10;
/// Pieces of work in flight when each is awaited before the next: one is being reported while another begins.
constexpr size_t kWorkInFlight = 2;

}  // namespace

std::byte* PinnedBlocks::take(size_t bytes) {
  if (next_ == blocks_.size()) blocks_.emplace_back();
  tensor::Buffer& block = blocks_[next_++];
  if (bytes > block.bytes()) {
    tensor::Buffer larger = allocate_pinned(std::max({bytes, 2 * block.bytes(), kMinBlockBytes}));
    outgrown_.push_back(std::exchange(block, std::move(larger)));
  }
  return block.data();
}

void PinnedBlocks::reserve(std::span<const size_t> bytes) {
  next_ = 0;
  for (const size_t each : bytes) (void)take(each);
  next_ = 0;
}

void Submissions::reserve(std::span<const size_t> uploads, std::span<const size_t> downloads) {
  uploads_.resize(std::max(uploads_.size(), uploads.size()));
  for (size_t i = 0; i < uploads.size(); ++i) (void)device_.scratch(uploads_[i], uploads[i]);
  const std::lock_guard lock(free_mutex_);
  while (free_.size() < kWorkInFlight) free_.push_back(std::make_shared<InFlightWork>());
  for (const auto& flight : free_) {
    flight->uploads.reserve(uploads);
    flight->downloads.reserve(downloads);
  }
}

void Submissions::submit(const std::function<void()>& work, tensor::CompletionHandler done) {
  const std::lock_guard lock(submit_mutex_);
  std::shared_ptr<InFlightWork> flight = take_in_flight();
  current_ = flight;
  next_upload_ = 0;
  thread_ = std::this_thread::get_id();
  try {
    device_.make_current();
    work();
  } catch (...) {
    flight->failure = std::current_exception();  // what it has launched so far still runs
  }
  thread_ = std::thread::id();
  current_.reset();
  device_.poller.watch(kComputeLane, device_.compute,
                       [this, flight = std::move(flight), done = std::move(done)](std::exception_ptr failure) {
                         land(flight, std::move(failure), done);
                       });
}

void Submissions::land(const std::shared_ptr<InFlightWork>& flight, std::exception_ptr failure,
                       const tensor::CompletionHandler& done) {
  if (flight->failure) failure = flight->failure;
  if (const auto check = std::exchange(flight->check, nullptr); check != nullptr && !failure) {
    try {
      (*check)();
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (!failure) {
    for (const auto& finish : flight->finishers) finish();
  }
  flight->finishers.clear();
  flight->failure = nullptr;
  {
    const std::lock_guard lock(free_mutex_);
    free_.push_back(flight);
  }
  done(std::move(failure));
}

std::shared_ptr<Submissions::InFlightWork> Submissions::take_in_flight() {
  const std::lock_guard lock(free_mutex_);
  if (free_.empty()) return std::make_shared<InFlightWork>();
  std::shared_ptr<InFlightWork> flight = std::move(free_.back());
  free_.pop_back();
  flight->uploads.rewind();
  flight->downloads.rewind();
  flight->batches.clear();
  return flight;
}

const std::byte* Submissions::upload(size_t bytes, const std::function<void(std::byte*)>& fill) {
  CHECK(inside(), "an upload outside submitted work");
  if (next_upload_ == uploads_.size()) uploads_.emplace_back();
  bytes = std::max<size_t>(bytes, 1);
  std::byte* to = device_.scratch(uploads_[next_upload_++], bytes);
  std::byte* from = current_->uploads.take(bytes);
  fill(from);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, device_.compute.get()), "cudaMemcpyAsync");
  return to;
}

const CudaBatch* Submissions::keep(const CudaBatch& batch) {
  return &current_->batches.emplace_back(batch);
}

void Submissions::download(const void* from, size_t bytes, std::function<void(const std::byte*)> finish) {
  CHECK(inside(), "a download outside submitted work");
  std::byte* to = current_->downloads.take(bytes);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, device_.compute.get()), "cudaMemcpyAsync");
  current_->finishers.push_back([to, finish = std::move(finish)] { finish(to); });
}

}  // namespace millrace::cuda
