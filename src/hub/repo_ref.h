#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace millrace::hub {

/// A model repository of a hub and one of its revisions.
struct RepoRef {
  std::string id;                 ///< "ORG/NAME", or "NAME" alone for the hub's oldest repositories
  std::string revision = "main";  ///< a branch, a tag or a commit
  std::string gguf;               ///< which GGUF model of it, as choose_gguf() takes it; empty: not said

  [[nodiscard]] std::string to_string() const { return id + ':' + revision; }
};

/// Returns whether the revision is a commit: 40 hexadecimal digits.
[[nodiscard]] bool is_commit(std::string_view revision);

/// Parses "ORG/NAME", "ORG/NAME:REVISION" or "ORG/NAME:GGUF", where names_gguf() knows what follows. `revision` is one
/// from elsewhere; empty: none. Errors: kInvalidArgument, which says what the hub allows in a name, or that there are
/// two revisions.
[[nodiscard]] Result<RepoRef> parse_repo(std::string_view text, std::string_view revision = {});

}  // namespace millrace::hub
