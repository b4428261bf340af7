#include "grammar/json_schema_formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string>

#include "base/check.h"
#include "grammar/regex_parser.h"

namespace millrace::grammar {
namespace {

/// Days exist in their month and year (RFC 3339).
constexpr std::string_view kDate =
    R"((\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8])))"
    R"(|(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29))";
constexpr std::string_view kTime = R"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))";
/// ISO 8601 durations of RFC 3339, appendix A.
constexpr std::string_view kDuration =
    R"(P(\d+W|(\d+Y(\d+M(\d+D)?)?|\d+M(\d+D)?|\d+D)(T(\d+H(\d+M(\d+S)?)?|\d+M(\d+S)?|\d+S))?)"
    R"(|T(\d+H(\d+M(\d+S)?)?|\d+M(\d+S)?|\d+S)))";
constexpr std::string_view kIpv4 = R"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(\.(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)){3})";
/// Labels of RFC 1123, some of which RFC 5891 excludes.
constexpr std::string_view kHostnameBound =
    R"([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*)";
constexpr std::string_view kEmail = R"([A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@)"
                                    R"([A-Za-z0-9]+(-+[A-Za-z0-9]+)*(\.[A-Za-z0-9]+(-+[A-Za-z0-9]+)*)+)";
constexpr std::string_view kUuid = R"([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12})";
/// RFC 6901.
constexpr std::string_view kJsonPointer = R"((/([^~/]|~[01])*)*)";
constexpr std::string_view kRelativeJsonPointer = R"((0|[1-9]\d*)(#|(/([^~/]|~[01])*)*))";

/// Returns a URI template of RFC 6570.
std::string uri_template_pattern() {
  const std::string name = R"(([A-Za-z0-9_]|%[0-9A-Fa-f]{2})(\.?([A-Za-z0-9_]|%[0-9A-Fa-f]{2}))*)";
  const std::string variable = name + R"((:[1-9][0-9]{0,3}|\*)?)";
  const std::string literal = R"([^\x00-\x20"'%<>\\^`{|}\x7f]|%[0-9A-Fa-f]{2})";
  return "(" + literal + R"(|\{[+#./;?&=,!@|]?)" + variable + "(," + variable + R"()*\})*)";
}

/// Returns an IPv6 address of RFC 4291 without a zone.
std::string ipv6_pattern() {
  const std::string h = "[0-9a-fA-F]{1,4}";
  const std::string last = fmt::format("({0}:{0}|{1})", h, kIpv4);
  std::string pattern = fmt::format("({}:){{6}}{}", h, last);
  for (int after = 5; after >= 0; --after) {
    const int before = 5 - after;
    const std::string head = before == 0 ? fmt::format("({})?", h) : fmt::format("({0}(:{0}){{0,{1}}})?", h, before);
    pattern += fmt::format("|{}::({}:){{{}}}{}", head, h, after, last);
  }
  pattern += fmt::format("|({0}(:{0}){{0,5}})?::{0}|({0}(:{0}){{0,6}})?::", h);
  return pattern;
}

/// Returns host names without two hyphens at a label's third place, which encode another name.
std::string hostname_pattern() {
  const std::string letter = "[A-Za-z0-9]";
  const std::string inner = "[A-Za-z0-9-]";
  const std::string label = fmt::format("{0}({0}|{1}{0}|{1}{1}{0}|{1}({0}{1}|-{0}){1}{{0,58}}{0})?", letter, inner);
  return fmt::format(R"({0}(\.{0})*)", label);
}

/// Letters that names in all scripts of this list may begin and end with. The rules of RFC 5892 forbid none of them.
constexpr std::string_view kLetters =
    R"(a-z0-9\u00df-\u00f6\u00f8-\u00ff\u03b1-\u03c9\u0430-\u045f\u0904-\u0939\u0e01-\u0e30)"
    R"(\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff\uac00-\ud7a3)";

/// Returns host names of short labels, whose ASCII forms have at most 63 characters.
std::string idn_hostname_pattern() {
  const std::string label = fmt::format("[{0}](-?[{0}]){{0,12}}", kLetters);
  return fmt::format(R"({0}(\.{0}){{0,3}})", label);
}

std::string idn_email_pattern() {
  const std::string atom = fmt::format("[A-Z{}!#$%&'*+/=?^_`{{|}}~-]+", kLetters);
  return fmt::format(R"({0}(\.{0})*@{1})", atom, idn_hostname_pattern());
}

/// Returns a URI of RFC 3986, or an IRI of RFC 3987. A reference may lack the scheme.
std::string uri_pattern(bool is_international, bool is_reference) {
  const std::string beyond = is_international ? R"(\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\u{10000}-\u{effff})" : "";
  const std::string chars = R"(A-Za-z0-9._~!$&'()*+,;=\-)" + beyond;
  const std::string escape = "%[0-9A-Fa-f]{2}";
  const std::string segment = fmt::format("([{}:@]|{})", chars, escape);
  // Two kinds of addresses in brackets are enough: each further one takes many states.
  const std::string host =
      fmt::format(R"((\[(([0-9A-Fa-f]{{1,4}}:){{7}}[0-9A-Fa-f]{{1,4}}|::1?)\]|([{}]|{})*))", chars, escape);
  const std::string authority = fmt::format(R"(//(([{}:]|{})*@)?{}(:\d*)?)", chars, escape, host);
  const std::string path = fmt::format("(/{}*)*", segment);
  const std::string tail = fmt::format(R"((\?({0}|[/?])*)?(#({0}|[/?])*)?)", segment);
  const std::string hierarchy = fmt::format("({0}{1}|/({2}+{1})?|{2}+{1}|)", authority, path, segment);
  const std::string whole = fmt::format(R"([A-Za-z][A-Za-z0-9+.\-]*:{}{})", hierarchy, tail);
  if (!is_reference) return whole;
  const std::string first = fmt::format("([{}@]|{})", chars, escape);
  return fmt::format("{0}|({1}{2}|/({3}+{2})?|{4}+{2}|){5}", whole, authority, path, segment, first, tail);
}

/// Returns the regular expressions that ECMAScript and Python share, without look-around and references, with groups
/// in groups up to a depth.
std::string regex_pattern() {
  const std::string escape = R"(\\([dDwWsSbBtnrfv]|[^A-Za-z0-9]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}))";
  const std::string char_class = fmt::format(R"(\[\^?-?([^\\\]\[\-]|[a-z]-z|[A-Z]-Z|[0-9]-9|{})+-?\])", escape);
  const std::string plain = fmt::format(R"(([^\\()\[\]{{}}*+?|]|{}|{}))", escape, char_class);
  // A count has no fewer digits than the one before it, and is no less by its first digit.
  const std::string counts = R"(\d{1,3},?|\d,\d\d|\d\d,\d{3}|0,\d|1,[1-9]|2,[2-9]|3,[3-9]|4,[4-9]|5,[5-9]|[67],[7-9])"
                             R"(|1\d,[2-9]\d|2\d,[3-9]\d|3\d,[4-9]\d|4\d,[5-9]\d|[5-8]\d,9\d)";
  const std::string quantified = fmt::format(R"((([*+?]|\{{({})\}})\??)?)", counts);
  std::string terms = fmt::format("({}{})*", plain, quantified);
  for (int depth = 0; depth < 3; ++depth) {
    const std::string group = fmt::format(R"(\((\?:)?{0}(\|{0})*\))", terms);
    terms = fmt::format("(({}|{}){})*", plain, group, quantified);
  }
  return fmt::format(R"({0}(\|{0})*)", terms);
}

struct EnforcedFormat {
  std::string_view name;
  std::string (*pattern)();
};

constexpr std::array kEnforcedFormats = {
    EnforcedFormat{"date", [] { return std::string(kDate); }},
    EnforcedFormat{"time", [] { return std::string(kTime); }},
    EnforcedFormat{"date-time", [] { return fmt::format("({})[Tt]{}", kDate, kTime); }},
    EnforcedFormat{"duration", [] { return std::string(kDuration); }},
    EnforcedFormat{"uuid", [] { return std::string(kUuid); }},
    EnforcedFormat{"ipv4", [] { return std::string(kIpv4); }},
    EnforcedFormat{"ipv6", ipv6_pattern},
    EnforcedFormat{"hostname", hostname_pattern},
    EnforcedFormat{"email", [] { return std::string(kEmail); }},
    EnforcedFormat{"idn-hostname", idn_hostname_pattern},
    EnforcedFormat{"idn-email", idn_email_pattern},
    EnforcedFormat{"uri", [] { return uri_pattern(false, false); }},
    EnforcedFormat{"uri-reference", [] { return uri_pattern(false, true); }},
    EnforcedFormat{"iri", [] { return uri_pattern(true, false); }},
    EnforcedFormat{"iri-reference", [] { return uri_pattern(true, true); }},
    EnforcedFormat{"uri-template", uri_template_pattern},
    EnforcedFormat{"regex", regex_pattern},
    EnforcedFormat{"json-pointer", [] { return std::string(kJsonPointer); }},
    EnforcedFormat{"relative-json-pointer", [] { return std::string(kRelativeJsonPointer); }},
};

ExpressionPtr expression_of_pattern(std::string_view pattern) {
  auto expression = parse_regex(pattern);
  CHECK(expression.has_value(), "a format has a bad pattern: {}", pattern);
  return std::move(*expression);
}

}  // namespace

bool is_enforced_format(std::string_view name) {
  return std::ranges::find(kEnforcedFormats, name, &EnforcedFormat::name) != kEnforcedFormats.end();
}

ExpressionPtr format_bound(std::string_view name) {
  constexpr std::string_view kExact[] = {"date", "uuid", "ipv4", "ipv6", "json-pointer", "relative-json-pointer"};
  if (std::ranges::find(kExact, name) != std::end(kExact)) return format_expression(name);
  if (name == "hostname") return expression_of_pattern(kHostnameBound);
  const bool is_resource = name == "uri" || name == "iri";
  if (!is_resource && name != "email") return nullptr;
  return expression_of_pattern(is_resource ? R"([A-Za-z][A-Za-z0-9+.\-]*:[^\x00-\x1f ]*)" : R"([^@]*@(.|\n)*)");
}

ExpressionPtr format_expression(std::string_view name) {
  const auto found = std::ranges::find(kEnforcedFormats, name, &EnforcedFormat::name);
  CHECK(found != kEnforcedFormats.end(), "there is no format {}", name);
  return expression_of_pattern(found->pattern());
}

}  // namespace millrace::grammar
