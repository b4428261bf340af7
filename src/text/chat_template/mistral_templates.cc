#include "text/chat_template/mistral_templates.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace millrace::text {
namespace {

/// What a version has of its own in the template of all.
struct TekkenVersion {
  int number;
  std::string_view calls;        ///< the calls of an assistant's turn
  std::string_view result;       ///< of a call
  std::string_view call_ids;     ///< the order in which results are shown; without ids that of the messages
  std::string_view tools_at;     ///< the turn of a user that the tools stand before, from 1
  bool has_system_turns = true;  ///< without them the last turn of a user begins with the texts of all
  bool has_settings = false;
};

/// Neighbouring messages of one role are one turn, except those of the system.
constexpr std::string_view kTurns = R"({%- set ns = namespace(turns=[], users_to_tools=0, users=0, ids=[], last='',
                                                             system=[]) -%}
{%- for message in messages -%}
  {%- if message.role not in ['system', 'user', 'assistant', 'tool'] -%}
    {{- raise_exception('the role of a message is ' ~ message.role ~ ', wanted system, user, assistant or tool') -}}
  {%- endif -%}
  {%- set thought = @THOUGHT@ -%}
  {%- set content = thought + (message.content or '') -%}
  {%- set calls = message.tool_calls or [] -%}
  {%- set previous = ns.turns[-1] if ns.turns and ns.turns[-1].role == ns.last else {'role': ''} -%}
  {%- set ns.last = message.role -%}
  {%- if @IN_USER@ and message.role == 'system' -%}
    {%- set ns.system = ns.system + ([content] if content else []) -%}
  {%- elif message.role == previous.role and message.role == 'tool' -%}
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
{%- if @IN_USER@ and (not ns.turns or ns.turns[0].role != 'user') -%}
  {%- set ns.turns = [{'role': 'user', 'content': ''}] + ns.turns -%}
{%- endif -%}
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
    {%- endif -%}@SETTINGS@
    {{- '[INST]' -}}
    {%- if ns.system and ns.users_to_tools == 0 -%}
      {{- ns.system | join('\n\n') + '\n\n' -}}
    {%- endif -%}
    {{- turn.content + '[/INST]' -}}
  {%- elif turn.role == 'assistant' -%}
    {{- turn.content if turn.thinks else turn.content.rstrip(' ') -}}
    {%- if turn.calls -%}@CALLS@
    {%- endif -%}
    {{- eos_token -}}
    {%- set ns.ids = @IDS@ -%}
  {%- else -%}
    {%- for id in ns.ids -%}
      {%- for result in turn.results if result.tool_call_id == id -%}@RESULT@
      {%- endfor -%}
    {%- endfor -%}
    {%- for result in turn.results if result.tool_call_id not in ns.ids -%}@RESULT@
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
/// Results that are JSON are written anew.
constexpr std::string_view kResultInObject = R"(
        {%- set parsed = (result.content or '{}') | from_json(result.content) -%}
        {{- '[TOOL_RESULTS]{"content": ' + parsed | tojson + ', "call_id": ' + result.tool_call_id | tojson -}}
        {{- '}[/TOOL_RESULTS]' -}})";
constexpr std::string_view kResultWithId = R"(
        {{- '[TOOL_RESULTS]' + result.tool_call_id + '[TOOL_CONTENT]' + result.content + '[/TOOL_RESULTS]' -}})";
constexpr std::string_view kResultWithoutId = R"(
        {{- '[TOOL_RESULTS]' + result.content + '[/TOOL_RESULTS]' -}})";
/// The effort in @WORDS@, a list; @MOST@ of them is the one of a request that wants thinking and names none.
constexpr std::string_view kEffort = R"(
    {%- if ns.users_to_tools == 0 -%}
      {%- set most = @MOST@ if enable_thinking is defined and enable_thinking else @DEFAULT@ -%}
      {%- set effort = reasoning_effort if reasoning_effort is defined and reasoning_effort else most -%}
      {%- if effort not in @WORDS@ -%}
        {{- raise_exception('reasoning_effort is ' ~ effort ~ ', wanted one of ' ~ @WORDS@ | join(', ')) -}}
      {%- endif -%}
      {{- '[MODEL_SETTINGS]{"reasoning_effort": ' + effort | tojson + '}[/MODEL_SETTINGS]' -}}
    {%- endif -%})";
constexpr std::string_view kIdsOfCalls = "turn.calls | map(attribute='id') | list";
constexpr std::string_view kThought =
    "'[THINK]' + message.reasoning_content + '[/THINK]' if message.reasoning_content else ''";

/// Source: mistral_common, InstructTokenizerV3 to V15 with their normalizers.
constexpr std::array kVersions = {
    TekkenVersion{.number = 3,
                  .calls = kCallsInList,
                  .result = kResultInObject,
                  .call_ids = "[]",
                  .tools_at = "ns.users",
                  .has_system_turns = false},
    TekkenVersion{
        .number = 7, .calls = kCallsInList, .result = kResultWithId, .call_ids = "[]", .tools_at = "ns.users"},
    TekkenVersion{
        .number = 11, .calls = kCallsWithIds, .result = kResultWithId, .call_ids = kIdsOfCalls, .tools_at = "ns.users"},
    TekkenVersion{
        .number = 13, .calls = kCallsWithoutIds, .result = kResultWithoutId, .call_ids = kIdsOfCalls, .tools_at = "1"},
    TekkenVersion{.number = 15,
                  .calls = kCallsWithoutIds,
                  .result = kResultWithoutId,
                  .call_ids = kIdsOfCalls,
                  .tools_at = "1",
                  .has_settings = true}};

void fill(std::string& source, std::string_view mark, std::string_view text) {
  for (size_t at = source.find(mark); at != std::string::npos; at = source.find(mark, at + text.size())) {
    source.replace(at, mark.size(), text);
  }
}

/// Returns the effort that thinks longest.
std::string_view longest_effort(const std::vector<std::string>& efforts) {
  constexpr std::array<std::string_view, 7> kAscending = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  return *std::ranges::max_element(
      efforts, {}, [&](std::string_view word) { return std::ranges::find(kAscending, word) - kAscending.begin(); });
}

std::string quoted(std::string_view word) {
  std::string out;
  append_json_string(out, word);
  return out;
}

/// Returns what shows the settings that a file offers.
std::string settings_of(const TekkenFormat& format) {
  if (format.efforts.empty()) return {};
  std::string words;
  for (const std::string& effort : format.efforts) words += (words.empty() ? "[" : ", ") + quoted(effort);
  std::string source(kEffort);
  fill(source, "@WORDS@", words + "]");
  fill(source, "@MOST@", quoted(longest_effort(format.efforts)));
  fill(source, "@DEFAULT@", quoted(format.default_effort));
  return source;
}

}  // namespace

std::optional<std::string> mistral_template(const TekkenFormat& format, bool thinks) {
  const auto* version = std::ranges::find(kVersions, format.version, &TekkenVersion::number);
  if (version == kVersions.end()) return std::nullopt;
  std::string source;
  source.append(kTurns).append(kRendered);
  fill(source, "@CALLS@", version->calls);
  fill(source, "@RESULT@", version->result);
  fill(source, "@IDS@", version->call_ids);
  fill(source, "@TOOLS_AT@", version->tools_at);
  fill(source, "@THOUGHT@", thinks ? kThought : "''");
  fill(source, "@IN_USER@", version->has_system_turns ? "false" : "true");
  fill(source, "@SETTINGS@", version->has_settings ? settings_of(format) : std::string());
  return source;
}

}  // namespace millrace::text
