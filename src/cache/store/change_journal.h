#pragma once

#include <array>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "cache/page_key.h"

namespace millrace::cache {

inline constexpr std::string_view kJournalSuffix = ".news";

/// A change of one page that one writer of a folder tells the others, as it lies in the file: little-endian.
struct PageChange {
  enum class Kind : uint64_t {
    kWriting,  ///< somebody writes it and wants its room
    kWritten,  ///< it has been written
    kRemoved,  ///< it was removed, or not written after all
  };
  PageKey key;
  int64_t at_ns = 0;   ///< on the wall clock: of two changes of one page the later one counts
  uint64_t bytes = 0;  ///< of the file
  Kind kind = Kind::kWritten;
};

/// The way in which writers of one identity's folder learn at once which pages the others put and remove. The bound
/// thus holds for all of them together: each has a file that it alone writes and the others read, and nobody waits for
/// anybody. A file holds the last kCapacity changes; who has missed some reads the folder instead. It stays when its
/// writer has gone, for long enough for the others to read it (StoreFolder::remove_leftovers). Owned by a StoreFolder.
/// append() may be called from any thread, poll() by one at a time; both block for a few system calls.
class ChangeJournal {
 public:
  static constexpr uint64_t kCapacity = 4096;

  /// Makes the file of `writer` below tmp/ of `folder`, which stays open longer than this object. `error()` says
  /// whether it could be made.
  ChangeJournal(int folder, std::string_view writer);
  ~ChangeJournal();
  ChangeJournal(const ChangeJournal&) = delete;
  ChangeJournal& operator=(const ChangeJournal&) = delete;

  /// Returns 0, or the errno that kept the file from being made.
  [[nodiscard]] int error() const { return error_; }
  [[nodiscard]] const std::string& name() const { return own_name_; }  // in the folder
  /// Appends a change to the journal that the others read. Returns 0, or the errno of the failure.
  [[nodiscard]] int append(const PageChange& change);
  struct NewChanges {
    std::vector<PageChange> changes;  // of each writer in its order
    bool missed = false;              // some are lost
  };
  /// Returns what the others have appended since the last call; the first time, as much of it as is kept.
  [[nodiscard]] NewChanges poll();

 private:
  struct Peer {
    int file = -1;
    uint64_t read = 0;  // news, from its first on
  };
  [[nodiscard]] int make_file();
  static void read_new(Peer& other, NewChanges& result);

  const int folder_;
  const std::string own_name_;
  int error_ = 0;
  std::mutex own_mutex_;
  uint64_t appended_ = 0;
  std::map<std::string, Peer> peers_;  // by name
};

}  // namespace millrace::cache
