#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/store/page_index.h"

/// The content of an identity's folder of a file store (store_folder.h has its layout), for its writers and for those
/// who remove abandoned folders. Everything blocks; what cannot be read counts as absent.
namespace millrace::cache {

inline constexpr std::string_view kLockSuffix = ".lock";
/// The number of folders of pages, named by two digits.
inline constexpr int kFanOut = 256;

/// Calls `visit` with the names in the folder `name` of `parent`, except hidden ones.
void for_each_name(int parent, const char* name, const std::function<void(int folder, const char* name)>& visit);
/// Returns all pages of the identity's folder, in no particular order: one stat per page.
[[nodiscard]] std::vector<StoredPage> pages_in(int folder);
/// Returns whether no process holds the writer's lock; then it is removed.
[[nodiscard]] bool is_dead_writer(int folder, const std::string& writer);
[[nodiscard]] bool has_living_writer(int folder);

}  // namespace millrace::cache
