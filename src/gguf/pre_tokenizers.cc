#include "gguf/pre_tokenizers.h"

#include <algorithm>

namespace millrace::gguf {
namespace {

/// The patterns stand in the tokenizer.json of the models that the names come from.
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDigit = R"(\p{N})";
constexpr std::string_view kThreeDigits = R"(\p{N}{1,3})";
constexpr std::string_view kLine = R"([\r\n])";
constexpr std::string_view kDeepSeekHan = "[一-龥ࠀ-一가-\xED\x9F\xBF]+";
constexpr std::string_view kDeepSeekCased =
    R"(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼ)"
    R"(ιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+)";
constexpr std::string_view kDeepSeekMarks = R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)";
constexpr std::string_view kDeepSeek3Words =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

const std::vector<PreTokenizer>& pre_tokenizers() {
  static const std::vector<PreTokenizer> kAll = {
      {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
       .patterns = {kLlama3},
       .ignores_merges = true,
       .adds_bos = true},
      {.names = {"smaug-bpe", "dbrx", "chatglm-bpe", "glm4"}, .patterns = {kLlama3}},
      {.names = {"qwen2", "f2llmv2"}, .patterns = {kQwen2}, .normalizes = true},
      {.names = {"deepseek-r1-qwen", "kormo", "megrez", "hunyuan", "solar-open"}, .patterns = {kQwen2}},
      {.names = {"tekken"}, .patterns = {kTekken}, .ignores_merges = true, .adds_bos = true},
      {.names = {"gpt-4o", "llama4", "kanana2"}, .patterns = {kGpt4o}},
      {.names = {"seed-coder"}, .patterns = {kSeedCoder}},
      {.names = {"deepseek-llm"},
       .patterns = {kLine, kDeepSeekCased, kDeepSeekMarks, R"(\s+$)", kDeepSeekHan, R"(\p{N}+)"}},
      {.names = {"deepseek-coder"}, .patterns = {kLine, R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepSeekHan, kDigit}},
      {.names = {"deepseek-v3", "hunyuan-dense", "joyai-llm"},
       .patterns = {kThreeDigits, "[一-龥぀-ゟ゠-ヿ]+", kDeepSeek3Words}},
      {.names = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"},
       .patterns = {kDigit},
       .uses_gpt2_pattern = true},
      {.names = {"gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4", "trillion", "granite-docling", "jais"},
       .patterns = {},
       .uses_gpt2_pattern = true},
  };
  return kAll;
}

}  // namespace

const PreTokenizer* find_pre_tokenizer(std::string_view name) {
  const auto& all = pre_tokenizers();
  const auto has_name = [name](const PreTokenizer& each) {
    return std::ranges::find(each.names, name) != each.names.end();
  };
  const auto found = std::ranges::find_if(all, has_name);
  return found == all.end() ? nullptr : &*found;
}

std::vector<std::string_view> pre_tokenizer_names() {
  std::vector<std::string_view> names;
  for (const PreTokenizer& each : pre_tokenizers()) names.insert(names.end(), each.names.begin(), each.names.end());
  return names;
}

}  // namespace millrace::gguf
