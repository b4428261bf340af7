#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/char_set.h"

/// The syntax tree that every notation is read into: JSON schema, regular expression, EBNF, choices.
namespace millrace::grammar {

using RuleIndex = uint32_t;

struct Expression;
/// A node of a tree. Never null. Shared, because trees may have parts in common.
using ExpressionPtr = std::shared_ptr<const Expression>;

struct Expression {
  enum class Kind : uint8_t {
    kLiteral,    ///< `text`, of which tags of the vocabulary may be parts
    kTagged,     ///< `text`, of which a tag of the vocabulary is a part; without one no text
    kChar,       ///< one of `chars`
    kSequence,   ///< all `parts`, in order; without parts the empty text
    kChoice,     ///< one of `parts`; without parts no text
    kRepeat,     ///< the only part, `min` to `max` times
    kReference,  ///< a rule of the Definition
    kNetwork,    ///< the `parts` of `edges` along a path from node 0 to node 1; no edge leaves node 1
    kAssertion,  ///< the empty text where `assertion` holds; only in what TextLanguage reads
  };
  /// A condition on the characters at a position of the text.
  enum class Assertion : uint8_t {
    kBegin,       ///< there is none before it
    kEnd,         ///< there is none after it
    kBoundary,    ///< one of its neighbours is a word character, and the other is none
    kNoBoundary,  ///< both of its neighbours are word characters, or both are none
  };
  struct Edge {
    uint32_t from;
    uint32_t to;
    uint32_t part;  ///< an index of `parts`
  };
  Kind kind = Kind::kSequence;
  std::string text;  ///< bytes
  CharSet chars;
  std::vector<ExpressionPtr> parts;
  uint32_t min = 0;
  std::optional<uint32_t> max;  ///< without a value there is no bound
  RuleIndex rule = 0;
  std::vector<Edge> edges;
  uint32_t node_count = 0;
  Assertion assertion = Assertion::kBegin;
};

[[nodiscard]] ExpressionPtr literal(std::string_view text);
[[nodiscard]] ExpressionPtr tagged(std::string_view text);
[[nodiscard]] ExpressionPtr one_of(CharSet chars);
[[nodiscard]] ExpressionPtr sequence(std::vector<ExpressionPtr> parts);
[[nodiscard]] ExpressionPtr choice(std::vector<ExpressionPtr> parts);
[[nodiscard]] ExpressionPtr repeat(ExpressionPtr part, uint32_t min, std::optional<uint32_t> max = {});
[[nodiscard]] ExpressionPtr optional(ExpressionPtr part);
[[nodiscard]] ExpressionPtr reference(RuleIndex rule);
[[nodiscard]] ExpressionPtr assertion(Expression::Assertion assertion);

/// Collects the nodes and edges of a kNetwork expression. Node 0 begins it, and node 1 ends it.
class NetworkBuilder {
 public:
  static constexpr uint32_t kBegin = 0;
  static constexpr uint32_t kEnd = 1;

  uint32_t add_node() { return network_.node_count++; }
  /// Adds an edge that reads `part`. Equal parts are stored once if they are the same object.
  void add_edge(uint32_t from, uint32_t to, const ExpressionPtr& part);
  [[nodiscard]] uint32_t node_count() const { return network_.node_count; }
  [[nodiscard]] ExpressionPtr build() &&;

 private:
  Expression network_{.kind = Expression::Kind::kNetwork, .node_count = 2};
  std::unordered_map<const Expression*, uint32_t> parts_;
};

/// A root expression and the rules that it may refer to by index. A rule may be referred to before it is defined.
struct Definition {
  struct Rule {
    std::string name;          ///< for messages
    ExpressionPtr expression;  ///< null until it is defined
  };
  std::vector<Rule> rules;
  ExpressionPtr root;
  std::string prefix;  ///< the beginning of every text, which the prompt already holds

  RuleIndex add(std::string name, ExpressionPtr expression = nullptr) {
    rules.push_back({std::move(name), std::move(expression)});
    return static_cast<RuleIndex>(rules.size() - 1);
  }
};

}  // namespace millrace::grammar
