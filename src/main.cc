#include <cstdio>
#include <exception>

#include "app/flags.h"
#include "app/serve.h"
#include "app/trace_report.h"

namespace {

using namespace millrace;

Result<void> run(const app::TraceFlags& flags) {
  const auto report = app::report_trace(flags.file);
  if (report.has_error()) return report.error();
  std::fputs(report->c_str(), stdout);
  return {};
}

Result<void> run(const app::ServeFlags& flags) {
  log::configure(flags.log_level, flags.log_json);
  return app::serve(flags);
}

}  // namespace

int main(int argc, char** argv) {
  const auto parsed = app::parse_command_line(argc, argv);
  if (const auto* exit = std::get_if<app::ExitWith>(&parsed)) {
    std::fprintf(exit->code == 0 ? stdout : stderr, "%s\n", exit->message.c_str());
    return exit->code;
  }
  try {
    const auto* trace = std::get_if<app::TraceFlags>(&parsed);
    const auto done = trace != nullptr ? run(*trace) : run(std::get<app::ServeFlags>(parsed));
    if (done.has_value()) return 0;
    std::fprintf(stderr, "millrace: %s\n", done.error().message.c_str());
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "millrace: %s\n", failure.what());
  }
  return 1;
}
