#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "app/cluster_options.h"
#include "app/engine_options.h"
#include "app/model_source.h"
#include "app/pooling_setup.h"
#include "app/quantize.h"
#include "app/simulate.h"
#include "base/log.h"
#include "server/options.h"

namespace millrace::app {

/// The flags of `millrace serve`, parsed and checked.
struct ServeFlags {
  ModelRef model;
  EngineOptions engine;
  ClusterOptions cluster;
  server::ServerOptions server;
  PoolingOptions pooling;
  std::string chat_template;      ///< a file; empty: the model's own
  std::string api_key_file;       ///< a file with one key per line; empty: none
  std::string generation_config;  ///< a JSON object that overrides the model's; empty: none
  std::chrono::milliseconds drain_timeout{30'000};
  log::Level log_level = log::Level::kInfo;
  bool log_json = false;
};

/// The flags of `millrace trace FILE`.
struct TraceFlags {
  std::filesystem::path file;
};

/// The flags of `millrace fetch`, and those of `millrace ls`, which names no model.
struct FetchFlags {
  ModelRef model;
};
struct ListFlags {
  ModelRef model;
};

/// `millrace devices` has no flags.
struct DevicesFlags {};

/// The end of the program after parsing: the command line was wrong (code 2), or asked for help or the version (0).
struct EarlyExit {
  int code = 0;
  std::string message;  ///< for stdout when code is 0, else one line for stderr
};

using Command =
    std::variant<ServeFlags, TraceFlags, SimulateFlags, QuantizeFlags, FetchFlags, ListFlags, DevicesFlags, EarlyExit>;
/// Parses the command line. Values arrive as enums, durations and bounded numbers.
[[nodiscard]] Command parse_command_line(int argc, char** argv);

}  // namespace millrace::app
