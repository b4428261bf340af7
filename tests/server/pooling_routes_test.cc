#include <fmt/format.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "server/eventually.h"
#include "server/openai/pooling_request.h"
#include "server/pooling_model.h"
#include "server/test_server.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::test;

namespace {

/// A model whose vectors are the fake engine's: length, first token, last token.
std::shared_ptr<server::PoolingModel> plain_model() {
  auto model = std::make_shared<server::PoolingModel>();
  model->normalizes = false;
  return model;
}

/// A model that scores a pair by the length of its prompt.
std::shared_ptr<server::PoolingModel> length_scorer() {
  auto model = plain_model();
  model->scores = true;
  model->score_activation = server::Activation::kIdentity;
  model->layers = {{.weights = {1, 0, 0}, .bias = {}}};
  return model;
}

void check_refusal(const HttpReply& reply, std::string_view param, const Mentions& mentions) {
  INFO(reply.body);
  REQUIRE(reply.status == 400);
  const ParsedJson error(reply.body);
  CHECK(error.string("/error/param") == param);
  CHECK_THAT(error.string("/error/message"), mentions);
}

}  // namespace

TEST_CASE("Texts and token ids become vectors in their order") {
  TestServer server({}, plain_model());
  const HttpReply reply = server.post("/v1/embeddings", R"({"model":"fake","input":["abc","z"],"user":"u"})");
  REQUIRE(reply.status == 200);
  const ParsedJson json(reply.body);
  CHECK(json.string("/object") == "list");
  CHECK(json.string("/model") == "fake");
  CHECK(json.size("/data") == 2);
  CHECK(json.string("/data/1/object") == "embedding");
  CHECK(json.integer("/data/1/index") == 1);
  CHECK(json.size("/data/0/embedding") == 3);
  CHECK(json.number("/data/0/embedding/0") == 3);
  CHECK(json.number("/data/0/embedding/1") == 'a');
  CHECK(json.number("/data/1/embedding/2") == 'z');
  CHECK(json.integer("/usage/prompt_tokens") == 4);
  CHECK(json.integer("/usage/total_tokens") == 4);
  CHECK(ParsedJson(server.post("/v1/embeddings", R"({"input":"ab"})").body).number("/data/0/embedding/0") == 2);
  CHECK(ParsedJson(server.post("/v1/embeddings", R"({"input":[5,6,7]})").body).number("/data/0/embedding/2") == 7);
  const ParsedJson lists(server.post("/v1/embeddings", R"({"input":[[5],[6,8]]})").body);
  CHECK(lists.number("/data/1/embedding/2") == 8);
  for (const sched::GenerateRequest& request : server.engine.seen()) {
    CHECK(request.pooling == sched::Pooling::kLast);
    CHECK(request.max_tokens == 0);
  }
}

TEST_CASE("Vectors come in base64 of little-endian f32") {
  TestServer server({}, plain_model());
  const HttpReply reply = server.post("/v1/embeddings", R"({"input":"ab","encoding_format":"base64"})");
  // 2.0, 97.0, 98.0
  CHECK(ParsedJson(reply.body).string("/data/0/embedding") == "AAAAQAAAwkIAAMRC");
}

TEST_CASE("Vectors are cut and normalized as the model allows") {
  const auto model = plain_model();
  model->normalizes = true;
  SECTION("not at all") {
    TestServer server({}, model);
    check_refusal(server.post("/v1/embeddings", R"({"input":"a","dimensions":2})"), "dimensions",
                  Mentions("is_matryoshka", "3", "--is-matryoshka"));
  }
  SECTION("to any length") {
    model->allows_dimensions = true;
    TestServer server({}, model);
    const ParsedJson cut(server.post("/v1/embeddings", R"({"input":[[3,0,0],[4,4]],"dimensions":2})").body);
    CHECK(cut.size("/data/0/embedding") == 2);
    CHECK(cut.number("/data/0/embedding/0") == Approx(3 / std::sqrt(18.0)));
    check_refusal(server.post("/v1/embeddings", R"({"input":"a","dimensions":4})"), "dimensions", Mentions("4", "3"));
  }
  SECTION("to some lengths") {
    model->allows_dimensions = true;
    model->dimensions = {1, 3};
    TestServer server({}, model);
    CHECK(server.post("/v1/embeddings", R"({"input":"a","dimensions":1})").status == 200);
    check_refusal(server.post("/v1/embeddings", R"({"input":"a","dimensions":2})"), "dimensions",
                  Mentions("2", "1, 3"));
  }
}

