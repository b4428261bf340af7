#include "server/observe/profiler.h"

#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/thread_name.h"
#include "sched/head/ring_view.h"
#include "server/observe/trace_writer.h"

namespace millrace::server {
namespace {

using namespace std::chrono_literals;

constexpr auto kPollInterval = 50ms;
constexpr size_t kMaxFileBytes = size_t{1} << 30;

bool stays_below(const std::filesystem::path& path) {
  if (path.is_absolute()) return false;
  for (const auto& part : path) {
    if (part == "..") return false;
  }
  return path.has_filename();
}

}  // namespace

std::string Profiler::default_name() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return fmt::format("millrace-trace-{}.json", std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
}

Result<std::filesystem::path> Profiler::start(const std::string& name) {
  if (running()) {
    return make_error(ErrorCode::kAborted, "a profile is being recorded already: {}", written_.path.string());
  }
  const std::filesystem::path wanted = name;
  if (!stays_below(wanted)) {
    return make_error(ErrorCode::kInvalidArgument, "path '{}' is not a file name below the profile folder", name);
  }
  written_ = {std::filesystem::absolute(folder_ / wanted).lexically_normal(), 0, 0};
  file_.reset(std::fopen(written_.path.c_str(), "wx"));
  if (!file_) {
    return make_error(ErrorCode::kInvalidArgument, "{}: {}", written_.path.string(), std::strerror(errno));
  }
  failed_ = false;
  stopping_ = false;
  const auto newest = ring_->records_after(0, 1);
  thread_ = std::thread([this, after = newest.empty() ? 0 : newest.back().number] { record(after); });
  return written_.path;
}

Result<Profiler::Written> Profiler::stop() {
  if (!running()) return Error{ErrorCode::kAborted, "no profile is being recorded"};
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_signal_.notify_all();
  thread_.join();
  const bool closed = std::fclose(file_.release()) == 0;
  if (failed_ || !closed) return make_error(ErrorCode::kInternal, "{}: cannot be written", written_.path.string());
  return written_;
}

void Profiler::record(uint64_t after) {
  name_thread("profile");
  uint64_t seen = after;
  TraceWriter writer(ring_->stage_count(), ring_->window(), ring_->rank_count());
  std::string out;
  size_t file_bytes = 0;
  writer.begin(out);
  for (bool last = false; !last;) {
    {
      std::unique_lock lock(mutex_);
      last = stop_signal_.wait_for(lock, kPollInterval, [this] { return stopping_; });
    }
    for (const sched::PlanRecord& record : ring_->records_after(seen)) {
      const uint64_t skipped = record.number - seen - 1;
      seen = record.number;
      const bool full = file_bytes + out.size() > kMaxFileBytes;
      written_.lost += skipped + (full ? 1 : 0);
      if (full) continue;
      ++written_.plans;
      writer.add(out, record);
    }
    if (last) writer.end(out, written_.lost);
    failed_ = failed_ || std::fwrite(out.data(), 1, out.size(), file_.get()) != out.size();
    file_bytes += out.size();
    out.clear();
  }
}

}  // namespace millrace::server
