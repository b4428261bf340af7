#include "app/signals.h"

#include <unistd.h>

#include <boost/asio/post.hpp>
#include <csignal>

namespace millrace::app {
namespace {

/// Ends the process as the default action would, which the system withholds from the first process of a container.
void exit_immediately(int signal) {
  _exit(128 + signal);
}

}  // namespace

Signals::Signals() {
  std::signal(SIGPIPE, SIG_IGN);
  // Only the thread that exists already takes them: no system call elsewhere is interrupted.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signals_.async_wait([this](boost::system::error_code failure, int signal) {
    if (failure) return;
    boost::system::error_code ignored;
    signals_.clear(ignored);  // the default action from now on
    if (getpid() == 1) {
      for (const int next : {SIGTERM, SIGINT}) std::signal(next, exit_immediately);
    }
    has_fired_ = true;
    received_.set_value(signal);
    if (action_) action_();
  });
}

Signals::~Signals() {
  boost::asio::post(thread_.context(), [this] {
    boost::system::error_code ignored;
    signals_.cancel(ignored);
  });
  thread_.join();
}

void Signals::on_first(std::function<void()> action) {
  std::promise<void> taken;
  boost::asio::post(thread_.context(), [&] {
    action_ = std::move(action);
    if (has_fired_ && action_) action_();
    taken.set_value();
  });
  taken.get_future().get();
}

const char* signal_name(int signal) {
  return signal == SIGINT ? "SIGINT" : "SIGTERM";
}

}  // namespace millrace::app
