#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/tokenizer/pretoken_scanner.h"
#include "text/tokenizer/regex.h"

namespace millrace::text {

/// What becomes of the matches of a Split.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

/// Cuts normalised text into the words that BPE encodes. Stages run nested: each cuts every piece of the one before as
/// a subject of its own. Immutable; `split` is thread-safe.
class PreTokenizer {
 public:
  struct Split {
    Regex pattern;
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
    std::optional<PretokenScanner> scanner;  ///< the same pattern, faster
  };
  struct Metaspace {
    enum class Prepend { kAlways, kFirst, kNever };
    std::string replacement;
    Prepend prepend = Prepend::kAlways;
    bool split = true;
  };
  /// The byte alphabet itself is the model's business; only its prefix space is done here.
  struct PrefixSpace {};
  /// Writes each byte as its character of the byte-level alphabet, for the stages that follow.
  struct ByteLevelText {};
  /// Cuts where the script changes; blanks and characters without a script join any neighbour.
  struct Scripts {};
  /// Cuts after each run of that number of characters.
  struct FixedLength {
    size_t length = 1;
  };
  using Stage = std::variant<Split, Metaspace, PrefixSpace, ByteLevelText, Scripts, FixedLength>;

  /// Takes a word, and how far memory may be read beyond it.
  using Sink = std::function<void(std::string_view word, const char* readable_end)>;

  void add(Stage stage) { stages_.push_back(std::move(stage)); }
  /// `at_text_start`: the piece begins the whole input. Words live until the sink returns.
  void split(std::string_view piece, bool at_text_start, RegexScratch& scratch, const Sink& sink) const;

 private:
  struct Run {
    const Sink& sink;
    RegexScratch& scratch;
    const char* readable_end;
    bool at_text_start;
  };
  void run_stage(size_t stage, std::string_view piece, const Run& run) const;
  void run_split(const Split& split, size_t stage, std::string_view piece, const Run& run) const;
  void run_metaspace(const Metaspace& metaspace, size_t stage, std::string_view piece, const Run& run) const;
  void run_copy(const std::string& text, size_t stage, const Run& run) const;
  /// Passes on the parts of `piece` between neighbouring cuts, in order.
  void run_parts(std::span<const size_t> cuts, size_t stage, std::string_view piece, const Run& run) const;

  std::vector<Stage> stages_;
};

}  // namespace millrace::text
