#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>

#include "text/chat_template/rendered.h"

using namespace millrace;
using namespace millrace::text;

namespace {

constexpr std::string_view kShowsParts =
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endif %}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name }}{% endfor %}{% endfor %}";
constexpr std::string_view kPrintsContent =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
    "{% endfor %}{% endfor %}";
constexpr std::string_view kShowsPartsOfUsers =
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'user' and m.content is not string %}"
    "{% for part in m.content %}[{{ part.text }}]{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}";
/// Fails at two messages of the user in a row.
constexpr std::string_view kShowsPartsOfTurns =
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% "
    "endif "
    "%}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}[{{ part.text }}]"
    "{% endfor %}{% endif %}{% endfor %}";

constexpr std::string_view kParts = R"([{"type":"text","text":"a"},{"type":"text","text":"b"}])";

std::string message_of(std::string_view role, std::string_view content) {
  return fmt::format(R"({{"role":"{}","content":{}}})", role, content);
}

}  // namespace

TEST_CASE("Text parts stay apart where the template shows them") {
  const std::string chat = fmt::format("[{},{},{},{}]", message_of("system", kParts), message_of("user", kParts),
                                       message_of("assistant", kParts), message_of("user", R"("c")"));
  CHECK(rendered(kShowsParts, chat) == "<system>[a][b]<user>[a][b]<assistant>[a][b]<user>c");
  CHECK(rendered(kPrintsContent, chat) == "<system>a\nb<user>a\nb<assistant>a\nb<user>c");
  CHECK(rendered(kShowsPartsOfUsers, chat) == "<system>a\nb<user>[a][b]<assistant>a\nb<user>c");
}

TEST_CASE("Text parts of results stay apart where they are shown") {
  const std::string chat = fmt::format(
      R"([{{"role":"user","content":"q"}},{{"role":"assistant","content":"","tool_calls":[{{"id":"call12345",)"
      R"("type":"function","function":{{"name":"f","arguments":"{{}}"}}}}]}},)"
      R"({{"role":"tool","tool_call_id":"call12345","content":{}}}])",
      kParts);
  CHECK(rendered(kShowsParts, chat) == "<user>q<assistant>f<tool>[a][b]");
  CHECK(rendered(kPrintsContent, chat) == "<user>q<assistant>f<tool>a\nb");
}

TEST_CASE("Text parts of messages that are joined become a text") {
  const std::string chat = fmt::format("[{},{}]", message_of("user", kParts), message_of("user", R"("c")"));
  CHECK(rendered(kShowsPartsOfTurns, chat) == "<user>a\nb\n\nc");
  const std::string apart = fmt::format("[{},{},{}]", message_of("user", kParts), message_of("assistant", R"("c")"),
                                        message_of("user", kParts));
  CHECK(rendered(kShowsPartsOfTurns, apart) == "<user>[a][b]<assistant>c<user>[a][b]");
}

TEST_CASE("A final message of parts is continued at its last one") {
  const std::string chat = fmt::format("[{},{}]", message_of("user", R"("q")"), message_of("assistant", kParts));
  ChatInput input;
  input.messages_json = chat;
  input.continue_final_message = true;
  const auto text_of = [&](std::string_view source) {
    const auto made = ChatTemplate::from_source(source);
    REQUIRE(made.has_value());
    return (*made)->render(input).value();
  };
  CHECK(text_of(kShowsParts) == "<user>q<assistant>[a][b");
  CHECK(text_of(kPrintsContent) == "<user>q<assistant>a\nb");
}
