#include "server/openai/media.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "server/openai/request.h"

using namespace millrace::server::openai;

TEST_CASE("Images of tools and of earlier messages become notes") {
  const std::string text = R"({"type":"text","text":"a"})";
  const std::string call = R"({"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"}}]})";
  const auto contents = [&](const std::string& messages) {
    const auto parsed = parse_chat_request(fmt::format(R"({{"messages":[{}]}})", messages), {.vocab_size = 1000});
    std::string out;
    if (parsed.has_error()) return parsed.error().param;
    for (const ChatMessage& message : parsed->conversation.messages) out += message.content + '|';
    return out;
  };
  for (const auto& [type, word] : {std::pair{"image_url", "image"},
                                   {"image", "image"},
                                   {"input_audio", "audio"},
                                   {"video_url", "video"},
                                   {"file", "file"}}) {
    const std::string part = fmt::format(R"({{"type":"{}","{}":{{}}}})", type, type);
    const std::string note = fmt::format("[{} left out: this model reads text only]", word);
    INFO(type);
    CHECK(contents(fmt::format(R"({},{{"role":"tool","tool_call_id":"c","content":[{},{}]}})", call, text, part)) ==
          fmt::format("|a\n{}|", note));
    const std::string asked = fmt::format(R"({{"role":"user","content":[{}]}})", part);
    // Clients whose API has no images in results send them in a message after the result.
    CHECK(contents(fmt::format(R"({},{{"role":"tool","content":"b"}},{})", call, asked)) ==
          fmt::format("|b|{}|", note));
    CHECK(contents(asked + R"(,{"role":"assistant","content":"b"},{"role":"user","content":"c"})") == note + "|b|c|");
    CHECK(contents(asked) == "messages[0].content");
    CHECK(contents(R"({"role":"assistant","content":"b"},)" + asked + R"(,{"role":"system","content":"s"})") ==
          "messages[1].content");
    for (const char* role : {"system", "assistant"}) {
      CHECK(contents(fmt::format(R"({{"role":"{}","content":[{}]}},{{"role":"user","content":"c"}})", role, part)) ==
            "messages[0].content");
    }
  }
}
