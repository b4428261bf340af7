#include <cstdio>
#include <exception>

#include "app/flags.h"
#include "app/serve.h"

int main(int argc, char** argv) {
  using namespace millrace;
  const auto parsed = app::parse_command_line(argc, argv);
  if (const auto* exit = std::get_if<app::ExitWith>(&parsed)) {
    std::fprintf(exit->code == 0 ? stdout : stderr, "%s\n", exit->message.c_str());
    return exit->code;
  }
  const auto& flags = std::get<app::ServeFlags>(parsed);
  log::configure(flags.log_level, flags.log_json);
  try {
    const auto served = app::serve(flags);
    if (served.has_value()) return 0;
    std::fprintf(stderr, "millrace: %s\n", served.error().message.c_str());
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "millrace: %s\n", failure.what());
  }
  return 1;
}
