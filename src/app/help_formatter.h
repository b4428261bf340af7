#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace millrace::app {

/// Prints the help of a command: groups of flags in two aligned columns, with the bounds and the default of each after
/// its sentence.
class HelpFormatter final : public CLI::Formatter {
 public:
  [[nodiscard]] std::string make_option(const CLI::Option* option, bool is_positional) const override;
};

}  // namespace millrace::app
