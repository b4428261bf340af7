#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "app/local_engine.h"
#include "app/simulate.h"
#include "base/log.h"
#include "server/options.h"

namespace millrace::app {

struct ServeFlags {
  EngineOptions engine;
  ClusterOptions cluster;
  server::ServerOptions server;
  std::string chat_template;      ///< a file; empty: the model's own
  std::string api_key_file;       ///< of one key per line; empty: none
  std::string generation_config;  ///< a JSON object that goes before the model's; empty: none
  std::chrono::milliseconds drain_timeout{30'000};
  log::Level log_level = log::Level::kInfo;
  bool log_json = false;
};

/// `millrace trace FILE`.
struct TraceFlags {
  std::filesystem::path file;
};

/// `millrace quantize`.
struct QuantizeFlags {
  std::filesystem::path model_path;
  std::filesystem::path output;
  std::string quantization = "w8";  ///< or mxint8, w8a8_int8
};

/// `millrace devices`.
struct DevicesFlags {};

/// The command line was wrong (code 2), or asked for help or the version (code 0).
struct EarlyExit {
  int code = 0;
  std::string message;  ///< for stdout when code is 0, else one line for stderr
};

using Command = std::variant<ServeFlags, TraceFlags, SimulateFlags, QuantizeFlags, DevicesFlags, EarlyExit>;
[[nodiscard]] Command parse_command_line(int argc, char** argv);

}  // namespace millrace::app
