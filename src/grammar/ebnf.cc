#include "grammar/ebnf.h"

#include <array>
#include <utility>

#include "grammar/rule_parser.h"

namespace millrace::grammar {
namespace {

constexpr std::array<std::string_view, 1> kComments = {"#"};
constexpr RuleNotation kNotation{.comments = kComments,
                                 .name_marks = "_-",
                                 .escapes = "nrt\"'\\[]^-/",
                                 .wanted_term = "a literal, a class, a group or a rule"};

class EbnfParser final : public RuleParser {
 public:
  EbnfParser(std::string_view text, Definition& definition) : RuleParser(text, kNotation, definition) {}

  ExpressionPtr read() {
    const RuleIndex root = rule_named("root");
    read_statements();
    return reference(root);
  }

 private:
  void read_statement() override {
    const std::string_view name = take_name();
    if (name.empty()) cursor_.fail("wanted the name of a rule");
    skip_space(false);
    if (!cursor_.take("::=")) cursor_.fail(fmt::format("wanted '::=' after '{}'", shown_name(name)));
    skip_space(true);
    define(name, read_alternatives());
  }

  ExpressionPtr read_own_term() override {
    if (cursor_.take("\"")) return literal(read_quoted());
    if (cursor_.take("[")) return read_class();
    if (cursor_.take(".")) return one_of(CharSet(0, CharSet::kMaxCodePoint));
    return nullptr;
  }

  std::optional<RepeatRange> read_quantifier() override { return take_quantifier(cursor_); }

  ExpressionPtr read_class() {
    const bool is_complement = cursor_.take("^");
    CharSet set;
    while (!cursor_.take("]")) {
      if (cursor_.at_end() || cursor_.peek() == '\n') cursor_.fail("a class has no end");
      const char32_t low = read_char();
      char32_t high = low;
      if (cursor_.peek() == '-' && cursor_.peek(1) != ']') {
        cursor_.skip();
        high = read_char();
      }
      if (high < low) cursor_.fail("a range is the wrong way round");
      set.add(low, high);
    }
    return one_of(is_complement ? set.complement() : std::move(set));
  }
};

}  // namespace

Result<ExpressionPtr> parse_ebnf(std::string_view text, Definition& definition) {
  try {
    return EbnfParser(text, definition).read();
  } catch (const ErrorException& failure) {
    return failure.error();
  }
}

}  // namespace millrace::grammar
