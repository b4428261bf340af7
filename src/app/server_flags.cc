#include "app/flag_types.h"
#include "app/serve_flags.h"

namespace millrace::app {
namespace {

/// Refuses an empty key, which would leave open what was meant to be closed.
CLI::Validator key() {
  return {[](std::string& text) { return std::string(text.empty() ? "the key is empty" : ""); }, ""};
}

constexpr NumberRange kConnectionTimeout{0.01, 86400};

}  // namespace

void add_server_flags(CLI::App& serve, ServeFlags& flags) {
  server::ServerOptions& server = flags.server;
  serve.option_defaults()->group("HTTP");
  serve.add_option("--host", server.http.host, "Sets the address to listen on.")
      ->type_name("HOST")
      ->capture_default_str();
  add_number(serve, "--port", server.http.port, {0, 65535}, "Sets the port to listen on; 0: any free one.");
  serve
      .add_option(
          "--api-key", server.api_keys,
          "Requires one of these keys from clients, as 'Authorization: Bearer KEY'; may be given several times.")
      ->check(key())
      ->allow_extra_args(false)
      ->type_name("KEY")
      ->envname("MILLRACE_API_KEY");
  serve.add_option("--api-key-file", flags.api_key_file, "Adds the keys in this file, one per line.")
      ->type_name("FILE");
  serve
      .add_option("--admin-api-key", server.admin_api_key,
                  "Requires this key for the routes of administrators; it opens every other route, too.")
      ->check(key())
      ->type_name("KEY")
      ->envname("MILLRACE_ADMIN_API_KEY");
  serve
      .add_option("--cors-origin", server.cors_origin,
                  "Lets the pages of this origin call the server; empty: no pages.")
      ->type_name("ORIGIN")
      ->capture_default_str();
  serve.add_flag("--allow-request-chat-template", server.allow_request_chat_template,
                 "Lets requests bring a chat template of their own.");
  serve
      .add_option(
          "--random-seed", server.random_seed,
          "Derives the seeds of requests without one from this seed: the same requests in the same order get the "
          "same outputs.")
      ->type_name("N")
      ->default_str("random");
}

void add_limit_flags(CLI::App& serve, ServeFlags& flags) {
  server::ServerOptions& server = flags.server;
  serve.option_defaults()->group("Limits of HTTP");
  add_number(serve, "--max-connections", server.http.max_connections, {1, 1 << 20},
             "Limits the open connections; further ones get 503.");
  add_number(serve, "--max-requests-in-flight", server.max_requests_in_flight, {1, 1 << 20},
             "Limits the requests that have no complete response yet; further ones get 429.");
  add_number(serve, "--max-choices", server.max_choices, {1, 65536},
             "Limits prompts times n of one request; more gets 400.");
  add_number(serve, "--max-logprobs", server.max_logprobs, {0, 1024},  // what the GPU's lists hold
             "Limits the alternatives per token in logprobs; more gets 400.");
  add_size(serve, "--max-body-mib", server.http.max_body_bytes, size_t{1} << 20, {1, 4096},
           "Limits one request body, in MiB; a larger one gets 413.");
  add_size(serve, "--max-bodies-mib", server.http.max_bodies_bytes, size_t{1} << 20, {1, 1 << 24},
           "Limits all request bodies together, in MiB, without the first 64 KiB of each; further ones get 503.");
  add_size(serve, "--response-store-mib", server.response_store_bytes, size_t{1} << 20, {0, 1 << 20},
           "Limits the responses of /v1/responses that are kept for later requests, in MiB; 0: none is kept.");
  add_size(serve, "--max-header-kib", server.http.max_header_bytes, uint32_t{1} << 10, {1, 1024},
           "Limits one request header, in KiB; a larger one gets 431.");
  add_seconds(serve, "--header-timeout", server.http.header_timeout, kConnectionTimeout,
              "Limits the time for a request's header to arrive; a later one gets 408.");
  add_seconds(serve, "--body-timeout", server.http.body_timeout, kConnectionTimeout,
              "Limits the time for a request's body to arrive; a later one gets 408.");
  add_seconds(serve, "--idle-timeout", server.http.idle_timeout, kConnectionTimeout,
              "Closes a connection without a request for this long.");
  add_seconds(serve, "--write-timeout", server.http.write_timeout, kConnectionTimeout,
              "Closes a connection whose client reads nothing of its response for this long.");
  add_seconds(serve, "--comment-interval", server.comment_interval, kConnectionTimeout,
              "Sends a comment line on a stream that has had no tokens for this long.");
}

}  // namespace millrace::app