TEST_CASE("Bad embedding requests are refused with their field") {
  TestServer server({}, plain_model());
  const auto refusal = [&](std::string_view body, std::string_view param, const Mentions& mentions) {
    INFO(body);
    check_refusal(server.post("/v1/embeddings", body), param, mentions);
  };
  refusal("{}", "input", Mentions("missing"));
  refusal(R"({"input":[]})", "input", Mentions("empty array"));
  refusal(R"({"input":5})", "input", Mentions("5", "a string"));
  refusal(R"({"input":["a",[1]]})", "input", Mentions("array"));
  refusal(R"({"input":""})", "input", Mentions("no tokens"));
  refusal(R"({"input":["a",""]})", "input", Mentions("input[1]", "no tokens"));
  refusal(R"({"input":[[1],[]]})", "input", Mentions("input[1]", "no tokens"));
  refusal(R"({"input":[999999]})", "input", Mentions("999999", "258"));
  refusal(R"({"input":[-1]})", "input", Mentions("-1", "258"));
  refusal(R"({"input":"a","encoding_format":"bytes"})", "encoding_format", Mentions("bytes", "float", "base64"));
  refusal(R"({"input":"a","dimensions":0})", "dimensions", Mentions("0", "1"));
  refusal(R"({"input":"a","normalize":true})", "normalize", Mentions("use_activation"));
  refusal(R"({"input":"a","encoding_format":"base64","embed_dtype":"float16"})", "embed_dtype",
          Mentions("float16", "float32"));
  refusal(R"({"input":"a","encoding_format":"base64","endianness":"big"})", "endianness", Mentions("big", "little"));
  refusal(R"({"input":"a","use_activation":1})", "use_activation", Mentions("1"));
  refusal(fmt::format(R"({{"input":"{}"}})", std::string(FakeEngine::kContext + 1, 'x')), "input",
          Mentions("512", "513"));
  CHECK(server.post("/v1/embeddings", fmt::format(R"({{"input":"{}"}})", std::string(FakeEngine::kContext, 'x')))
            .status == 200);
  const HttpReply unknown = server.post("/v1/embeddings", R"({"model":"other","input":"a"})");
  CHECK(unknown.status == 404);
  CHECK(ParsedJson(unknown.body).string("/error/param") == "model");
  std::string many = R"({"input":["a")";
  for (size_t i = 0; i < server::openai::kMaxPoolingInputs; ++i) many += R"(,"a")";
  refusal(many + "]}", "input", Mentions("2049", "2048"));
}

TEST_CASE("A prompt is cut where truncate_prompt_tokens says") {
  TestServer server({}, plain_model());
  const auto ends = [&](std::string_view members) {
    const HttpReply reply = server.post("/v1/embeddings", fmt::format(R"({{"input":"abcdef",{}}})", members));
    const ParsedJson json(reply.body);
    return std::string{static_cast<char>(json.number("/data/0/embedding/1")),
                       static_cast<char>(json.number("/data/0/embedding/2"))};
  };
  CHECK(ends(R"("truncate_prompt_tokens":2)") == "ab");
  CHECK(ends(R"("truncate_prompt_tokens":2,"truncation_side":"left")") == "ef");
  CHECK(ends(R"("truncate_prompt_tokens":-1)") == "af");
  const std::string longer(FakeEngine::kContext + 5, 'x');
  const HttpReply cut =
      server.post("/v1/embeddings", fmt::format(R"({{"input":"{}","truncate_prompt_tokens":-1}})", longer));
  CHECK(ParsedJson(cut.body).integer("/usage/prompt_tokens") == FakeEngine::kContext);
}

TEST_CASE("Thousands of inputs are at the engine a part at a time") {
  TestServer server({}, plain_model());
  std::atomic<int> most{0};
  server.engine.on_submit = [&](const sched::GenerateRequest&) {
    most = std::max(most.load(), server.engine.live.load() + 1);
    return ScriptedReply{};
  };
  std::string body = R"({"input":["a")";
  for (int i = 1; i < 2048; ++i) body += fmt::format(R"(,"{}")", std::string(static_cast<size_t>(i % 37 + 1), 'b'));
  const HttpReply reply = server.post("/v1/embeddings", body + "]}");
  REQUIRE(reply.status == 200);
  const ParsedJson json(reply.body);
  REQUIRE(json.size("/data") == 2048);
  for (const int i : {1, 700, 2047}) {
    CHECK(json.integer(fmt::format("/data/{}/index", i)) == i);
    CHECK(json.number(fmt::format("/data/{}/embedding/0", i)) == i % 37 + 1);
  }
  CHECK(most <= 256);
  CHECK(most > 100);
  CHECK(server.engine.wait_until_idle());
}

