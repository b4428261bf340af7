#include "support/hanging_lookup.h"

#include <dlfcn.h>
#include <netdb.h>

#include <condition_variable>
#include <mutex>
#include <optional>

namespace millrace::test {
namespace {

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  std::string name;                       // empty: no lookup hangs
  std::optional<std::string> substitute;  // nullopt: lookups go on hanging
  size_t count = 0;
  size_t inside = 0;
};

/// Returns the state, which is never destroyed, since lookups may outlive main().
State& state() {
  static State& all = *new State;
  return all;
}

/// Waits if lookups of `host` hang, and returns the host to look up instead; empty means none.
std::string hang(const std::string& host) {
  State& all = state();
  std::unique_lock lock(all.mutex);
  if (host.empty() || host != all.name) return host;
  ++all.count;
  ++all.inside;
  all.changed.wait(lock, [&all] { return all.name.empty() || all.substitute; });
  --all.inside;
  all.changed.notify_all();
  return all.substitute.value_or("");
}

}  // namespace

HangingLookup::HangingLookup(std::string name) {
  const std::lock_guard lock(state().mutex);
  state().name = std::move(name);
  state().count = 0;
}

HangingLookup::~HangingLookup() {
  State& all = state();
  std::unique_lock lock(all.mutex);
  all.name.clear();
  all.changed.notify_all();
  all.changed.wait(lock, [&all] { return all.inside == 0; });
  all.substitute.reset();
}

size_t HangingLookup::count() const {
  const std::lock_guard lock(state().mutex);
  return state().count;
}

void HangingLookup::resolve_to(const std::string& host) {
  const std::lock_guard lock(state().mutex);
  state().substitute = host;
  state().changed.notify_all();
}

}  // namespace millrace::test

extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints, addrinfo** found) {
  static const auto real = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  const bool numeric = hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0;
  if (node == nullptr || numeric) return real(node, service, hints, found);
  const std::string host = millrace::test::hang(node);
  return host.empty() ? EAI_AGAIN : real(host.c_str(), service, hints, found);
}
