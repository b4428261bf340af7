#include "app/sample_prompts.h"

#include <array>

namespace millrace::app {
namespace {

constexpr std::array<std::string_view, 12> kPrompts = {
    "The mill stood where the river narrows, and for two hundred years it had ground the grain of five villages. When "
    "the railway came, the farmers sent their sacks to the city instead, and the wheel turned only for visitors. One "
    "autumn the weir broke in a storm. The water found its old bed again, and within a week the channel was dry, so "
    "that children walked along it and collected the things that people had lost in it over the years.",
    "User: My bread comes out dense and gummy, although I follow the recipe exactly. What should I check first?\n"
    "Assistant: Check three things, in this order. First, the temperature of the dough: below 22 degrees the yeast "
    "works slowly, and the time in the recipe is too short. Second, how the dough looks rather than the clock: it "
    "should have grown by half before it is shaped. Third, the inside of the loaf after baking: at 96 degrees it is "
    "done. If it is gummy in spite of that, let it cool completely before you cut it.",
    "def merge_intervals(intervals):\n    \"\"\"Joins overlapping intervals, given as (begin, end) pairs.\"\"\"\n"
    "    merged = []\n    for begin, end in sorted(intervals):\n        if merged and begin <= merged[-1][1]:\n"
    "            merged[-1] = (merged[-1][0], max(merged[-1][1], end))\n        else:\n"
    "            merged.append((begin, end))\n    return merged\n\n\ndef test_merge_intervals():\n"
    "    assert merge_intervals([]) == []\n    assert merge_intervals([(1, 3), (2, 5), (7, 8)]) == [(1, 5), (7, 8)]\n",
    "template <class T>\nclass BoundedQueue {\n public:\n  explicit BoundedQueue(size_t capacity) : "
    "slots_(capacity) {}\n\n  bool push(T value) {\n    std::lock_guard lock(mutex_);\n    if (count_ == "
    "slots_.size()) return false;\n    slots_[(head_ + count_) % slots_.size()] = std::move(value);\n    ++count_;\n  "
    "  ready_.notify_one();\n    return true;\n  }\n",
    "Die Brücke war seit Monaten gesperrt, und niemand im Ort glaubte noch daran, dass sie vor dem Winter fertig "
    "würde. "
    "Trotzdem kam jeden Morgen derselbe Ingenieur mit dem Fahrrad, stellte seine Geräte auf und maß, wie weit sich der "
    "mittlere Pfeiler in der Nacht gesenkt hatte. Manchmal schrieb er eine Zahl in sein Heft, manchmal schüttelte er "
    "nur "
    "den Kopf.",
    "Pour préparer cette soupe, faites revenir les oignons dans un peu de beurre pendant dix minutes, sans les laisser "
    "brunir. Ajoutez ensuite les pommes de terre coupées en dés, couvrez d'eau et laissez cuire à feu doux. Quand les "
    "légumes sont tendres, mixez le tout, puis salez et poivrez selon votre goût.",
    "从火车站步行到博物馆大约需要二十分钟。出站以后先沿着河向东走，经过第二座桥的时候左转，就会看到一座红色的砖楼。"
    "博物馆每周一闭馆，其他日子从上午九点开放到下午五点。学生凭证件可以免费参观，但是特别展览需要另外买票。",
    "{\"order\": {\"id\": 48213, \"customer\": {\"name\": \"A. Lindqvist\", \"country\": \"SE\"}, \"items\": "
    "[{\"sku\": "
    "\"KT-104\", \"quantity\": 2, \"price\": 19.5}, {\"sku\": \"KT-220\", \"quantity\": 1, \"price\": 74.0}], "
    "\"total\": "
    "113.0, \"currency\": \"EUR\", \"paid\": true, \"shipped_at\": null}}",
    "Question: A tank holds 240 litres. One pipe fills it at 12 litres a minute, and a leak loses 2 litres a minute. "
    "How "
    "long does it take to fill the empty tank?\nAnswer: Each minute the tank gains 12 - 2 = 10 litres. To gain 240 "
    "litres takes 240 / 10 = 24 minutes. The answer is 24.",
    "| city | country | population | founded |\n|---|---|---|---|\n| Tallinn | Estonia | 450000 | 1248 |\n| Porto | "
    "Portugal | 230000 | 1123 |\n| Ghent | Belgium | 265000 | 650 |\n| Graz | Austria | 300000 | 1128 |\n\nThe oldest "
    "of "
    "these cities is Ghent, and the largest is Tallinn.",
    "Abstract. We study how the error of a low-precision representation of weights propagates through a deep network. "
    "For layers with normalised inputs the error of the output grows with the square root of the depth, provided that "
    "rounding errors are independent. Experiments with models of several sizes confirm the bound, except in the first "
    "and the last layers, whose inputs are far from uniform.",
    "SELECT c.name, COUNT(o.id) AS orders, SUM(o.total) AS revenue\nFROM customers AS c\nLEFT JOIN orders AS o ON "
    "o.customer_id = c.id AND o.created_at >= DATE '2024-01-01'\nGROUP BY c.name\nHAVING SUM(o.total) > 1000\nORDER BY "
    "revenue DESC\nLIMIT 20;",
};

}  // namespace

std::span<const std::string_view> sample_prompts() {
  return kPrompts;
}

}  // namespace millrace::app
