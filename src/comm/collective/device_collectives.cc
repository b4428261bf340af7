#include "comm/collective/device_collectives.h"

#include <future>

namespace millrace::comm {

std::vector<std::unique_ptr<tensor::Collective>> open_device_collectives(const std::string& name,
                                                                         const std::vector<tensor::Backend*>& backends,
                                                                         size_t max_bytes) {
  const tensor::CollectiveOptions shared{.position = {.rank = 0, .size = static_cast<int32_t>(backends.size())},
                                         .id = backends.front()->make_channel_id(),
                                         .name = name,
                                         .max_bytes = max_bytes};
  std::vector<std::future<std::unique_ptr<tensor::Collective>>> opening;
  for (size_t rank = 0; rank < backends.size(); ++rank) {
    opening.push_back(std::async(std::launch::async, [&shared, &backends, rank] {
      tensor::CollectiveOptions own = shared;
      own.position.rank = static_cast<int32_t>(rank);
      return backends[rank]->open_collective(own);
    }));
  }
  for (const auto& each : opening) each.wait();
  std::vector<std::unique_ptr<tensor::Collective>> ends;
  for (auto& each : opening) ends.push_back(each.get());
  return ends;
}

}  // namespace millrace::comm
