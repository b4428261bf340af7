#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace millrace::sched {

/// A request of a router that has not ended.
struct RoutedRequest {
  std::string id;
  size_t ring = 0;          ///< where it is, or was before it was returned
  bool is_aborted = false;  ///< somebody ended it; it must not go to another ring
};

/// The requests of a router in flight, by id, and their number per ring. Plain; the owner serializes the calls.
class RequestRegistry {
 public:
  explicit RequestRegistry(size_t ring_count) : in_flight_(ring_count) {}

  /// Adds a request. Returns null when the id is in use.
  [[nodiscard]] std::shared_ptr<RoutedRequest> add(const std::string& id, size_t ring);
  void move(RoutedRequest& request, size_t ring);
  void remove(const RoutedRequest& request);
  /// Returns null for an id that is not in use.
  [[nodiscard]] std::shared_ptr<RoutedRequest> find(const std::string& id) const;
  [[nodiscard]] std::vector<std::shared_ptr<RoutedRequest>> requests_of(size_t ring) const;
  [[nodiscard]] uint32_t in_flight(size_t ring) const { return in_flight_[ring]; }

 private:
  std::unordered_map<std::string, std::shared_ptr<RoutedRequest>> by_id_;
  std::vector<uint32_t> in_flight_;  // [rings]
};

}  // namespace millrace::sched
