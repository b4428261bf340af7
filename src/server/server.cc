#include "server/server.h"

#include <algorithm>
#include <utility>

#include "async/real_runtime.h"
#include "base/check.h"
#include "server/api.h"
#include "server/http/http_server.h"

namespace millrace::server {

namespace {

/// Returns the options with each name of the model once.
ServerOptions with_unique_names(ServerOptions options) {
  std::vector<std::string> unique;
  for (std::string& name : options.other_model_names) {
    const bool is_known = name == options.served_model_name || std::ranges::find(unique, name) != unique.end();
    if (!is_known) unique.push_back(std::move(name));
  }
  options.other_model_names = std::move(unique);
  return options;
}

}  // namespace

/// What lives on the server's thread, in the order in which each needs the one before.
struct Server::Parts {
  Parts(ServerOptions server_options, Service what)
      : options(with_unique_names(std::move(server_options))),
        service(std::move(what)),
        usage{.bodies = BodyBudget(options.http.max_bodies_bytes)} {
    CHECK(service.engine != nullptr && service.tokenizer != nullptr, "a service needs an engine and a tokenizer");
  }

  const ServerOptions options;
  const Service service;
  HttpUsage usage;
  async::IoThread thread{"http"};
  Api api{thread.runtime(), options, service, usage};
  HttpServer http{thread, options.http, usage, api};
  bool stopped = false;
};

Server::Server(ServerOptions options, Service service)
    : parts_(std::make_unique<Parts>(std::move(options), std::move(service))) {}

Server::~Server() {
  stop(std::chrono::milliseconds(0));
}

Result<uint16_t> Server::start(const std::stop_token& stop) {
  return parts_->http.start(stop);
}

void Server::stop(std::chrono::milliseconds drain_timeout) {
  if (std::exchange(parts_->stopped, true)) return;
  parts_->http.stop(drain_timeout);
  parts_->thread.join();
}

}  // namespace millrace::server
