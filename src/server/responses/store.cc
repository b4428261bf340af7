#include "server/responses/store.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace::server::responses {
namespace {

constexpr std::string_view kResponsePrefix = "resp_";
constexpr size_t kEntryBytes = 512;  // of maps, lists and headers
constexpr size_t kStringBytes = 32;

size_t size_of(const std::vector<StoredItem>& items) {
  size_t bytes = 0;
  for (const StoredItem& item : items) bytes += item.id.size() + item.json.size() + 2 * kStringBytes;
  return bytes;
}

}  // namespace

size_t StoredResponse::bytes() const {
  size_t bytes = kEntryBytes + id.size() + object.size() + size_of(input) + size_of(output);
  for (const std::string& event : events) bytes += event.size() + kStringBytes;
  return bytes;
}

void ResponseStore::put(StoredResponse response) {
  const size_t bytes = response.bytes();
  const std::string id = response.id;
  const std::lock_guard lock(mutex_);
  if (const auto known = index_.find(id); known != index_.end()) remove(known->second);
  if (bytes > max_bytes_) return;
  while (used_bytes_ + bytes > max_bytes_) remove(std::prev(entries_.end()));
  entries_.push_front({std::make_shared<const StoredResponse>(std::move(response)), bytes});
  index_.emplace(id, entries_.begin());
  used_bytes_ += bytes;
}

ResponseStore::Pointer ResponseStore::find(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = index_.find(id);
  if (found == index_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->response;
}

std::string ResponseStore::find_item(std::string_view item_id) const {
  const size_t first = item_id.find('_');
  const size_t last = item_id.rfind('_');
  if (first == std::string_view::npos || first == last) return {};
  const Pointer response =
      find(std::string(kResponsePrefix) + std::string(item_id.substr(first + 1, last - first - 1)));
  if (response == nullptr) return {};
  for (const auto* items : {&response->output, &response->input}) {
    const auto found = std::ranges::find(*items, item_id, &StoredItem::id);
    if (found != items->end()) return found->json;
  }
  return {};
}

bool ResponseStore::erase(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto found = index_.find(id);
  if (found == index_.end()) return false;
  remove(found->second);
  return true;
}

size_t ResponseStore::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_;
}

void ResponseStore::remove(Entries::iterator entry) {
  used_bytes_ -= entry->bytes;
  index_.erase(entry->response->id);
  entries_.erase(entry);
}

std::string make_item_id(std::string_view prefix, std::string_view response_id, size_t index) {
  if (response_id.starts_with(kResponsePrefix)) response_id.remove_prefix(kResponsePrefix.size());
  return fmt::format("{}_{}_{}", prefix, response_id, index);
}

}  // namespace millrace::server::responses
