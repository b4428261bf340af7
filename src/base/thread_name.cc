#include "base/thread_name.h"

#include <pthread.h>

#include <string>

namespace millrace {

void name_thread(std::string_view name) {
  constexpr size_t kMost = 15;
  pthread_setname_np(pthread_self(), std::string(name.substr(0, kMost)).c_str());
}

}  // namespace millrace
