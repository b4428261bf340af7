#include "base/log.h"

#include "base/log_event.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "base/json.h"

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

spdlog::logger& logger() {
  static spdlog::logger instance = [] {
    spdlog::logger made("millrace", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made.set_pattern("%Y-%m-%d %H:%M:%S.%e %^%-5l%$ %v");
    made.flush_on(spdlog::level::info);
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

bool enabled(Level level) {
  return logger().should_log(to_spdlog(level));
}

void write(Level level, fmt::string_view format, fmt::format_args args) {
  std::string message = fmt::vformat(format, args);
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
