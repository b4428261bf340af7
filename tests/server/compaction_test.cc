#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "server/responses_server.h"
#include "server/schema_check.h"

using namespace millrace;
using namespace millrace::test;

TEST_CASE("A conversation is replaced by its summary") {
  const ResponsesServer server({.text = "<think>\nhm\n</think>\n\nThe \"door\" is open."});
  constexpr const char* kItems =
      R"({"role":"developer","content":"Be brief."},{"role":"user","content":"Open the door."},)"
      R"({"type":"function_call","call_id":"c","name":"look","arguments":"{}"},)"
      R"({"type":"function_call_output","call_id":"c","output":"a door"},{"role":"assistant","content":"Done."})";
  const auto input = [&](std::string_view more) {
    return fmt::format(R"("input":[{}{}],{})", kItems, more, kItemTools);
  };
  (void)server.ask(input(R"(,{"role":"user","content":"And now?"})"));
  const std::string before = server.prompt();
  const ParsedJson openapi(server.get("/openapi.json").body);

  const HttpReply reply = server.post("/v1/responses/compact", ResponsesServer::body(input("")));
  INFO(reply.body);
  REQUIRE(reply.status == 200);
  const ParsedJson object(reply.body);
  CHECK(matches(object.at(""), openapi.at("/components/schemas/CompactionObject"), openapi.at("")));
  REQUIRE(object.size("/output") == 2);
  CHECK(object.string("/output/0/content") == "Open the door.");
  CHECK(object.string("/output/1/type") == "compaction");
  CHECK(object.integer("/usage/output_tokens") > 0);
  // The prompt goes on from that of the conversation, with its tools, and a grammar keeps the model from calling them.
  const std::string asked = server.prompt();
  CHECK(asked.starts_with(before.substr(0, before.find("[user]And now?"))));
  CHECK_THAT(asked.substr(asked.rfind("[user]")), Catch::Contains("summary") || Catch::Contains("go on with the work"));
  CHECK(server.engine.seen().back().grammar != nullptr);

  // What the client goes on with.
  (void)server.ask(fmt::format(R"("input":[{},{},{{"role":"user","content":"Next."}}])",
                               simdjson::minify(object.at("/output/0")), simdjson::minify(object.at("/output/1"))));
  CHECK_THAT(server.prompt(), Catch::StartsWith("[user]Open the door.[user]") &&
                                  Catch::Contains("The \"door\" is open.[user]Next.") && !Catch::Contains("hm"));
  CHECK(server.get("/v1/responses/" + object.string("/id")).status == 404);
}

TEST_CASE("A summary stands for the answers and calls before it") {
  const ResponsesServer server({.text = "It is open."});
  const ParsedJson object(
      server.post("/v1/responses/compact", ResponsesServer::body(R"("input":"Open the door.")")).body);
  constexpr const char* kBefore =
      R"({"role":"developer","content":"Be brief."},{"role":"user","content":"Open the door."},)"
      R"({"type":"function_call","call_id":"c","name":"look","arguments":"{}"},)"
      R"({"type":"function_call_output","call_id":"c","output":"a door"},{"role":"assistant","content":"Done."})";
  (void)server.ask(
      fmt::format(R"("input":[{},{},{{"role":"assistant","content":"Yes."}},{{"role":"user","content":"Next."}}])",
                  kBefore, simdjson::minify(object.at("/output/1"))));
  CHECK_THAT(server.prompt(), Catch::Contains("Be brief.") && Catch::Contains("[user]Open the door.[user]") &&
                                  Catch::Contains("It is open.") && Catch::Contains("Yes.") &&
                                  !Catch::Contains("Done.") && !Catch::Contains("a door"));
}

TEST_CASE("A trigger in the input asks for a summary") {
  const ResponsesServer server({.text = "It is open."});
  const std::string input =
      fmt::format(R"("input":[{{"role":"user","content":"x"}},{{"type":"compaction_trigger"}}],{})", kItemTools);
  const auto events = server.stream(input + R"(,"tool_choice":"required")");
  check_stream(events);
  CHECK(types_of(events) ==
        std::vector<std::string>{"created", "in_progress", "output_item.added", "output_item.done", "completed"});
  const ParsedJson last(events.back());
  const ParsedJson openapi(server.get("/openapi.json").body);
  CHECK(matches(last.at(""), openapi.at("/components/schemas/ResponseEvent"), openapi.at("")));
  REQUIRE(last.size("/response/output") == 1);
  // An image that the summary covers is no question.
  constexpr const char* kImage = R"({"role":"user","content":[{"type":"input_image","image_url":"data:"}]})";
  const std::string item = simdjson::minify(last.at("/response/output/0"));
  const auto follow = [&](std::string_view compaction) {
    const HttpReply reply =
        server.respond(fmt::format(R"("input":[{},{},{{"role":"user","content":"Next."}}])", kImage, compaction));
    return reply.status;
  };
  CHECK(follow(item) == 200);
  CHECK_THAT(server.prompt(), Catch::Contains("It is open.[user]Next."));
  // The next request with this response before it is an ordinary one.
  const auto next =
      server.ask(fmt::format(R"("input":"Go on.","previous_response_id":"{}")", last.string("/response/id")));
  CHECK(next.string("/output/0/type") == "message");
  for (const char* sealed : {"gAAAAAB", "millrace1.?", "millrace"}) {
    CHECK(follow(fmt::format(R"({{"type":"compaction","encrypted_content":"{}"}})", sealed)) == 400);
  }
}

TEST_CASE("A stored summary stands for the answers before it") {
  const ResponsesServer server({.text = "It is open."});
  const ParsedJson summary =
      server.ask(R"("input":[{"role":"user","content":"Open it."},{"role":"assistant","content":"Done."},)"
                 R"({"type":"compaction_trigger"}])");
  REQUIRE(summary.string("/output/0/type") == "compaction");
  // Also for the response after the next one, whose input the store has whole.
  std::string id(summary.string("/id"));
  for (const char* question : {"Go on.", "And then?"}) {
    const ParsedJson next = server.ask(fmt::format(R"("input":"{}","previous_response_id":"{}")", question, id));
    id = next.string("/id");
    CHECK(next.string("/output/0/type") == "message");
    CHECK_THAT(server.prompt(), Catch::Contains("[user]Open it.") && Catch::Contains("It is open.") &&
                                    Catch::Contains(fmt::format("[user]{}[assistant]", question)) &&
                                    !Catch::Contains("Done."));
  }
}
