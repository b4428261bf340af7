#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>

#include "base/json_value.h"
#include "grammar/read_work.h"

namespace millrace::grammar {

/// Returns a text that is the same for values that JSON Schema calls equal: numbers by their size, members in any
/// order. Counts a step per eight characters.
[[nodiscard]] std::string equality_key(JsonValue value, ReadWork& work);

/// The lists of "enum" in a schema, each as a set. Lives while one schema is read.
class ListedValues {
 public:
  /// Returns whether an array holds a value. Takes one pass over the list for all calls.
  [[nodiscard]] bool contains(JsonValue list, JsonValue value, ReadWork& work);

 private:
  std::unordered_map<const void*, std::unordered_set<std::string>> by_list_;
};

}  // namespace millrace::grammar
