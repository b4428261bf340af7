#pragma once

#include <array>
#include <string_view>

/// What is fuzzed besides the frames of a link: each function takes any bytes, checks what must hold of the outcome,
/// and aborts when it does not. `NAME_fuzz` is the libFuzzer program of a target, corpus/NAME its seeds; `fuzz_test`
/// runs all of them over the seeds and a bounded number of mutations.
namespace millrace::fuzz {

void http_request(std::string_view input);
void json_request(std::string_view input);
void message_request(std::string_view input);
/// The body of a Responses request; also the arguments of a custom tool's call.
void responses_request(std::string_view input);
void tokenizer_json(std::string_view input);
/// A tekken.json; or a tokenizer_config.json, a NUL, and a tiktoken.model.
void ranked_tokens(std::string_view input);
void config_json(std::string_view input);
void safetensors_header(std::string_view input);
/// A GGUF file: its header, the tensors by name, and the config and the tokenizer that its metadata amounts to.
void gguf_file(std::string_view input);
/// A quantization_config with the members rows and cols, a NUL, and a safetensors file of a weight of that shape.
void stored_weight(std::string_view input);
/// A template, a NUL, and a JSON array of messages.
void chat_template(std::string_view input);
/// What `millrace simulate` reads: a described cluster; a result file of bench/load.
void cluster_json(std::string_view input);
void workload_json(std::string_view input);
/// What `millrace trace` reads.
void trace_json(std::string_view input);
/// What a request holds its answer to: r and a regular expression, e and a grammar in EBNF, else j and a JSON schema.
void response_format(std::string_view input);
/// The name of a format of calls, "strict" or another word, a line feed, and the schema of a tool's arguments.
void tool_schema(std::string_view input);
/// An output of a model: the names of its formats of calls and of reasoning, a line feed, and the text.
void model_output(std::string_view input);

struct Target {
  std::string_view name;
  void (*run)(std::string_view input);
};
inline constexpr std::array kTargets = {
    Target{"http_request", http_request},
    Target{"json_request", json_request},
    Target{"message_request", message_request},
    Target{"responses_request", responses_request},
    Target{"tokenizer_json", tokenizer_json},
    Target{"ranked_tokens", ranked_tokens},
    Target{"config_json", config_json},
    Target{"safetensors_header", safetensors_header},
    Target{"gguf_file", gguf_file},
    Target{"stored_weight", stored_weight},
    Target{"chat_template", chat_template},
    Target{"cluster_json", cluster_json},
    Target{"workload_json", workload_json},
    Target{"trace_json", trace_json},
    Target{"response_format", response_format},
    Target{"tool_schema", tool_schema},
    Target{"model_output", model_output},
};

}  // namespace millrace::fuzz
