// A library for LD_PRELOAD: the system's resolver says that it was asked for endless.example, and never answers.
#include <dlfcn.h>
#include <netdb.h>
#include <unistd.h>

#include <string_view>

extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints, addrinfo** found) {
  static const auto real = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  const bool numeric = hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0;
  if (node == nullptr || numeric || node != std::string_view("endless.example")) {
    return real(node, service, hints, found);
  }
  constexpr std::string_view kLine = "a lookup without end begins\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kLine.data(), kLine.size());
  for (;;) pause();
}
