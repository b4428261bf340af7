#include "server/messages/attribution.h"

#include <array>
#include <catch2/catch.hpp>

using millrace::server::messages::remove_attribution;

namespace {

std::string without_attribution(std::string text) {
  remove_attribution(text);
  return text;
}

}  // namespace

TEST_CASE("An attribution is removed however it is glued") {
  struct Case {
    const char* text;
    const char* expected;
  };
  constexpr std::array kCases = {
      Case{"x-anthropic-billing-header: cc_version=2.1.332.1c9; cc_entrypoint=cli;", ""},
      Case{"x-anthropic-billing-header: cc_version=2.1.36; cc_entrypoint=cli; cch=0a1b2;", ""},
      Case{"x-anthropic-billing-header: cc_version=2.1.36; cch=0a1b2", ""},
      Case{"x-anthropic-billing-header:a=b;c=;", ""},
      Case{"x-anthropic-billing-header: cch=0a1b2;\n\nYou are careful.", "You are careful."},
      Case{"x-anthropic-billing-header: cch=0a1b2; You are careful.", "You are careful."},
      Case{"x-anthropic-billing-header: cch=0a1b2;You are careful.", "You are careful."},
      Case{"Before.\nx-anthropic-billing-header: cch=0a1b2;\nAfter.", "Before.\nAfter."},
      Case{"Before. x-anthropic-billing-header: cch=0a1b2; After.", "Before.  After."},
      Case{"x-anthropic-billing-header: a=1;\nx-anthropic-billing-header: b=2;\nAfter.", "After."},
      // Prose about it stays, as does what is no pair.
      Case{"The x-anthropic-billing-header: it changes.", "The x-anthropic-billing-header: it changes."},
      Case{"x-anthropic-billing-header: ", "x-anthropic-billing-header: "},
      Case{"x-anthropic-billing-header: a = b;", "x-anthropic-billing-header: a = b;"},
      Case{"x-anthropic-billing-header: a=b You", "x-anthropic-billing-header: a=b You"},
      Case{"You are careful.", "You are careful."},
      Case{"", ""},
  };
  for (const Case& each : kCases) {
    CAPTURE(each.text);
    CHECK(without_attribution(each.text) == each.expected);
  }
}
