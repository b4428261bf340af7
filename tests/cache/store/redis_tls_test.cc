#include <catch2/catch.hpp>
#include <fstream>

#include "cache/store/redis_server.h"
#include "support/skip.h"

using namespace millrace;
using namespace millrace::cache;
using namespace millrace::test;

namespace {

/// Returns whether openssl and a redis-server that speaks TLS are installed.
bool can_encrypt() {
  static const bool can = std::system("command -v openssl > /dev/null 2>&1") == 0 && RedisServer::can_encrypt();
  return can;
}
constexpr const char* kCannot = "openssl or a redis-server with TLS is not installed";

/// Files of keys and certificates, made by openssl, gone with the object.
class Certificates {
 public:
  Certificates() {
    make("authority", "-x509 -subj '/CN=an authority'");
    make("stranger", "-x509 -subj '/CN=another authority'");
    issue("server", "IP:127.0.0.1,DNS:localhost");
    issue("elsewhere", "DNS:elsewhere.example");
    issue("client", "DNS:client");
  }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

 private:
  void issue(const std::string& name, const std::string& names) {
    make(name, "-x509 -CA " + path("authority.pem") + " -CAkey " + path("authority.key") + " -subj /CN=" + name +
                   " -addext subjectAltName=" + names + " -addext basicConstraints=critical,CA:FALSE");
  }
  void make(const std::string& name, const std::string& more) {
    const std::string command = "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -keyout " +
                                path(name + ".key") + " -out " + path(name + ".pem") + " " + more + " > " +
                                path("log") + " 2>&1";
    const int status = std::system(command.c_str());
    INFO(std::ifstream(path("log")).rdbuf());
    REQUIRE(status == 0);
  }

  TempFolder folder_;
};

/// A server that speaks TLS on one port, with the certificate `name`, and plainly on another.
struct TlsServer {
  TlsServer(const Certificates& files, const std::string& name, bool wants_certificate)
      : plain({"--tls-port", std::to_string(port), "--tls-cert-file", files.path(name + ".pem"), "--tls-key-file",
               files.path(name + ".key"), "--tls-ca-cert-file", files.path("authority.pem"), "--tls-auth-clients",
               wants_certificate ? "yes" : "no", "--requirepass", "secret"}),
        options(plain.options()) {
    plain.start();
    options.port = port;
    options.tls.enabled = true;
    options.tls.ca_file = files.path("authority.pem");
  }

  const uint16_t port = free_port();
  RedisServer plain;
  RedisStoreOptions options;  // that work, but for a certificate that is wanted
};

std::string refusal(const RedisStoreOptions& options) {
  StoreWorld world;
  const auto opened = open_redis_store(world.runtime(), make_identity(), options);
  if (opened) return {};
  REQUIRE(opened.error().code == ErrorCode::kInvalidArgument);
  return opened.error().message;
}

/// What a store that opens says of a server that it does not reach.
std::string complaint(const RedisStoreOptions& options) {
  const CapturedLog log;
  StoreWorld world;
  const auto opened = open_redis_store(world.runtime(), make_identity(), options);
  REQUIRE(opened.has_value());
  return log.text();
}

}  // namespace

TEST_CASE("pages come back as put over TLS") {
  if (!can_encrypt()) SKIP_TEST(kCannot);
  const Certificates files;
  const TlsServer server(files, "server", false);
  StoreWorld world;
  for (const std::string host : {"127.0.0.1", "localhost"}) {
    auto options = server.options;
    options.host = host;
    const auto opened = open_redis_store(world.runtime(), make_identity(host), options);
    INFO((opened ? "" : opened.error().message));
    REQUIRE(opened.has_value());
    PageStore& store = **opened;
    REQUIRE(world.put_all(store, 0, 300) == 300);
    REQUIRE(world.get_all(store, 0, 400) == 300);
    REQUIRE(world.exists(store, 299));
    REQUIRE(store.stats().refused + store.stats().errors + store.stats().corrupt == 0);
  }
  REQUIRE(server.plain.ask({"DBSIZE"}).integer == 600);
  auto wrong = server.options;
  wrong.password = "wrong";
  REQUIRE_THAT(refusal(wrong), Catch::StartsWith("page store rediss://127.0.0.1:") &&
                                   Catch::Contains("the server refuses the password"));
}

