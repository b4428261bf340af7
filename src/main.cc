#include <cstdio>
#include <exception>

#include "app/devices.h"
#include "app/flags.h"
#include "app/serve.h"
#include "app/simulate.h"
#include "app/trace_report.h"

namespace {

using namespace millrace;

/// Each returns the exit code, or why the command failed.
Result<int> run(const app::ExitWith& exit) {
  std::fprintf(exit.code == 0 ? stdout : stderr, "%s\n", exit.message.c_str());
  return exit.code;
}

Result<int> run(const app::TraceFlags& flags) {
  const auto report = app::report_trace(flags.file);
  if (report.has_error()) return report.error();
  std::fputs(report->c_str(), stdout);
  return 0;
}

Result<int> run(const app::DevicesFlags&) {
  std::fputs(app::describe_devices().c_str(), stdout);
  return 0;
}

Result<int> run(const app::SimulateFlags& flags) {
  RETURN_IF_ERROR(app::simulate(flags));
  return 0;
}

Result<int> run(const app::ServeFlags& flags) {
  log::configure(flags.log_level, flags.log_json);
  RETURN_IF_ERROR(app::serve(flags));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto command = app::parse_command_line(argc, argv);
    const auto code = std::visit([](const auto& flags) { return run(flags); }, command);
    if (code.has_value()) return *code;
    std::fprintf(stderr, "millrace: %s\n", code.error().message.c_str());
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "millrace: %s\n", failure.what());
  }
  return 1;
}
