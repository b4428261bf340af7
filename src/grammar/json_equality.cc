#include "grammar/json_equality.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "grammar/decimal.h"

namespace millrace::grammar {
namespace {

void append_key(std::string& key, JsonValue value) {
  JsonArray array;
  JsonObject object;
  if (value.is_number()) {
    const auto number = parse_decimal(value.number_text());
    if (number) {
      key += fmt::format("{}{}.{}", number->is_negative ? "-" : "", number->whole, number->fraction);
    } else {
      key += value.number_text();
    }
  } else if (value.get(array)) {
    key += '[';
    for (const JsonValue item : array) {
      append_key(key, item);
      key += ',';
    }
    key += ']';
  } else if (value.get(object)) {
    std::vector<std::pair<std::string_view, JsonValue>> members;
    for (const JsonMember& member : object) members.emplace_back(member.key, member.value);
    std::ranges::sort(members, {}, &std::pair<std::string_view, JsonValue>::first);
    key += '{';
    for (const auto& [name, member] : members) {
      append_json_string(key, name);
      key += ':';
      append_key(key, member);
      key += ',';
    }
    key += '}';
  } else {
    append_json(key, value);
  }
}

}  // namespace

std::string equality_key(JsonValue value, ReadWork& work) {
  std::string key;
  append_key(key, value);
  work.spend(1 + key.size() / 8);
  return key;
}

bool ListedValues::contains(JsonValue list, JsonValue value, ReadWork& work) {
  const auto [entry, is_new] = by_list_.try_emplace(list.identity());
  JsonArray array;
  if (is_new && list.get(array)) {
    for (const JsonValue each : array) entry->second.insert(equality_key(each, work));
  }
  return entry->second.contains(equality_key(value, work));
}

}  // namespace millrace::grammar
