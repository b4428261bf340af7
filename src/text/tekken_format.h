#pragma once

#include <string>
#include <vector>

namespace millrace::text {

/// What a tekken.json says of how Mistral's models write conversations.
struct TekkenFormat {
  int version = 0;
  std::vector<std::string> efforts;  ///< words of reasoning_effort that the settings of a conversation take
  std::string default_effort;        ///< one of them; empty if there are none
};

}  // namespace millrace::text
