#include "sched/router/request_registry.h"

#include "base/check.h"

namespace millrace::sched {

std::shared_ptr<RoutedRequest> RequestRegistry::add(const std::string& id, size_t ring) {
  const auto [entry, is_new] = by_id_.try_emplace(id);
  if (!is_new) return nullptr;
  entry->second = std::make_shared<RoutedRequest>(RoutedRequest{.id = id, .ring = ring});
  ++in_flight_[ring];
  return entry->second;
}

void RequestRegistry::move(RoutedRequest& request, size_t ring) {
  --in_flight_[request.ring];
  request.ring = ring;
  ++in_flight_[ring];
}

void RequestRegistry::remove(const RoutedRequest& request) {
  --in_flight_[request.ring];
  CHECK(by_id_.erase(request.id) == 1, "request '{}' is removed twice", request.id);
}

std::shared_ptr<RoutedRequest> RequestRegistry::find(const std::string& id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<RoutedRequest>> RequestRegistry::requests_of(size_t ring) const {
  std::vector<std::shared_ptr<RoutedRequest>> found;
  for (const auto& [id, request] : by_id_) {
    if (request->ring == ring) found.push_back(request);
  }
  return found;
}

}  // namespace millrace::sched
