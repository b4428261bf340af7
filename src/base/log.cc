#include "base/log.h"

#include "base/log_drops.h"
#include "base/log_event.h"
#include "base/log_label.h"

#include <spdlog/details/os.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <unistd.h>

#include <atomic>
#include <mutex>

#include "base/json.h"
#include "base/stderr_writer.h"

namespace millrace::log {
namespace {

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kTrace: return spdlog::level::trace;
    case Level::kDebug: return spdlog::level::debug;
    case Level::kInfo: return spdlog::level::info;
    case Level::kWarn: return spdlog::level::warn;
    case Level::kError: return spdlog::level::err;
    case Level::kOff: return spdlog::level::off;
  }
  return spdlog::level::info;
}

bool json_lines_enabled = false;
std::atomic<uint64_t> dropped_count{0};
thread_local std::string label_of_thread;

/// Returns the terminal's escape sequence for a level.
std::string_view color_of(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::debug: return "\033[36m";
    case spdlog::level::info: return "\033[32m";
    case spdlog::level::warn: return "\033[33m\033[1m";
    case spdlog::level::err: return "\033[31m\033[1m";
    default: return "\033[m";
  }
}

/// Writes to stderr, in color on a terminal, without ever waiting for who reads it.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  StderrSink() = default;
  StderrSink(const StderrSink&) = delete;
  StderrSink& operator=(const StderrSink&) = delete;
  ~StderrSink() override { writer_.finish(); }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t buffer;
    formatter_->format(message, buffer);
    const std::string_view line(buffer.data(), buffer.size());
    const size_t begin = message.color_range_start;
    const size_t end = message.color_range_end;
    if (has_color_ && begin < end) {
      std::string colored(line.substr(0, begin));
      colored.append(color_of(message.level)).append(line.substr(begin, end - begin)).append("\033[m");
      writer_.write(colored.append(line.substr(end)));
    } else {
      writer_.write(line);
    }
    dropped_count = writer_.dropped();
  }
  void flush_() override {}

 private:
  LineWriter writer_{STDERR_FILENO};
  const bool has_color_ = spdlog::details::os::in_terminal(stderr) && spdlog::details::os::is_color_terminal();
};

spdlog::logger& logger() {
  static spdlog::logger instance = [] {
    spdlog::logger made("millrace", std::make_shared<StderrSink>());
    made.set_pattern("%Y-%m-%d %H:%M:%S.%e %^%-5l%$ %v");
    return made;
  }();
  return instance;
}

}  // namespace

void configure(Level level, bool json_lines) {
  logger().set_level(to_spdlog(level));
  json_lines_enabled = json_lines;
  if (json_lines) logger().set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%f%z","level":"%l","message":%v})");
}

uint64_t dropped_lines() {
  return dropped_count;
}

bool enabled(Level level) {
  return logger().should_log(to_spdlog(level));
}

void label_thread(std::string label) {
  label_of_thread = std::move(label);
}

const std::string& thread_label() {
  return label_of_thread;
}

void write(Level level, fmt::string_view format, fmt::format_args args) {
  std::string message = fmt::vformat(format, args);
  if (!label_of_thread.empty()) message.insert(0, label_of_thread + ": ");
  if (json_lines_enabled) {
    std::string quoted;
    append_json_string(quoted, message);
    message = std::move(quoted);
  }
  logger().log(to_spdlog(level), "{}", message);
}

void event(Level level, std::string_view name, std::initializer_list<EventField> fields) {
  std::string line;
  if (json_lines_enabled) {
    append_json_string(line, name);
    for (const EventField& field : fields) {
      line += ',';
      append_json_string(line, field.name);
      line += ':';
      if (field.is_text) {
        append_json_string(line, field.value);
      } else {
        line += field.value;
      }
    }
  } else {
    line = name;
    for (const EventField& field : fields) line.append(" ").append(field.name).append("=").append(field.value);
  }
  logger().log(to_spdlog(level), "{}", line);
}

}  // namespace millrace::log
