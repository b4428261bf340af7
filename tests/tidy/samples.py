"""Small sources that break one rule each: (rule, files, places that the rule must name)."""


def function(lines, head="void f(int a) const"):
    return f"{head} {{\n" + "  call();\n" * (lines - 2) + "}\n"


LONG = 71
TASKS = """// detached in a comment
const char* text = "detached";
void f() { co_spawn(x, y, asio::detached); }
"""
TRICKY = (
    "namespace a {\nstruct [[nodiscard]] S : T<int> {\n  S() : a_{1}, b_(2) {\n" + "    x();\n" * 69 + "  }\n"
    "  int c_[2] = {1, 2};\n  int d_{3};\n};\n"
    'const char* r = R"x({ void g() { )x";\nconstexpr char brace = \'{\';\nconstexpr int big = 1\'000;\n'
    "enum class E : int { kA, kB };\n#define M(x) {\\\n  x\nconst auto table = std::to_array<int>({\n" + "  1,\n" * 80
    + "});\n"
    + function(LONG, "template <class T>\nauto f(T t) -> std::vector<T>") + "}\n")

SAMPLES = [
    ("files have at most 500 lines", {"src/a/b.cc": "x\n" * 501, "src/a/c.cc": "x\n" * 500}, ["src/a/b.cc"]),
    ("functions have at most 70 lines", {"src/a/b.cc": "int x;\n" + function(LONG)}, ["src/a/b.cc:2"]),
    ("functions have at most 70 lines", {"src/a/b.cc": function(70) + "class C {\n" + function(70) * 3 + "};\n"}, []),
    ("functions have at most 70 lines", {"src/a/b.cc": TRICKY}, ["src/a/b.cc:3", "src/a/b.cc:166"]),
    ("no tabs, no blanks at line ends, at most 120 columns",
     {"a.cc": "ok\n\tx\ny \n" + "z" * 121 + "\nlast"}, ["a.cc", "a.cc:2", "a.cc:3", "a.cc:4"]),
    ("headers say #pragma once", {"a.h": "// #pragma once\n", "b.h": "#pragma once\n", "c.cc": ""}, ["a.h"]),
    ("nothing is detached outside src/async", {"src/b/a.cc": TASKS, "src/async/a.cc": TASKS}, ["src/b/a.cc:3"]),
    ("nothing is left unfinished", {"a.py": "# TO" + "DO: more\nTODOS\n"}, ["a.py:1"]),
    ("include paths are relative to src, tests or bench",
     {"src/a/b.h": "", "src/a/c.cc": '#include "b.h"\n#include "a/b.h"\n#include <a/b.h>\n#include "../a/b.h"\n'},
     ["src/a/c.cc"] * 3),
    ("folders include along the arrows",
     {"src/sched/a.cc": '#include "server/x.h"\n#include "cache/x.h"\n// #include "server/y.h"\n',
      "src/text/a.cc": '#include "tensor/x.h"\n#include "base/x.h"\n#include "text/x.h"\n', "src/main.cc": ""},
     ["src/sched/a.cc", "src/text/a.cc"]),
    ("what decides includes neither Asio nor CUDA nor a clock",
     {"src/sched/scheduler/scheduler.cc": '#include "sched/plan/request.h"\n',
      "src/sched/plan/request.h": "#include <boost/asio/post.hpp>\n",
      "src/sched/head/head.cc": "#include <chrono>\n", "src/cache/radix_tree.h": "#include <chrono>\n"},
     ["src/sched/scheduler/scheduler.cc", "src/cache/radix_tree.h"]),
    ("what keeps the ring goes by no clock that can be set",
     {"src/comm/a.cc": "// system_clock\nauto t = std::chrono::system_clock::now();\n",
      "src/sched/a.cc": "auto t = std::chrono::steady_clock::now();\n",
      "src/server/a.cc": "auto t = std::chrono::system_clock::now();\n"},
     ["src/comm/a.cc:2"]),
]
