#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "cache/store/page_record.h"

namespace millrace::cache {

/// The folders of a store's path that belong to other identities and that no server has used for long: another model,
/// another division into stages. Their pages are removed, least recently used first, when whoever owns this object
/// wants the room; a folder without pages goes too. Others may do the same at once, and a server may come back to such
/// a folder at any time. Pages that it has lost then are misses. Everything blocks; used from any thread.
class AbandonedFolders {
 public:
  /// Makes an account in which folders that nobody has used for `after` are abandoned.
  AbandonedFolders(std::string path, const IdentityHash& own, std::chrono::seconds after);

  /// Looks for abandoned folders anew: one stat per page.
  void scan();
  /// Returns the bytes of all their pages, as the last scan found them, less what was removed since.
  [[nodiscard]] uint64_t bytes() const;
  struct Removal {
    std::string name;
    int error = 0;  ///< 0, or the errno that kept the page
  };
  /// Removes the page used least recently; nothing when none is left.
  [[nodiscard]] std::optional<Removal> remove_oldest();

 private:
  struct Page {
    std::string folder;  // the identity's digits
    PageKey key;
    uint64_t bytes = 0;
  };
  class Folder;
  void remove_folder(const std::string& name) const;
  void forget_folder(const std::string& name);

  const std::string path_;
  const std::string own_;
  const std::chrono::seconds after_;
  mutable std::mutex mutex_;
  std::multimap<int64_t, Page> pages_;         // by last use
  std::map<std::string, size_t> page_counts_;  // by folder
  uint64_t bytes_ = 0;
};

}  // namespace millrace::cache
