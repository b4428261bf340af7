#include "app/flag_types.h"
#include "app/serve_flags.h"

namespace millrace::app {

void add_operation_flags(CLI::App& serve, ServeFlags& flags) {
  serve.option_defaults()->group("Operation");
  add_seconds(serve, "--drain-timeout", flags.drain_timeout, {0, 86400},
              "Gives running requests this long to end after SIGTERM.");
  add_seconds(serve, "--watchdog-timeout", flags.engine.head.watchdog, {1, 86400},
              "Breaks the ring when a micro-batch takes longer.");
  add_seconds(serve, "--ring-timeout", flags.engine.node.ring_timeout, {1, 3600},
              "Gives up a node that is silent for this long, and builds the ring again.");
  serve.add_flag("--metrics-public", flags.server.metrics_public, "Serves /metrics without a key.");
  serve.add_option("--profile-dir", flags.server.profile_dir, "Writes the traces of /start_profile to this folder.")
      ->type_name("DIR")
      ->capture_default_str();
  add_choice(serve, "--log-level", flags.log_level,
             "Logs messages of this level and above: " + joined_enum_names<log::Level>() + ".");
  serve.add_flag("--log-json", flags.log_json, "Writes each log line as a JSON object.");
}

}  // namespace millrace::app