TEST_CASE("large pages come back over TLS") {
  if (!can_encrypt()) SKIP_TEST(kCannot);
  const Certificates files;
  const TlsServer server(files, "server", false);
  StoreWorld world;
  StoreIdentity identity = make_identity();
  identity.page_bytes = (size_t{5} << 20) + 123;
  const auto store = open_redis_store(world.runtime(), identity, server.options).value();
  const auto round_trip = [](PageStore& where, size_t bytes) -> asio::awaitable<void> {
    const std::vector<std::byte> page = make_page(1, bytes);
    std::vector<std::byte> into(bytes);
    const bool stored = co_await where.put(make_key(1), page);
    REQUIRE(stored);
    const bool hit = co_await where.get(make_key(1), into);
    REQUIRE(hit);
    REQUIRE(std::equal(into.begin(), into.end(), page.begin(), page.end()));
  };
  for (int i = 0; i < 3; ++i) world.run(round_trip(*store, identity.page_bytes));
}

TEST_CASE("an unknown authority or a wrong name is refused if verified") {
  if (!can_encrypt()) SKIP_TEST(kCannot);
  const Certificates files;
  const TlsServer server(files, "server", false);
  auto options = server.options;
  options.tls.ca_file = files.path("stranger.pem");
  REQUIRE_THAT(refusal(options), Catch::Contains("the server's certificate is not accepted: ") &&
                                     Catch::Contains("certificate in certificate chain"));
  options.tls.ca_file.clear();
  REQUIRE_THAT(refusal(options), Catch::Contains("the server's certificate is not accepted: "));
  options.tls.verify = false;
  REQUIRE(refusal(options).empty());

  const TlsServer elsewhere(files, "elsewhere", false);
  options = elsewhere.options;
  REQUIRE_THAT(refusal(options), Catch::Contains("IP address mismatch"));
  options.host = "localhost";
  REQUIRE_THAT(refusal(options), Catch::Contains("ostname mismatch"));
  options.tls.verify = false;
  REQUIRE(refusal(options).empty());
}

TEST_CASE("a server that wants a certificate gets one") {
  if (!can_encrypt()) SKIP_TEST(kCannot);
  const Certificates files;
  const TlsServer server(files, "server", true);
  auto options = server.options;
  options.tls.certificate_file = files.path("client.pem");
  options.tls.key_file = files.path("client.key");
  StoreWorld world;
  const auto store = open_redis_store(world.runtime(), make_identity(), options).value();
  REQUIRE(world.put_all(*store, 0, 10) == 10);
  REQUIRE(world.get_all(*store, 0, 10) == 10);
  // Without one the server hangs up, and only sometimes can be heard saying why.
  const auto closed = open_redis_store(world.runtime(), make_identity(), server.options);
  if (!closed) REQUIRE_THAT(closed.error().message, Catch::Contains("the server refuses this client"));
  if (closed) REQUIRE_FALSE(world.put(**closed, 20));
}

TEST_CASE("a TLS mismatch between server and client is named") {
  if (!can_encrypt()) SKIP_TEST(kCannot);
  const Certificates files;
  const TlsServer server(files, "server", false);
  const ImpostorServer plain("-ERR what is that?\r\n");
  auto options = server.options;
  options.port = plain.port();
  REQUIRE_THAT(complaint(options), Catch::Contains("the server does not speak TLS"));
  options = server.options;
  options.tls = {};
  REQUIRE_THAT(complaint(options), Catch::Contains("every get misses"));
}

TEST_CASE("files of TLS that cannot be used are named") {
  if (!can_encrypt()) SKIP_TEST(kCannot);
  const Certificates files;
  const TlsServer server(files, "server", false);
  auto options = server.options;
  options.tls.ca_file = files.path("absent.pem");
  REQUIRE_THAT(refusal(options), Catch::Contains("the authorities in " + options.tls.ca_file));
  options = server.options;
  options.tls.certificate_file = files.path("client.pem");
  REQUIRE_THAT(refusal(options), Catch::Contains("only the certificate found"));
  options.tls.key_file = files.path("client.pem");
  REQUIRE_THAT(refusal(options), Catch::Contains("the key in " + options.tls.key_file));
  options.tls.key_file = files.path("stranger.key");
  REQUIRE_THAT(refusal(options), Catch::Contains("the key in " + options.tls.key_file));
  options.tls.certificate_file = files.path("log");
  REQUIRE_THAT(refusal(options), Catch::Contains("the certificate in " + options.tls.certificate_file));
  options = server.options;
  options.host = server.plain.socket_path();
  REQUIRE_THAT(refusal(options), Catch::Contains("TLS over the socket " + options.host));
}
