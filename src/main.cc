#include <cstdio>
#include <exception>

#include "app/devices.h"
#include "app/flags.h"
#include "app/model_source.h"
#include "app/quantize.h"
#include "app/serve.h"
#include "app/simulate.h"
#include "app/trace_report.h"
#include "base/stderr_writer.h"

namespace {

using namespace millrace;

/// Each returns the exit code, or why the command failed.
Result<int> run(const app::EarlyExit& exit) {
  std::fprintf(exit.code == 0 ? stdout : stderr, "%s\n", exit.message.c_str());
  return exit.code;
}

Result<int> run(const app::TraceFlags& flags) {
  const auto report = app::report_trace(flags.file);
  if (report.has_error()) return report.error();
  std::fputs(report->c_str(), stdout);
  return 0;
}

Result<int> run(const app::FetchFlags& flags) {
  const auto folder = app::fetch_model(flags.model);
  if (folder.has_error()) return folder.error();
  std::fputs(folder->c_str(), stdout);
  return 0;
}

Result<int> run(const app::ListFlags& flags) {
  const auto table = app::list_models(flags.model);
  if (table.has_error()) return table.error();
  std::fputs(table->c_str(), stdout);
  return 0;
}

Result<int> run(const app::DevicesFlags&) {
  std::fputs(app::describe_devices().c_str(), stdout);
  return 0;
}

Result<int> run(const app::SimulateFlags& flags) {
  log::configure(log::Level::kWarn, false);  // how long things took in virtual time is in the table
  RETURN_IF_ERROR(app::simulate(flags));
  return 0;
}

Result<int> run(const app::QuantizeFlags& flags) {
  const auto text = app::quantize(flags);
  if (text.has_error()) return text.error();
  std::fputs(text->c_str(), stdout);
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
    write_stderr("millrace: " + code.error().message + '\n');
  } catch (const std::exception& failure) {
    write_stderr(std::string("millrace: ") + failure.what() + '\n');
  }
  return 1;
}
