#include "text/chat_template/chat_template.h"

#include "base/check.h"
#include "base/utf8.h"
#include "fuzz/targets.h"

namespace millrace::fuzz {

void chat_template(std::string_view input) {
  const size_t split = std::min(input.find('\0'), input.size());
  const std::string_view source = input.substr(0, split);
  const std::string_view messages = split < input.size() ? input.substr(split + 1)
                                                         : R"([{"role":"user","content":"Hi <b>"},)"
                                                           R"({"role":"assistant","content":"Yes"}])";
  const auto compiled = text::ChatTemplate::from_source(source);
  if (compiled.has_error()) {
    CHECK(!compiled.error().message.empty());
    return;
  }
  for (const bool generates : {true, false}) {
    text::ChatInput chat;
    chat.messages_json = messages;
    chat.kwargs_json = R"({"flag":true,"count":3,"list":[1,2.5,"x",null]})";
    chat.add_generation_prompt = generates;
    chat.continue_final_message = !generates;
    chat.now.tm_year = 126;
    chat.now.tm_mday = 1;
    const auto rendered = (*compiled)->render(chat);
    if (rendered.has_error()) {
      CHECK(rendered.error().code == ErrorCode::kInvalidArgument && !rendered.error().message.empty());
      continue;
    }
    CHECK(is_valid_utf8(source) == false || is_valid_utf8(*rendered));
  }
}

}  // namespace millrace::fuzz
