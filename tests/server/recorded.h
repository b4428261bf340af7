#pragma once

#include <fstream>
#include <iterator>
#include <string>

#include "support/paths.h"

namespace millrace::test {

/// Returns a request that was recorded from an agent; empty where that data is absent.
inline std::string read_recorded(const std::string& name) {
  std::ifstream file(shared_data_dir() / "agents" / (name + ".json"));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace millrace::test