TEST_CASE("Vectors that are there at once are not waited for") {
  TestServer server({}, plain_model());
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.is_instant = true}; };
  CHECK(server.post("/v1/embeddings", R"({"input":"a"})").status == 200);
  std::string many = R"({"input":["a")";
  for (int i = 1; i < 600; ++i) many += R"(,"bb")";
  CHECK(ParsedJson(server.post("/v1/embeddings", many + "]}").body).size("/data") == 600);
}

TEST_CASE("Documents come in the order of their scores") {
  TestServer server({}, length_scorer());
  for (const char* path : {"/rerank", "/v1/rerank", "/v2/rerank"}) {
    const HttpReply reply =
        server.post(path, R"({"model":"fake","query":"qq","documents":["a","ccc",{"text":"bb"},"ddd"],"top_n":3})");
    REQUIRE(reply.status == 200);
    const ParsedJson json(reply.body);
    CHECK(json.string("/id").starts_with("rerank-"));
    REQUIRE(json.size("/results") == 3);
    CHECK(json.integer("/results/0/index") == 1);
    CHECK(json.integer("/results/1/index") == 3);  // of equal scores the earlier one first
    CHECK(json.integer("/results/2/index") == 2);
    CHECK(json.number("/results/0/relevance_score") == 5);
    CHECK(json.string("/results/2/document/text") == "bb");
    CHECK(json.integer("/usage/prompt_tokens") == 17);
  }
  const HttpReply bare =
      server.post("/rerank", R"({"query":"q","documents":["a","b"],"top_n":0,"return_documents":false})");
  CHECK(ParsedJson(bare.body).size("/results") == 2);
  CHECK_FALSE(ParsedJson(bare.body).has("/results/0/document"));
}

TEST_CASE("Pairs of texts are scored in every spelling") {
  TestServer server({}, length_scorer());
  for (const char* body : {R"({"text_1":"q","text_2":["a","bb"]})", R"({"queries":"q","documents":["a","bb"]})",
                           R"({"queries":["q"],"items":["a","bb"]})", R"({"data_1":["q","q"],"data_2":["a","bb"]})"}) {
    INFO(body);
    for (const char* path : {"/score", "/v1/score"}) {
      const HttpReply reply = server.post(path, body);
      REQUIRE(reply.status == 200);
      const ParsedJson json(reply.body);
      CHECK(json.string("/object") == "list");
      CHECK(json.string("/data/1/object") == "score");
      CHECK(json.number("/data/0/score") == 2);
      CHECK(json.number("/data/1/score") == 3);
    }
  }
  check_refusal(server.post("/score", R"({"text_1":["a","b"],"text_2":["c"]})"), "text_1",
                Mentions("2", "1", "text_2"));
  check_refusal(server.post("/score", R"({"queries":["a","b"],"items":["c","d","e"]})"), "queries",
                Mentions("2", "3", "items"));
  check_refusal(server.post("/score", R"({"text_1":"a"})"), "text_2", Mentions("missing"));
  check_refusal(server.post("/rerank", R"({"documents":["a"]})"), "query", Mentions("missing"));
  check_refusal(server.post("/rerank", R"({"query":"a","documents":[]})"), "documents", Mentions("empty"));
  check_refusal(server.post("/rerank", R"({"query":"a","documents":[5]})"), "documents", Mentions("5"));
  check_refusal(server.post("/rerank", R"({"query":["a"],"documents":["b"]})"), "query", Mentions("string"));
  check_refusal(server.post("/v1/embeddings", R"({"input":"a"})"), "input", Mentions("/rerank", "/score"));
}

