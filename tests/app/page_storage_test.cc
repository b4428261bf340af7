#include "app/page_storage.h"

#include <catch2/catch.hpp>

using namespace millrace;
using namespace millrace::app;

TEST_CASE("a Redis address is a name or an IP address or a path") {
  struct Sample {
    std::string address;
    std::string host;
    uint16_t port;
  };
  for (const Sample& sample : std::vector<Sample>{{"cache.example:7000", "cache.example", 7000},
                                                  {"cache.example", "cache.example", 6379},
                                                  {"redis://10.0.0.9:1", "10.0.0.9", 1},
                                                  {"rediss://10.0.0.9", "10.0.0.9", 6379},
                                                  {"[::1]:7000", "::1", 7000},
                                                  {"rediss://[fe80::2]", "fe80::2", 6379},
                                                  {"/run/a:b.sock", "/run/a:b.sock", 6379}}) {
    CAPTURE(sample.address);
    const auto options = redis_options({.backend = StoreBackend::kRedis, .address = sample.address});
    REQUIRE(options.has_value());
    REQUIRE(options->host == sample.host);
    REQUIRE(options->port == sample.port);
    REQUIRE(options->tls.enabled == sample.address.starts_with("rediss://"));
  }
}

TEST_CASE("an invalid Redis address is refused with flag and text") {
  for (const std::string address : {"", ":6379", "host:", "host:0", "host:65536", "host:6379/0", "host: 1", "::1",
                                    "fe80::2:6379", "[::1", "[]:6379", "[::1]6379", "[::1]:", "rediss://"}) {
    CAPTURE(address);
    const auto options = redis_options({.backend = StoreBackend::kRedis, .address = address});
    REQUIRE(options.has_error());
    REQUIRE(options.error().message.starts_with("--hicache-storage-address: '" + address + "' is not HOST:PORT"));
  }
}

TEST_CASE("a time to live is rounded up to whole seconds") {
  const auto seconds = [](double given) {
    return redis_options({.backend = StoreBackend::kRedis, .address = "cache.example", .ttl_s = given})->ttl_s;
  };
  REQUIRE(seconds(0) == 0);
  REQUIRE(seconds(0.25) == 1);
  REQUIRE(seconds(1) == 1);
  REQUIRE(seconds(59.5) == 60);
}
