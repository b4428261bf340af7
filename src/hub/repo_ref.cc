#include "hub/repo_ref.h"

#include <algorithm>

#include "hub/gguf_choice.h"

namespace millrace::hub {
namespace {

constexpr size_t kMaxPartLength = 96;
constexpr size_t kMaxRevisionLength = 256;

bool is_alphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/// Returns whether the hub accepts an owner or a name. Two dots would leave the cache's folder, and two dashes separate
/// owner and name there.
bool is_valid_part(std::string_view part) {
  const auto is_allowed = [](char c) { return is_alphanumeric(c) || c == '-' || c == '_' || c == '.'; };
  const auto is_edge = [](char c) { return c != '-' && c != '.'; };
  return !part.empty() && part.size() <= kMaxPartLength && std::ranges::all_of(part, is_allowed) &&
         is_edge(part.front()) && is_edge(part.back()) && part.find("--") == std::string_view::npos &&
         part.find("..") == std::string_view::npos;
}

/// Returns whether a revision is a possible name of a git reference. It becomes a path in the cache.
bool is_valid_revision(std::string_view revision) {
  if (revision.empty() || revision.size() > kMaxRevisionLength) return false;
  const auto is_allowed = [](char c) {
    return is_alphanumeric(c) || std::string_view("-_./+@=").find(c) != std::string_view::npos;
  };
  return std::ranges::all_of(revision, is_allowed) && revision.front() != '/' && revision.back() != '/' &&
         revision.front() != '.' && revision.find("..") == std::string_view::npos &&
         revision.find("//") == std::string_view::npos && revision.find("/.") == std::string_view::npos;
}

}  // namespace

bool is_commit(std::string_view revision) {
  constexpr size_t kDigits = 40;
  return revision.size() == kDigits &&
         std::ranges::all_of(revision, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

Result<RepoRef> parse_repo(std::string_view text, std::string_view revision) {
  RepoRef repo;
  const size_t colon = text.find(':');
  const bool has_suffix = colon != std::string_view::npos;
  const std::string_view suffix = has_suffix ? text.substr(colon + 1) : std::string_view();
  repo.id = text.substr(0, colon);
  if (names_gguf(suffix)) {
    repo.gguf = suffix;
  } else if (has_suffix && !revision.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "--revision {}: '{}' names a revision already", revision, text);
  } else if (has_suffix) {
    repo.revision = suffix;
  }
  if (!revision.empty()) repo.revision = revision;
  const std::string_view id = repo.id;
  const size_t slash = id.find('/');
  const bool is_valid = slash == std::string_view::npos
                            ? is_valid_part(id)
                            : is_valid_part(id.substr(0, slash)) && is_valid_part(id.substr(slash + 1));
  if (!is_valid)
    return make_error(
        ErrorCode::kInvalidArgument,
        "'{}' is no repository, wanted ORG/NAME, ORG/NAME:REVISION or ORG/NAME:GGUF of letters, digits and single -, _ "
        "and .",
        text);
  if (!is_valid_revision(repo.revision))
    return make_error(ErrorCode::kInvalidArgument, "'{}': '{}' is no revision, wanted a branch, a tag or a commit",
                      text, repo.revision);
  return repo;
}

}  // namespace millrace::hub