TEST_CASE("A model of vectors scores a pair by their cosine") {
  TestServer server({}, plain_model());
  const ParsedJson json(server.post("/score", R"({"text_1":"q","text_2":["q","ab"]})").body);
  CHECK(json.number("/data/0/score") == Approx(1.0));
  const std::vector<float> query{1, 'q', 'q'};
  const std::vector<float> document{2, 'a', 'b'};
  CHECK(json.number("/data/1/score") == Approx(server::cosine(query, document)));
  CHECK(server.engine.seen().size() == 3);  // the query once
}

TEST_CASE("A pair becomes the chat of Qwen3-Reranker") {
  const auto model = length_scorer();
  model->rerank_template = server::RerankTemplate::kQwen3;
  TestServer server({}, model);
  const auto prompt_of = [&](std::string_view members) {
    const HttpReply reply =
        server.post("/rerank", fmt::format(R"({{"query":"Q","documents":["Document text"]{}}})", members));
    REQUIRE(reply.status == 200);
    return byte_tokenizer()->decode(server.engine.seen().back().prompt, false);
  };
  const std::string plain = prompt_of("");
  CHECK(plain.starts_with("<|im_start|>system\nJudge whether the Document meets"));
  CHECK(
      plain.find("<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: Q\n"
                 "<Document>: Document text<|im_end|>\n") != std::string::npos);
  CHECK(plain.ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  CHECK(prompt_of(R"(,"instruction":"Find it")").find("<Instruct>: Find it\n") != std::string::npos);
  CHECK(prompt_of(R"(,"max_tokens_per_doc":3)").find("<Document>: Doc<|im_end|>") != std::string::npos);
}

TEST_CASE("A server without a model that pools refuses") {
  TestServer server;
  for (const char* path : {"/v1/embeddings", "/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score"}) {
    const HttpReply reply = server.post(path, "{}");
    CHECK(reply.status == 400);
    CHECK_THAT(ParsedJson(reply.body).string("/error/message"), Mentions("embeddings", "--convert embed"));
  }
  CHECK(server.get("/openapi.json").body.find("/v1/embeddings") == std::string::npos);
}

TEST_CASE("A failure of one input fails the request") {
  TestServer server({}, plain_model());
  server.engine.on_submit = [](const sched::GenerateRequest& request) {
    ScriptedReply reply;
    if (request.prompt.front() == 'b') reply.error = make_error(ErrorCode::kUnavailable, "stage 1 died");
    return reply;
  };
  const HttpReply reply = server.post("/v1/embeddings", R"({"input":["a","b","c"]})");
  CHECK(reply.status == 503);
  CHECK(ParsedJson(reply.body).string("/error/message") == "stage 1 died");
  CHECK(server.engine.wait_until_idle());
}

TEST_CASE("A request for vectors is counted and can be aborted") {
  TestServer server({}, plain_model());
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.hangs = true}; };
  Client client(server.port);
  client.send(post_bytes("/v1/embeddings", R"({"input":["a","b"],"request_id":"mine"})"));
  REQUIRE(server.engine.wait_until_live(2));
  CHECK(ParsedJson(server.get("/load").body).integer("/server_load") == 1);
  const HttpReply taken = server.post("/v1/embeddings", R"({"input":"a","request_id":"mine"})");
  CHECK(taken.status == 409);
  CHECK(ParsedJson(taken.body).string("/error/param") == "request_id");
  CHECK(ParsedJson(server.post("/abort_request", R"({"request_id":"mine"})").body).integer("/aborted") == 2);
  CHECK(client.read().status == 409);
  CHECK(server.engine.wait_until_idle());
}

TEST_CASE("A client that goes away takes its inputs along") {
  TestServer server({}, plain_model());
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.hangs = true}; };
  {
    Client client(server.port);
    client.send(post_bytes("/v1/embeddings", R"({"input":["a","b","c"]})"));
    REQUIRE(server.engine.wait_until_live(3));
  }
  CHECK(server.engine.wait_until_idle());
  CHECK(server.engine.destroyed_early == 3);
}

TEST_CASE("Vectors show in the metrics") {
  TestServer server({}, plain_model());
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.cached_tokens = 2}; };
  REQUIRE(server.post("/v1/embeddings", R"({"input":["abc","de"]})").status == 200);
  const std::string metrics = server.get("/metrics").body;
  const auto has = [&](std::string_view line) { return metrics.find(line) != std::string::npos; };
  CHECK(has("millrace:prompt_tokens_total{model_name=\"fake\"} 5"));
  CHECK(has("route=\"/v1/embeddings\""));
}
