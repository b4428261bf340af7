#pragma once

#include <string_view>

namespace millrace::grammar {

class UncutValues;

/// How values are written. The defaults are JSON; call formats have languages of their own.
struct JsonNotation {
  bool has_escapes = true;           ///< strings are JSON's; else their characters stand as they are
  std::string_view quote = "\"";     ///< stands at both ends of a string; empty only without escapes
  bool has_space = true;             ///< JSON's space may stand between tokens
  std::string_view separator = ",";  ///< between members and items
  std::string_view colon = ":";      ///< after a key
  std::string_view bare_keys = {};   ///< a regular expression of the keys that may stand without quotes
  std::string_view true_word = "true";
  std::string_view false_word = "false";
  std::string_view null_word = "null";
  bool sorts_keys = false;             ///< where the order of members is fixed, it is that of their keys
  bool has_keyword_arguments = false;  ///< the outermost object is `(key=value)`, and its keys are bare
  UncutValues* uncut = nullptr;        ///< strings hold none of its tags

  /// Returns whether keys of objects that are values may be bare.
  [[nodiscard]] bool has_bare_keys() const { return !bare_keys.empty() && !has_keyword_arguments; }
};

}  // namespace millrace::grammar
