#pragma once

#include <initializer_list>
#include <string_view>

#include "base/log.h"

namespace millrace::log {

/// One named value of an event. Text is quoted in a JSON log; other values are written as they are.
struct EventField {
  std::string_view name;
  std::string_view value;
  bool is_text = false;
};

/// Logs `name` with its values: "name a=1 b=x" as text, {…,"message":"name","a":1,"b":"x"} as JSON lines.
void event(Level level, std::string_view name, std::initializer_list<EventField> fields);

}  // namespace millrace::log
