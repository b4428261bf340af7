#include "server/observe/ring_profilers.h"

#include "sched/head/engine_status.h"
#include "sched/head/ring_view.h"

namespace millrace::server {
namespace {

/// Returns a file's name with the ring before its extension.
std::string name_of_ring(const std::string& name, size_t ring) {
  const std::filesystem::path path(name);
  return (path.parent_path() / fmt::format("{}-ring-{}{}", path.stem().string(), ring, path.extension().string()))
      .string();
}

}  // namespace

std::string why_unseen(const sched::Engine& ring) {
  const std::string reason = ring.status().reason;
  return reason.empty() ? "its statistics have not arrived yet" : reason;
}

sched::Engine& RingProfilers::ring(size_t number) {
  sched::RingSet* rings = engine_.rings();
  return rings == nullptr ? engine_ : rings->ring(number);
}

Result<std::vector<std::filesystem::path>> RingProfilers::start(const std::string& name, std::optional<uint32_t> ring) {
  const size_t count = engine_.rings() == nullptr ? 1 : engine_.rings()->size();
  for (const auto& profiler : profilers_) {
    if (profiler && profiler->running()) return Error{ErrorCode::kAborted, "a profile is being recorded already"};
  }
  profilers_.resize(count);
  const std::string base = name.empty() ? Profiler::default_name() : name;
  std::vector<std::filesystem::path> paths;
  for (size_t number = ring.value_or(0); number < (ring ? *ring + 1 : count); ++number) {
    auto view = this->ring(number).ring_stats();
    Result<std::filesystem::path> started = std::filesystem::path();
    if (view == nullptr) {
      started = make_error(ErrorCode::kUnavailable, "ring {}: {}", number, why_unseen(this->ring(number)));
    } else {
      profilers_[number] = std::make_unique<Profiler>(std::move(view), folder_);
      started = profilers_[number]->start(count == 1 ? base : name_of_ring(base, number));
    }
    if (started.has_error()) {
      stop_running();
      return started.error();
    }
    paths.push_back(*started);
  }
  return paths;
}

void RingProfilers::stop_running() {
  for (const auto& profiler : profilers_) {
    if (profiler && profiler->running()) (void)profiler->stop();
  }
}

std::vector<int64_t> RingProfilers::as_of_ns(int64_t now_ns) const {
  std::vector<int64_t> moments;
  for (const auto& profiler : profilers_) {
    moments.push_back(profiler && profiler->running() ? profiler->ring().as_of_ns(now_ns) : 0);
  }
  return moments;
}

bool RingProfilers::have_passed(const std::vector<int64_t>& moments, int64_t now_ns) const {
  const std::vector<int64_t> now = as_of_ns(now_ns);
  for (size_t i = 0; i < now.size(); ++i) {
    if (now[i] != 0 && now[i] == moments[i]) return false;
  }
  return true;
}

Result<std::vector<Profiler::Written>> RingProfilers::stop() {
  std::vector<Profiler::Written> all;
  std::optional<Error> failure;
  for (const auto& profiler : profilers_) {
    if (!profiler || !profiler->running()) continue;
    auto written = profiler->stop();
    if (written.has_error()) {
      failure = written.error();
    } else {
      all.push_back(std::move(*written));
    }
  }
  if (failure) return *failure;
  if (all.empty()) return Error{ErrorCode::kAborted, "no profile is being recorded"};
  return all;
}

}  // namespace millrace::server
