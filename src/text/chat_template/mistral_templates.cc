#include "text/chat_template/mistral_templates.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace millrace::text {
namespace {

/// What a version has of its own in the template of all.
struct TekkenVersion {
  int number;
  std::string_view calls;     ///< the calls of an assistant's turn
  std::string_view result;    ///< of a call
  std::string_view call_ids;  ///< the order in which results are shown; without ids that of the messages
  std::string_view tools_at;  ///< the turn of a user that the tools stand before, from 1
};

/// Neighbouring messages of one role are one turn, except those of the system.
constexpr std::string_view kTurns = R"({%- set ns = namespace(turns=[], users_to_tools=0, users=0, ids=[]) -%}
{%- for message in messages -%}
  {%- if message.role not in ['system', 'user', 'assistant', 'tool'] -%}
    {{- raise_exception('the role of a message is ' ~ message.role ~ ', wanted system, user, assistant or tool') -}}
  {%- endif -%}
  {%- set thought = @THOUGHT@ -%}
  {%- set content = thought + (message.content or '') -%}
  {%- set calls = message.tool_calls or [] -%}
  {%- set previous = ns.turns[-1] if ns.turns else {'role': ''} -%}
  {%- if message.role == previous.role and message.role == 'tool' -%}
    {%- set ns.turns = ns.turns[:-1] + [{'role': 'tool', 'results': previous.results + [message]}] -%}
  {%- elif message.role == previous.role and message.role != 'system' -%}
    {%- set between = '\n\n' if content and previous.content else '' -%}
    {%- set ns.turns = ns.turns[:-1] + [{'role': message.role, 'content': previous.content + between + content,
                                         'calls': previous.calls + calls, 'thinks': previous.thinks or thought}] -%}
  {%- else -%}
    {%- set ns.turns = ns.turns + [{'role': message.role, 'content': content, 'calls': calls, 'thinks': thought,
                                    'results': [message]}] -%}
  {%- endif -%}
{%- endfor -%}
{%- for turn in ns.turns if turn.role == 'user' -%}
  {%- set ns.users = loop.index -%}
{%- endfor -%}
{%- set ns.users_to_tools = @TOOLS_AT@ -%}
)";
constexpr std::string_view kRendered = R"({{- bos_token -}}
{%- for turn in ns.turns -%}
  {%- if turn.role == 'system' -%}
    {{- '[SYSTEM_PROMPT]' + turn.content + '[/SYSTEM_PROMPT]' -}}
  {%- elif turn.role == 'user' -%}
    {%- set ns.users_to_tools = ns.users_to_tools - 1 -%}
    {%- if tools and ns.users_to_tools == 0 -%}
      {{- '[AVAILABLE_TOOLS][' -}}
      {%- for tool in tools -%}
        {{- '{"type": "function", "function": {"name": ' + tool.function.name | tojson -}}
        {{- ', "description": ' + (tool.function.description or '') | tojson -}}
        {{- ', "parameters": ' + (tool.function.parameters or {}) | tojson + '}}' -}}
        {{- ', ' if not loop.last -}}
      {%- endfor -%}
      {{- '][/AVAILABLE_TOOLS]' -}}
    {%- endif -%}
    {{- '[INST]' + turn.content + '[/INST]' -}}
  {%- elif turn.role == 'assistant' -%}
    {{- turn.content if turn.thinks else turn.content.rstrip(' ') -}}
    {%- if turn.calls -%}@CALLS@
    {%- endif -%}
    {{- eos_token -}}
    {%- set ns.ids = @IDS@ -%}
  {%- else -%}
    {%- for id in ns.ids -%}
      {%- for result in turn.results if result.tool_call_id == id -%}
        {{- @RESULT@ -}}
      {%- endfor -%}
    {%- endfor -%}
    {%- for result in turn.results if result.tool_call_id not in ns.ids -%}
      {{- @RESULT@ -}}
    {%- endfor -%}
  {%- endif -%}
{%- endfor -%})";

constexpr std::string_view kCallsInList = R"(
      {{- '[TOOL_CALLS][' -}}
      {%- for call in turn.calls -%}
        {{- '{"name": ' + call.function.name | tojson + ', "arguments": ' + call.function.arguments | tojson -}}
        {{- ', "id": ' + call.id | tojson if call.id -}}
        {{- '}, ' if not loop.last else '}' -}}
      {%- endfor -%}
      {{- ']' -}})";
constexpr std::string_view kCallsWithIds = R"(
      {%- for call in turn.calls -%}
        {{- '[TOOL_CALLS]' + call.function.name -}}
        {{- '[CALL_ID]' + call.id if call.id -}}
        {{- '[ARGS]' + call.function.arguments | tojson -}}
      {%- endfor -%})";
constexpr std::string_view kCallsWithoutIds = R"(
      {%- for call in turn.calls -%}
        {{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + call.function.arguments | tojson -}}
      {%- endfor -%})";
constexpr std::string_view kResultWithId =
    "'[TOOL_RESULTS]' + result.tool_call_id + '[TOOL_CONTENT]' + result.content + '[/TOOL_RESULTS]'";
constexpr std::string_view kResultWithoutId = "'[TOOL_RESULTS]' + result.content + '[/TOOL_RESULTS]'";
constexpr std::string_view kIdsOfCalls = "turn.calls | map(attribute='id') | list";
constexpr std::string_view kThought =
    "'[THINK]' + message.reasoning_content + '[/THINK]' if message.reasoning_content else ''";

/// Source: mistral_common, InstructTokenizerV7, V11 and V13 with their normalizers.
constexpr std::array kVersions = {
    TekkenVersion{
        .number = 7, .calls = kCallsInList, .result = kResultWithId, .call_ids = "[]", .tools_at = "ns.users"},
    TekkenVersion{
        .number = 11, .calls = kCallsWithIds, .result = kResultWithId, .call_ids = kIdsOfCalls, .tools_at = "ns.users"},
    TekkenVersion{
        .number = 13, .calls = kCallsWithoutIds, .result = kResultWithoutId, .call_ids = kIdsOfCalls, .tools_at = "1"}};

void fill(std::string& source, std::string_view mark, std::string_view text) {
  for (size_t at = source.find(mark); at != std::string::npos; at = source.find(mark, at + text.size())) {
    source.replace(at, mark.size(), text);
  }
}

}  // namespace

std::optional<std::string> mistral_template(int tekken_version, bool thinks) {
  const auto* version = std::ranges::find(kVersions, tekken_version, &TekkenVersion::number);
  if (version == kVersions.end()) return std::nullopt;
  std::string source;
  source.append(kTurns).append(kRendered);
  fill(source, "@CALLS@", version->calls);
  fill(source, "@RESULT@", version->result);
  fill(source, "@IDS@", version->call_ids);
  fill(source, "@TOOLS_AT@", version->tools_at);
  fill(source, "@THOUGHT@", thinks ? kThought : "''");
  return source;
}

}  // namespace millrace::text
