#include "server/observe/ring_labels.h"

#include <fmt/format.h>

#include <map>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace millrace::server {
namespace {

constexpr std::string_view kHelp = "# HELP ";

/// Returns a sample with one more label, the first.
std::string with_ring(std::string_view sample, size_t ring) {
  const size_t end = sample.find_first_of("{ ");
  const bool has_labels = sample[end] == '{';
  const std::string_view rest = sample.substr(has_labels ? end + 1 : end);
  return fmt::format("{}{{ring=\"{}\"{}{}\n", sample.substr(0, end), ring, has_labels ? "," : "}", rest);
}

struct Family {
  std::string header;
  std::string samples;
};

/// The families of all rings, in the order in which they first came.
class Families {
 public:
  void add(std::string_view text, size_t ring) {
    size_t family = 0;
    bool is_new = false;
    while (!text.empty()) {
      const size_t end = text.find('\n');
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(end + 1);
      if (line.starts_with(kHelp)) std::tie(family, is_new) = find_or_add(line);
      if (!line.starts_with('#')) {
        families_[family].samples += with_ring(line, ring);
      } else if (is_new) {
        families_[family].header.append(line).append("\n");
      }
    }
  }

  void append_to(std::string& out) const {
    for (const Family& family : families_) out.append(family.header).append(family.samples);
  }

 private:
  /// Returns the index of the family that a help line begins, and whether it is new.
  std::pair<size_t, bool> find_or_add(std::string_view help) {
    const std::string_view named = help.substr(kHelp.size());
    const auto [entry, is_new] = by_name_.try_emplace(std::string(named.substr(0, named.find(' '))), families_.size());
    if (is_new) families_.emplace_back();
    return {entry->second, is_new};
  }

  std::map<std::string, size_t> by_name_;
  std::vector<Family> families_;
};

}  // namespace

void append_ring_labelled(std::string& out, std::span<const std::string> texts) {
  Families families;
  for (size_t ring = 0; ring < texts.size(); ++ring) families.add(texts[ring], ring);
  families.append_to(out);
}

}  // namespace millrace::server
