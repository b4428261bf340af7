#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <cstdint>
#include <functional>

namespace millrace {
namespace asio = boost::asio;
}

namespace millrace::async {

/// Nanoseconds on a monotonic clock, whose origin the runtime chooses.
using Duration = std::chrono::nanoseconds;
struct RuntimeClock {
  using rep = Duration::rep;
  using period = Duration::period;
  using duration = Duration;
  using time_point = std::chrono::time_point<RuntimeClock>;
  static constexpr bool is_steady = true;
};
using TimePoint = RuntimeClock::time_point;

[[nodiscard]] inline double to_seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

/// Returns nanoseconds since the clock's epoch.
inline int64_t nanoseconds(TimePoint at) {
  return at.time_since_epoch().count();
}

enum class TimerId : uint64_t {};

/// Time and execution for everything above the operating system: coroutines name neither an io_context nor a timer.
/// One Runtime belongs to one thread (real or simulated); all calls come from its executor, except `executor()`.
class Runtime {
 public:
  virtual ~Runtime() = default;
  [[nodiscard]] virtual TimePoint now() const = 0;
  [[nodiscard]] virtual asio::any_io_executor executor() = 0;
  /// Calls `callback` once on the executor at `when` or soon after.
  virtual TimerId arm(TimePoint when, std::function<void()> callback) = 0;
  /// Cancels a timer. Ignores one that has fired already or is firing.
  virtual void disarm(TimerId timer) = 0;
};

/// Resumes after `duration`. Cancellable.
asio::awaitable<void> sleep_for(Runtime& runtime, Duration duration);

}  // namespace millrace::async
