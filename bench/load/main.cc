// A load generator for servers that speak the OpenAI API: `load --help`.
#include <sys/resource.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <fstream>
#include <iostream>

#include "async/real_runtime.h"
#include "load/options.h"
#include "load/report.h"
#include "load/runner.h"

namespace millrace::load {
namespace {

/// Every request in flight holds a socket.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

asio::awaitable<void> run_into(Runner& runner, asio::signal_set& signals, RunResult& result) {
  result = co_await runner.run();
  signals.cancel();
}

RunResult run_to_end(const Options& options) {
  asio::io_context context(1);
  async::RealRuntime runtime(context);
  asio::signal_set signals(context, SIGINT, SIGTERM);
  RunResult result;
  std::exception_ptr failure;
  Runner runner(runtime, options);
  async::TaskGroup group(runtime, [&failure, &signals](const std::string&, std::exception_ptr error) {
    failure = std::move(error);
    signals.cancel();
  });
  signals.async_wait([&runner, &signals](const boost::system::error_code& error, int) {
    if (error) return;
    runner.interrupt();
    signals.clear();  // the next one ends the program, whatever it waits for
  });
  group.spawn("run", run_into(runner, signals, result));
  context.run();
  if (failure) std::rethrow_exception(failure);
  return result;
}

/// Before an hour's run, not after it.
bool can_write(const std::string& path) {
  if (path.empty() || std::ofstream(path, std::ios::app)) return true;
  std::cerr << "load: cannot write " << path << "\n";
  return false;
}

int report(const RunResult& result, const Options& options) {
  if (isatty(STDERR_FILENO) == 1 && !options.quiet) std::cerr << "\r\033[K";
  if (result.failure) {
    std::cerr << "load: " << result.failure.message << "\n";
    return 1;
  }
  const Summary summary = summarize(result, options);
  std::cout << to_text(summary, result, options) << std::flush;
  if (!options.result_file.empty()) {
    std::ofstream file(options.result_file, std::ios::trunc);
    file << to_json(summary, result, options) << std::flush;
    if (!file) {
      std::cerr << "load: cannot write " << options.result_file << "\n";
      return 1;
    }
  }
  return summary.completed == options.num_prompts ? 0 : 1;
}

}  // namespace
}  // namespace millrace::load

int main(int argc, char** argv) {
  const auto parsed = millrace::load::parse_options(argc, argv);
  if (parsed.exit_code) return *parsed.exit_code;
  if (!millrace::load::can_write(parsed.options.result_file)) return 1;
  millrace::load::raise_file_limit();
  try {
    return millrace::load::report(millrace::load::run_to_end(parsed.options), parsed.options);
  } catch (const std::exception& error) {
    std::cerr << "load: " << error.what() << "\n";
    return 1;
  }
}
