#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "cache/store/change_journal.h"
#include "cache/store/page_index.h"
#include "cache/store/page_record.h"

namespace millrace::cache {

/// The folder of one identity below a store's path: its layout, its names, and who works in it. All paths are relative
/// to descriptor(), which pins the folder: if it is removed or something else is mounted over it, nothing is written
/// elsewhere. Any thread may use it.
///
///     PATH/<identity>/identity.txt           what the identity is, for people
///     PATH/<identity>/<k>/<key>              a page; <k> are the first two digits of its key
///     PATH/<identity>/tmp/                   its mtime: when somebody worked here last
///     PATH/<identity>/tmp/<writer>.lock      locked as long as the writer lives
///     PATH/<identity>/tmp/<writer>.news      its change journal (change_journal.h)
///     PATH/<identity>/tmp/<writer>.<number>  a page being written
class StoreFolder {
 public:
  /// Makes what is missing, and removes what dead writers have left. Errors: kUnavailable.
  [[nodiscard]] static Result<std::unique_ptr<StoreFolder>> open(const std::string& path,
                                                                 const StoreIdentity& identity);
  ~StoreFolder();
  StoreFolder(const StoreFolder&) = delete;
  StoreFolder& operator=(const StoreFolder&) = delete;

  [[nodiscard]] int descriptor() const { return folder_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] static std::string page_name(const PageKey& key);
  /// Returns a name that no writer has used.
  [[nodiscard]] std::string temp_name();
  /// Returns whether the folder has been removed.
  [[nodiscard]] bool is_gone() const;
  /// Sets the folder's mtime, so that others see that it is in use; called now and then as long as it is.
  void touch() const;
  /// Removes what dead writers have left: at once what they were writing, their news when everybody has read them.
  void remove_leftovers() const;
  /// Returns all pages, in no particular order. Blocks: one stat per page.
  [[nodiscard]] std::vector<StoredPage> scan() const;
  [[nodiscard]] ChangeJournal& journal() { return *journal_; }

 private:
  StoreFolder(std::string path, int folder);
  [[nodiscard]] Result<void> make_layout() const;
  [[nodiscard]] Result<void> become_writer();
  void describe(const StoreIdentity& identity) const;

  const std::string path_;  // of this identity
  const int folder_;
  std::string writer_;
  int lock_ = -1;
  std::unique_ptr<ChangeJournal> journal_;
  std::atomic<uint64_t> temp_count_{0};
};

}  // namespace millrace::cache
