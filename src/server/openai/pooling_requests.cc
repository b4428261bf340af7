#include <algorithm>
#include <array>

#include "server/openai/field.h"
#include "server/openai/pooling_request.h"

/// Parses the requests of /v1/embeddings, /rerank and /score.
namespace millrace::server::openai {
namespace {

using Limits = RequestLimits;
using Name = std::string_view;

constexpr std::string_view kWantedInput = "a string, an array of strings, of token ids, or of arrays of token ids";

/// The fields of common_fields() that count for prompts which generate nothing.
constexpr std::array<std::string_view, 10> kSharedNames = {
    "model",      "truncate_prompt_tokens", "truncation_side",   "add_special_tokens", "priority", "request_id", "rid",
    "cache_salt", "routed_dp_rank",         "data_parallel_rank"};

std::span<const Field<CommonRequest>> shared_fields() {
  static const std::vector<Field<CommonRequest>> fields = [] {
    std::vector<Field<CommonRequest>> chosen;
    for (const Field<CommonRequest>& field : common_fields()) {
      if (std::ranges::find(kSharedNames, field.name) != kSharedNames.end()) chosen.push_back(field);
    }
    return chosen;
  }();
  return fields;
}

FieldError read_input(Name name, Json value, const Limits& limits, std::vector<Prompt>& inputs) {
  if (value.is_string()) return read_string(name, value, inputs.emplace_back().emplace<std::string>());
  return read_token_ids(name, value, limits.vocab_size, inputs.emplace_back().emplace<std::vector<TokenId>>());
}

FieldError read_inputs(Name name, Json value, const Limits& limits, EmbeddingRequest& request) {
  request.inputs.clear();
  if (value.is_string()) return read_input(name, value, limits, request.inputs);
  JsonArray array;
  if (!value.get(array)) return wrong_type(name, value, kWantedInput);
  if (array.empty()) return bad_request(name, "{}: found an empty array, wanted {}", name, kWantedInput);
  const Json first = *array.begin();
  if (first.is_number()) return read_input(name, value, limits, request.inputs);
  if (array.size() > kMaxPoolingInputs) {
    return bad_request(name, "{}: found {} inputs, wanted at most {}", name, array.size(), kMaxPoolingInputs);
  }
  for (const Json item : array) {
    const bool is_alike = (item.is_string() && first.is_string()) || (item.is_array() && first.is_array());
    if (!is_alike) return wrong_type(name, item, kWantedInput);
    if (FieldError field_error = read_input(name, item, limits, request.inputs)) return field_error;
  }
  return std::nullopt;
}

void describe_texts(SchemaWriter& schema, std::string_view item) {
  schema.json().key("anyOf").begin_array().raw(item);
  schema.json().begin_object().member("type", "array").member("minItems", 1).member("maxItems", kMaxPoolingInputs);
  schema.json().key("items").raw(item).end_object();
}

void describe_inputs(SchemaWriter& schema) {
  JsonWriter& json = schema.json();
  const uint32_t vocab_size = schema.limits().vocab_size;
  describe_texts(schema, R"({"type":"string"})");
  json.begin_object();
  schema.token_ids(vocab_size);
  json.member("minItems", 1).end_object().begin_object().member("type", "array").member("minItems", 1);
  json.member("maxItems", kMaxPoolingInputs).key("items").begin_object();
  schema.token_ids(vocab_size);
  json.end_object().end_object().end_array();
}

constexpr std::array<std::string_view, 2> kEncodings = {"float", "base64"};
/// vLLM has more forms of the vectors' numbers, which this server does not write.
constexpr std::array<std::string_view, 1> kEmbedDtypes = {"float32"};
constexpr std::array<std::string_view, 2> kEndiannesses = {"little", "native"};

void use_encoding(std::string_view word, EmbeddingRequest& request) {
  request.is_base64 = word == "base64";
}

void ignore_word(std::string_view, EmbeddingRequest&) {}

/// Refuses the member that vLLM had for use_activation.
template <class Request>
FieldError read_normalize(Name name, Json, const Limits&, Request&) {
  return bad_request(name, "{}: not supported, wanted use_activation", name);
}

template <class Request>
constexpr Field<Request> kUseActivation = flag_field<Request, &Request::use_activation>(
    "use_activation", "Default true; false: vectors are not normalized, scores are logits");

constexpr std::array kEmbeddingFields = {
    Field<EmbeddingRequest>{"input", read_inputs, describe_inputs},
    word_field<EmbeddingRequest, kEncodings, use_encoding>("encoding_format", "base64: f32 numbers, little-endian"),
    integer_field<EmbeddingRequest, &EmbeddingRequest::dimensions, 1, kInt32Max>(
        "dimensions", "Only for a model whose vectors may be cut"),
    word_field<EmbeddingRequest, kEmbedDtypes, ignore_word>("embed_dtype"),
    word_field<EmbeddingRequest, kEndiannesses, ignore_word>("endianness"),
    kUseActivation<EmbeddingRequest>,
    Field<EmbeddingRequest>{"normalize", read_normalize<EmbeddingRequest>,
                            [](SchemaWriter& schema) { schema.json().key("enum").raw("[null]"); }},
};

/// Reads a text, or an object whose member "text" is one.
FieldError read_text(Name name, Json value, std::string& out) {
  JsonObject object;
  if (!value.get(object)) return read_string(name, value, out);
  return read_string(fmt::format("{}.text", name), object["text"], out);
}

FieldError read_texts(Name name, Json value, std::vector<std::string>& out) {
  out.clear();
  JsonArray array;
  if (!value.get(array)) {
    if (!value.is_string() && !value.is_object()) return wrong_type(name, value, "a string or an array of strings");
    return read_text(name, value, out.emplace_back());
  }
  if (array.empty()) return bad_request(name, "{}: found an empty array, wanted at least one text", name);
  if (array.size() > kMaxPoolingInputs) {
    return bad_request(name, "{}: found {} texts, wanted at most {}", name, array.size(), kMaxPoolingInputs);
  }
  for (const Json item : array) {
    if (FieldError field_error = read_text(name, item, out.emplace_back())) return field_error;
  }
  return std::nullopt;
}

constexpr std::string_view kTextItem =
    R"({"anyOf":[{"type":"string"},{"type":"object","required":["text"],"properties":{"text":{"type":"string"}}}]})";

void describe_text_list(SchemaWriter& schema) {
  describe_texts(schema, kTextItem);
  if (schema.nullable()) schema.json().raw(R"({"type":"null"})");
  schema.json().end_array();
}

template <class Request>
FieldError read_queries(Name name, Json value, const Limits&, Request& request) {
  request.query_param = name;
  return read_texts(name, value, request.queries);
}

template <class Request>
FieldError read_documents(Name name, Json value, const Limits&, Request& request) {
  request.document_param = name;
  return read_texts(name, value, request.documents);
}

FieldError read_query(Name name, Json value, const Limits& limits, RerankRequest& request) {
  if (value.is_array()) return wrong_type(name, value, "a string");
  return read_queries<RerankRequest>(name, value, limits, request);
}

template <class Request>
constexpr Field<Request> query_field(std::string_view name) {
  return {name, read_queries<Request>, describe_text_list};
}
template <class Request>
constexpr Field<Request> document_field(std::string_view name) {
  return {name, read_documents<Request>, describe_text_list};
}

constexpr std::array kRerankFields = {
    Field<RerankRequest>{"query", read_query, [](SchemaWriter& schema) { schema.type("string"); }},
    document_field<RerankRequest>("documents"),
    integer_field<RerankRequest, &RerankRequest::top_n, 0, kInt32Max>("top_n", "Default 0: all"),
    integer_field<RerankRequest, &RerankRequest::max_document_tokens, 0, kInt32Max>("max_tokens_per_doc",
                                                                                    "Default 0: no limit"),
    string_field<RerankRequest, &RerankRequest::instruction>("instruction", "For Qwen3-Reranker"),
    string_field<RerankRequest, &RerankRequest::instruction>("instruct", "The same as instruction"),
    flag_field<RerankRequest, &RerankRequest::return_documents>("return_documents", "Default true"),
    kUseActivation<RerankRequest>,
};

constexpr std::array kScoreFields = {
    query_field<PairRequest>("text_1"),
    document_field<PairRequest>("text_2"),
    query_field<PairRequest>("queries"),
    document_field<PairRequest>("documents"),
    document_field<PairRequest>("items"),
    query_field<PairRequest>("data_1"),
    document_field<PairRequest>("data_2"),
    integer_field<PairRequest, &PairRequest::max_document_tokens, 0, kInt32Max>("max_tokens_per_doc",
                                                                                "Default 0: no limit"),
    string_field<PairRequest, &PairRequest::instruction>("instruction", "For Qwen3-Reranker"),
    kUseActivation<PairRequest>,
};

template <class Request>
FieldError read_body(const std::string& body, const Limits& limits, Request& request,
                     std::span<const Field<Request>> fields) {
  Document document;
  if (FieldError field_error = document.parse(body)) return field_error;
  if (FieldError field_error = read_members<CommonRequest>(document.object(), limits, request, shared_fields())) {
    return field_error;
  }
  return read_members<Request>(document.object(), limits, request, fields);
}

FieldError check_pairs(const PairRequest& request, std::string_view query, std::string_view document) {
  if (request.queries.empty()) return bad_request(query, "{}: missing", query);
  if (request.documents.empty()) return bad_request(document, "{}: missing", document);
  if (request.queries.size() == 1 || request.queries.size() == request.documents.size()) return std::nullopt;
  return bad_request(request.query_param, "{}: found {} texts for {} of {}, wanted 1 or as many", request.query_param,
                     request.queries.size(), request.documents.size(), request.document_param);
}

}  // namespace

ApiResult<EmbeddingRequest> parse_embedding_request(const std::string& body, const RequestLimits& limits) {
  EmbeddingRequest request;
  if (FieldError field_error = read_body<EmbeddingRequest>(body, limits, request, kEmbeddingFields))
    return *field_error;
  if (request.inputs.empty()) return bad_request("input", "input: missing, wanted {}", kWantedInput);
  return request;
}

ApiResult<RerankRequest> parse_rerank_request(const std::string& body, const RequestLimits& limits) {
  RerankRequest request;
  if (FieldError field_error = read_body<RerankRequest>(body, limits, request, kRerankFields)) return *field_error;
  if (FieldError field_error = check_pairs(request, "query", "documents")) return *field_error;
  return request;
}

ApiResult<PairRequest> parse_score_request(const std::string& body, const RequestLimits& limits) {
  PairRequest request;
  if (FieldError field_error = read_body<PairRequest>(body, limits, request, kScoreFields)) return *field_error;
  if (FieldError field_error = check_pairs(request, "text_1", "text_2")) return *field_error;
  return request;
}

void describe_pooling_requests(SchemaWriter& schema) {
  JsonWriter& json = schema.json();
  json.key("EmbeddingRequest").begin_object().member("type", "object").key("required").raw(R"(["input"])");
  json.key("properties").begin_object();
  describe_members<CommonRequest>(schema, shared_fields());
  describe_members<EmbeddingRequest>(schema, kEmbeddingFields, "input");
  json.end_object().end_object();
  json.key("RerankRequest").begin_object().member("type", "object").key("required").raw(R"(["query","documents"])");
  json.key("properties").begin_object();
  describe_members<CommonRequest>(schema, shared_fields());
  describe_members<RerankRequest>(schema, kRerankFields);
  json.end_object().end_object();
  json.key("ScoreRequest").begin_object().member("type", "object");
  json.key("anyOf").raw(R"([{"required":["text_1","text_2"]},{"required":["queries","documents"]},)"
                        R"({"required":["queries","items"]},{"required":["data_1","data_2"]}])");
  json.key("properties").begin_object();
  describe_members<CommonRequest>(schema, shared_fields());
  describe_members<PairRequest>(schema, kScoreFields);
  json.end_object().end_object();
}

}  // namespace millrace::server::openai
