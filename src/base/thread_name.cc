#include "base/thread_name.h"

#include <pthread.h>

#include <string>

namespace millrace {

void name_thread(std::string_view name) {
  constexpr size_t kMaxNameBytes = 15;
  pthread_setname_np(pthread_self(), std::string(name.substr(0, kMaxNameBytes)).c_str());
}

}  // namespace millrace
