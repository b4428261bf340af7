#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace millrace::server::responses {

struct StoredItem {
  std::string id;
  std::string json;
};

/// A response that has ended, as clients may ask for it again.
struct StoredResponse {
  std::string id;
  std::string object;               ///< the response as JSON
  std::vector<StoredItem> input;    ///< what the model was given, previous responses included
  std::vector<StoredItem> output;   ///< what it made
  std::vector<std::string> events;  ///< of its stream, as sent; the index is the sequence number
  bool is_background = false;
  [[nodiscard]] size_t bytes() const;
};

/// Keeps responses by id, within a bound of bytes; the least recently used go first. Thread-safe.
class ResponseStore {
 public:
  using Pointer = std::shared_ptr<const StoredResponse>;

  /// Makes a store of at most `max_bytes`; 0 keeps nothing.
  explicit ResponseStore(size_t max_bytes) : max_bytes_(max_bytes) {}

  /// Keeps `response` in place of one with the same id; drops it if it is larger than the store.
  void put(StoredResponse response);
  /// Returns the response, or null.
  [[nodiscard]] Pointer find(const std::string& id) const;
  /// Returns an item of a response as JSON; empty if there is none.
  [[nodiscard]] std::string find_item(std::string_view item_id) const;
  /// Returns whether there was such a response.
  bool erase(const std::string& id);
  [[nodiscard]] size_t used_bytes() const;

 private:
  struct Entry {
    Pointer response;
    size_t bytes = 0;
  };
  using Entries = std::list<Entry>;  // most recently used first

  void remove(Entries::iterator entry);

  const size_t max_bytes_;
  mutable std::mutex mutex_;
  mutable Entries entries_;
  std::unordered_map<std::string, Entries::iterator> index_;
  size_t used_bytes_ = 0;
};

/// Returns the id of the item at `index` of a response; `prefix` says what it is.
[[nodiscard]] std::string make_item_id(std::string_view prefix, std::string_view response_id, size_t index);

}  // namespace millrace::server::responses
