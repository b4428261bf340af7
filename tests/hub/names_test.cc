#include <catch2/catch.hpp>
#include <map>

#include "hub/hub_client.h"
#include "hub/proxy.h"
#include "hub/repo_ref.h"
#include "hub/settings.h"
#include "hub/url.h"

namespace millrace::hub {
namespace {

Environment environment(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

TEST_CASE("A URL is taken apart and put together again") {
  for (const char* text : {"https://huggingface.co/a/b?c=d%20e", "http://127.0.0.1:8080/", "https://[::1]:99/x",
                           "https://h.example/%2F..%2F"}) {
    CAPTURE(text);
    CHECK(parse_url(text).value().to_string() == text);
  }
  const Url url = parse_url("https://huggingface.co").value();
  CHECK(url.to_string() == "https://huggingface.co/");
  CHECK(url.port == 443);
  CHECK(parse_url("http://[fe80::1]/x").value().host == "fe80::1");
}

TEST_CASE("What is no http URL is refused and quoted") {
  for (const char* text : {"", "huggingface.co", "ftp://host/", "https://", "https://host:0/", "https://host:99999/",
                           "https://a b/", "/path"}) {
    CAPTURE(text);
    const auto url = parse_url(text);
    REQUIRE(url.has_error());
    CHECK(url.error().code == ErrorCode::kInvalidArgument);
  }
}

TEST_CASE("A Location is resolved against its sender") {
  const Url base = parse_url("https://hub.example/a/b?x=1").value();
  CHECK(resolve_location(base, "/c?d=e").value().to_string() == "https://hub.example/c?d=e");
  CHECK(resolve_location(base, "c").value().to_string() == "https://hub.example/a/c");
  CHECK(resolve_location(base, "//cdn.example/z").value().to_string() == "https://cdn.example/z");
  CHECK(resolve_location(base, "http://other:81/y").value().to_string() == "http://other:81/y");
  // Signed URLs of storage servers keep what is encoded, and get encoded what is not.
  const auto signed_url = resolve_location(base, R"(https://cdn.example/o?name="a b|c"&Signature=x~y%2Fz%20)");
  CHECK(signed_url.value().target == "/o?name=%22a%20b%7Cc%22&Signature=x~y%2Fz%20");
  CHECK(resolve_location(base, "/\xC3\xA4 b").value().target == "/%C3%A4%20b");
  CHECK(resolve_location(base, "http://[::1]:81/[x]").value().to_string() == "http://[::1]:81/%5Bx%5D");
  CHECK(resolve_location(base, R"(/o?name="a b"&next=https://cdn/x)").value().to_string() ==
        "https://hub.example/o?name=%22a%20b%22&next=https://cdn/x");
  for (const char* text : {"https://evil%0d%0aX:%20y/", "https://a%00.b/", "https://a%40b/"}) {
    CAPTURE(text);
    CHECK(resolve_location(base, text).error().code == ErrorCode::kData);
    CHECK(parse_url(text).error().code == ErrorCode::kInvalidArgument);
  }
  CHECK(resolve_location(base, "ftp://other/").error().code == ErrorCode::kData);
  CHECK(resolve_location(base, "http://a b/").error().code == ErrorCode::kData);
}

TEST_CASE("Percent encoding keeps what paths may hold") {
  CHECK(percent_encode("a b/c+d~", true) == "a%20b/c%2Bd~");
  CHECK(percent_encode("refs/pr/1", false) == "refs%2Fpr%2F1");
  CHECK(percent_encode("\xC3\xA4", true) == "%C3%A4");
}

TEST_CASE("A repository and its revision are parsed") {
  const RepoRef plain = parse_repo("Qwen/Qwen3-0.6B").value();
  CHECK(plain.id == "Qwen/Qwen3-0.6B");
  CHECK(plain.revision == "main");
  CHECK(parse_repo("gpt2").value().id == "gpt2");
  CHECK(parse_repo("a/b:refs/pr/1").value().revision == "refs/pr/1");
  CHECK(parse_repo("a/b:v1.0").value().to_string() == "a/b:v1.0");
  CHECK(is_commit("0123456789abcdef0123456789abcdef01234567"));
  CHECK_FALSE(is_commit("0123456789ABCDEF0123456789abcdef01234567"));
  CHECK_FALSE(is_commit("main"));
}

TEST_CASE("A repository and its GGUF model are parsed") {
  const RepoRef typed = parse_repo("a/b-GGUF:q4_k_m").value();
  CHECK(typed.id == "a/b-GGUF");
  CHECK(typed.gguf == "q4_k_m");
  CHECK(typed.revision == "main");
  const RepoRef both = parse_repo("a/b:Q8_0", "v1.0").value();
  CHECK(both.gguf == "Q8_0");
  CHECK(both.revision == "v1.0");
  CHECK(parse_repo("a/b:x/m-00001-of-00002.gguf").value().gguf == "x/m-00001-of-00002.gguf");
  // A branch of such a name is named by the flag.
  const RepoRef branch = parse_repo("a/b", "Q8_0").value();
  CHECK(branch.revision == "Q8_0");
  CHECK(branch.gguf.empty());
  CHECK(parse_repo("a/b:v1.0").value().gguf.empty());
  CHECK(parse_repo("a/b:v1.0", "v2").error().code == ErrorCode::kInvalidArgument);
  CHECK(parse_repo("a/b:Q8_0", "../x").error().code == ErrorCode::kInvalidArgument);
}

TEST_CASE("A name that would leave the cache is no repository") {
  for (const char* text : {"", "/", "a/", "/b", "a/b/c", "..", "a/..", "../b", "a--b/c", ".a/b", "a/b.", "a b/c",
                           "a/b:", "a/b:../x", "a/b:x/../y", "a/b:/x", "a/b:x/", "a/b:x//y", "a/b:.git"}) {
    CAPTURE(text);
    const auto repo = parse_repo(text);
    REQUIRE(repo.has_error());
    CHECK(repo.error().code == ErrorCode::kInvalidArgument);
  }
  const std::string longest(96, 'a');
  CHECK(parse_repo(longest + '/' + longest).has_value());
  CHECK(parse_repo(longest + "a/b").has_error());
  CHECK(parse_repo("a/b" + longest).has_error());
}

TEST_CASE("Settings follow the variables of the Python library") {
  const HubSettings plain = hub_settings(environment({{"HOME", "/home/u"}})).value();
  CHECK(plain.endpoint.to_string() == "https://huggingface.co");
  CHECK(plain.cache == "/home/u/.cache/huggingface/hub");
  CHECK(plain.token.empty());
  CHECK_FALSE(plain.is_offline);
  const HubSettings xdg = hub_settings(environment({{"HOME", "/home/u"}, {"XDG_CACHE_HOME", "/c"}})).value();
  CHECK(xdg.cache == "/c/huggingface/hub");
  CHECK(xdg.partial == "/c/millrace/partial");
  const HubSettings home = hub_settings(environment({{"HOME", "/home/u"}, {"HF_HOME", "~/hf"}})).value();
  CHECK(home.cache == "/home/u/hf/hub");
  const HubSettings variables =
      hub_settings(environment({{"HOME", "/home/u"}, {"SCRATCH", "/s"}, {"HF_HOME", "${SCRATCH}/$UNSET/hf"}})).value();
  CHECK(variables.cache == "/s/$UNSET/hf/hub");
  CHECK_FALSE(hub_settings(environment({{"HF_HUB_OFFLINE", "0"}, {"TRANSFORMERS_OFFLINE", "1"}})).value().is_offline);
  const HubSettings all = hub_settings(environment({{"HF_HUB_CACHE", "/k"},
                                                    {"HF_HOME", "/h"},
                                                    {"HF_ENDPOINT", "http://mirror:8080/hf/"},
                                                    {"HF_TOKEN", " t \n"},
                                                    {"HF_HUB_OFFLINE", "Yes"},
                                                    {"HF_HUB_DOWNLOAD_TIMEOUT", "2.5"}}))
                              .value();
  CHECK(all.cache == "/k");
  CHECK(all.endpoint.target == "/hf");
  CHECK(all.token == "t");
  CHECK(all.is_offline);
  CHECK(all.timeout == std::chrono::milliseconds(2500));
  CHECK(hub_settings(environment({{"HF_TOKEN", "t"}, {"HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"}})).value().token.empty());
}

std::string proxy_of(const ProxySettings& settings, const char* url) {
  const Proxy* proxy = settings.find(parse_url(url).value()).value();
  return proxy == nullptr ? "none" : proxy->to_string();
}

TEST_CASE("Proxies follow the variables that curl reads") {
  const auto settings = proxy_settings(environment({{"HTTPS_PROXY", "http://u:p%40ss@secure.example:3128/"},
                                                    {"http_proxy", " http://@plain.example:8080\n"},
                                                    {"HTTP_PROXY", "http://other.example"},
                                                    {"no_proxy", ".corp.example,*.lan 10.0.0.1:81"}}));
  CHECK(proxy_of(settings, "https://huggingface.co/x") == "secure.example:3128");
  CHECK(proxy_of(settings, "http://mirror.example/x") == "plain.example:8080");
  CHECK(settings.for_https->value().authorization == "Basic dTpwQHNz");
  CHECK(settings.for_http->value().authorization.empty());
  for (const char* url :
       {"http://localhost:8080/", "https://a.localhost/", "http://127.1.2.3/", "http://[::1]:8/",
        "https://hub.corp.example/", "https://corp.example/", "https://a.lan/", "http://10.0.0.1:81/"}) {
    CAPTURE(url);
    CHECK(proxy_of(settings, url) == "none");
  }
  CHECK(proxy_of(settings, "http://10.0.0.1:82/") == "plain.example:8080");
  CHECK(proxy_of(settings, "http://notcorp.example/") == "plain.example:8080");
  const auto both = proxy_settings(environment({{"all_proxy", "http://[::1]:9"}, {"NO_PROXY", ""}}));
  CHECK(proxy_of(both, "http://a/") == "[::1]:9");
  CHECK(proxy_of(both, "https://a/") == proxy_of(both, "http://a/"));
  CHECK(proxy_of(proxy_settings(environment({{"all_proxy", "a:1"}, {"no_proxy", "*"}})), "http://b/") == "none");
}

TEST_CASE("A wrong proxy is named without its password") {
  for (const char* text :
       {"socks5://u:secret@host:1", "https://u:secret@host:1", "http://u:secret@host:99999", "http://u:secret@a b",
        "http://u:1/secret@host", "http://u:1?secret@host", "http://u:1#secret@host", "http://u@host/secret"}) {
    CAPTURE(text);
    const HubSettings settings = hub_settings(environment({{"https_proxy", text}})).value();
    CHECK(proxy_of(settings.proxies, "http://a/") == "none");
    CHECK(proxy_of(settings.proxies, "https://localhost/") == "none");
    const auto proxy = settings.proxies.find(parse_url("https://a/").value());
    REQUIRE(proxy.has_error());
    CHECK(proxy.error().code == ErrorCode::kInvalidArgument);
    CHECK(proxy.error().message.starts_with("https_proxy"));
    CHECK(proxy.error().message.find("secret") == std::string::npos);
  }
  const HubSettings none = hub_settings(environment({{"all_proxy", "socks5://host:1"}, {"no_proxy", "*"}})).value();
  CHECK(proxy_of(none.proxies, "https://a/") == "none");
}

TEST_CASE("A hub asks for the longest wait that counts") {
  struct Case {
    const char* limit;
    const char* retry_after;
    int seconds;  // -1: none
  };
  for (const auto& [limit, after, seconds] : {
           Case{R"("api";r=100;t=200, "resolvers";r=0;t=55)", "", 55},
           Case{R"("api";t=55;r=0)", "", 55},
           Case{R"("api"; r=0; t=55)", "30", 55},
           Case{R"("api";r=0;t=5)", "30", 30},
           Case{R"("api";r=0;t=x)", "30", 30},
           Case{R"("api";r=9;t=55)", "", -1},
           Case{"", "99999999999", 600},
           Case{"", "99999999999999999999999", 600},
           Case{"", "Wed, 21 Oct 2026 07:28:00 GMT", -1},
           Case{"", "-3", -1},
           Case{"", "", -1},
       }) {
    CAPTURE(limit, after);
    HttpHead head;
    head.status = 429;
    if (*limit != '\0') head.fields.set("RateLimit", limit);
    if (*after != '\0') head.fields.set("Retry-After", after);
    const auto wait = retry_after(head);
    CHECK((wait ? wait->count() : -1) == seconds);
  }
}

TEST_CASE("A tunnel is asked for by host and port") {
  const Proxy proxy{.host = "p", .port = 1, .authorization = "Basic eA=="};
  CHECK(tunnel_request(proxy, parse_url("https://hub.example/x").value()) ==
        "CONNECT hub.example:443 HTTP/1.1\r\nHost: hub.example:443\r\nProxy-Authorization: Basic eA==\r\n\r\n");
  CHECK(tunnel_request(Proxy{}, parse_url("https://[::1]:8/").value()).starts_with("CONNECT [::1]:8 HTTP/1.1\r\n"));
  CHECK(status_of("HTTP/1.1 200 Connection established\r\n\r\n") == 200);
  CHECK(status_of("HTTP/1.0 407\r\n") == 407);
  CHECK(status_of("SSH-2.0 200") == 0);
  CHECK(status_of("") == 0);
}

TEST_CASE("A wrong variable is named") {
  CHECK(hub_settings(environment({{"HF_ENDPOINT", "mirror"}})).error().message.starts_with("HF_ENDPOINT"));
  for (const char* text : {"soon", "0", "-1", "nan", "1e9", "3x"}) {
    CAPTURE(text);
    const auto settings = hub_settings(environment({{"HF_HUB_DOWNLOAD_TIMEOUT", text}}));
    REQUIRE(settings.has_error());
    CHECK(settings.error().message.starts_with("HF_HUB_DOWNLOAD_TIMEOUT"));
  }
}

}  // namespace
}  // namespace millrace::hub
