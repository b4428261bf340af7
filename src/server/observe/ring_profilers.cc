#include "server/observe/ring_profilers.h"

namespace millrace::server {
namespace {

/// Returns a file's name with the ring before its extension.
std::string name_of_ring(const std::string& name, size_t ring) {
  const std::filesystem::path path(name);
  return (path.parent_path() / fmt::format("{}-ring-{}{}", path.stem().string(), ring, path.extension().string()))
      .string();
}

}  // namespace

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
    const sched::RingStats* stats = this->ring(number).ring_stats();
    Result<std::filesystem::path> started =
        make_error(ErrorCode::kUnavailable, "ring {} has not started, or runs in another process", number);
    if (stats != nullptr) {
      if (!profilers_[number]) profilers_[number] = std::make_unique<Profiler>(*stats, folder_);
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
