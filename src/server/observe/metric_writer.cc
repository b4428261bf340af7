#include "server/observe/metric_writer.h"

namespace millrace::server {

std::string escape_label(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

std::string model_label(std::string_view model_name) {
  return fmt::format("model_name=\"{}\"", escape_label(model_name));
}

void MetricWriter::describe(std::string_view name, std::string_view type, std::string_view help) {
  fmt::format_to(std::back_inserter(out_), "# HELP {0}{1} {2}\n# TYPE {0}{1} {3}\n", prefix_, name, help, type);
}

}  // namespace millrace::server
