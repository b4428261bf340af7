"""Small sources that break one rule each: (key of the rule, files, what the rule must name)."""


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

OF_B = "int B::f() {\n}\n"
TABLE = """| `src/base/` | words | – |
| `src/text/` | words | server |
| `src/text/deep/` | words | text |
| `src/app/` | words | all |
| `src/server/` | words | – |
"""

SAMPLES = [
    ("file-length", {"src/a/b.cc": "x\n" * 501, "src/a/c.cc": "x\n" * 500}, ["src/a/b.cc"]),
    ("function-length", {"src/a/b.cc": "int x;\n" + function(LONG)}, ["src/a/b.cc:2"]),
    ("function-length", {"src/a/b.cc": function(70) + "class C {\n" + function(70) * 3 + "};\n"}, []),
    ("function-length", {"src/a/b.cc": TRICKY}, ["src/a/b.cc:3", "src/a/b.cc:166"]),
    ("line-length", {"a.cc": "z" * 121 + "\n" + "z" * 120 + "\n", "a.md": "z" * 121 + "\n",
                     "a/meson.build": "z" * 121 + "\n"}, ["a.cc:1", "a/meson.build:1"]),
    ("whitespace", {"a.cc": "ok\n\tx\ny \nlast"}, ["a.cc", "a.cc:2", "a.cc:3"]),
    ("pragma-once", {"a.h": "// #pragma once\n", "b.h": "#pragma once\n", "c.cc": ""}, ["a.h"]),
    ("detached", {"src/b/a.cc": TASKS, "src/async/a.cc": TASKS}, ["src/b/a.cc:3"]),
    ("unfinished", {"a.py": "# TO" + "DO: more\nTODOS\n"}, ["a.py:1"]),
    ("include-paths",
     {"src/a/b.h": "", "src/a/c.cc": '#include "b.h"\n#include "a/b.h"\n#include <a/b.h>\n#include "../a/b.h"\n'},
     ["src/a/c.cc"] * 3),
    ("one-source",
     {"src/a/b.h": "struct B : C {\n  int f();\n};\nclass D {\n};\nnamespace e {\nint g();\n}\n", "src/a/b.cc": OF_B,
      "src/a/b_more.cc": OF_B + "int D::f() {\n}\nint e::g() {\n}\n", "src/a/d.cc": "D::D() : x_(1) {\n}\nD::~D() {\n}\n",
      "src/a/local.cc": "class B {\n};\n" + OF_B, "src/f/b.cc": OF_B},
     ["src/a/b_more.cc", "src/a/b_more.cc"]),
    ("arrows",
     {"ARCHITECTURE.md": TABLE, "src/base/x.h": "", "src/text/x.h": "", "src/text/deep/x.h": "", "tests/text/t.h": "",
      "src/text/a.cc": '#include "text/x.h"\n#include "base/x.h"\n#include "text/deep/x.h"\n#include "text/t.h"\n',
      "src/text/deep/a.cc": '#include "text/x.h"\n// #include "server/y.h"\n', "src/app/a.cc": '#include "text/x.h"\n',
      "src/server/a.cc": "", "src/new/a.cc": "", "src/main.cc": '#include "text/x.h"\n'},
     ["src/text/a.cc", "src/text/a.cc", "src/new/a.cc", "ARCHITECTURE.md"]),
    ("cycles", {"ARCHITECTURE.md": TABLE}, []),
    ("cycles", {"ARCHITECTURE.md": TABLE + "| `src/server/` | words | text/deep |\n"}, ["ARCHITECTURE.md"] * 3),
    ("pure",
     {"src/sched/scheduler/scheduler.cc": '#include "sched/plan/request.h"\n',
      "src/sched/plan/request.h": "#include <boost/asio/post.hpp>\n", "src/sched/plan/chrono_name.h": "#include <vector>\n",
      "src/sched/head/head.cc": "#include <chrono>\n", "src/cache/radix_tree.h": "#include <filesystem>\n",
      "src/cache/store/file.h": "#include <filesystem>\n"},
     ["src/sched/scheduler/scheduler.cc", "src/sched/plan/request.h", "src/cache/radix_tree.h"]),
    ("steady-clock",
     {"src/comm/a.cc": "// system_clock\nauto t = std::chrono::system_clock::now();\n",
      "src/sched/head/a.cc": "auto t = std::chrono::steady_clock::now();\n",
      "src/server/a.cc": "auto t = std::chrono::system_clock::now();\n"},
     ["src/comm/a.cc:2"]),
    ("folders", {"src/a/x.cc": "", "src/b/c/x.cc": "", "src/b/x.md": ""}, ["src/b/"]),
    ("fragments",
     {"a.h": "/// Of a page.\nint a;\n/// Returns the pages\n/// of a request. Of what is left, none.\nint f();\n"
             "int b;  ///< That, too.\n/// Offers a page.\nint g();\n// Offers\n// of it.\nint x;  // of it\n// Of no matter.\n/// As the head does.\nint h();\n"
             "/// From any thread: ends.\nvoid i();\n/// Whether it ended.\nbool j();\nbool k;  ///< As a flag.\n"},
     ["a.h:1", "a.h:6", "a.h:12", "a.h:13", "a.h:15", "a.h:17"]),
    ("words",
     {"src/a.h": "int beside;  ///< beside it\nconst char* told = \"told // told\";\n/* one\n so many */\n"
                 "// Tells them apart, and is told.\n// It was learned.\n", "tests/a.h": "// told\n",
      "docs/a.md": "`beside`\nbeside\n", "docs/GLOSSARY.md": "beside\n", "bench/results/a.md": "beside\n"},
     ["src/a.h:1", "src/a.h:4", "src/a.h:5", "docs/a.md:2"]),
    ("identifiers",
     {"a.cc": "int kMostRows;  // kMostRows\nconst char* s = \"LeftRows\";\nPackedLhs left;\nLeftRows rows;\n"
              "run_elsewhere();\ntell_profile();\nint most_us, foremost_us;\nturned_away();\n"},
     ["a.cc:1", "a.cc:4", "a.cc:5", "a.cc:6", "a.cc:7"]),
    ("documents",
     {"docs/a.md": "Commit `12d377d`, not `1234567` or `deadbeef`.\n" + "word " * 41 + ".\n\n" + "word " * 40 + "\n* "
                   + "word " * 40 + "\n\n```\n" + "word " * 50 + "\n```\n| " + "word " * 50 + "|\n",
      "docs/b.md": "# " + "word " * 30 + "\n" + "word " * 30 + "\n" + "One two. " * 30 + "\n", "bench/results/a.md": "`12d377d`\n"},
     ["docs/a.md:1", "docs/a.md:1"]),
    ("quoted-names",
     {"docs/a.md": "# One two\n`src/a/b.cc`, `src/a/{b,c}.cc`, `src/a/*.cc`, `a/b`, `b.cc`, `d.cc`, `a/d`, `src/NAME/x`\n"
                   "`--flag N` `--none` `millrace:runs_total` `millrace:no_total` `OneTwo::call()` `OneTwo::zilch()`\n"
                   "[a](#one-two) [b](#three) [c](b.md) [d](../src/a/b.cc) [e](https://a.b/c)\n    run --zero\n"
                   "`./test --filter a` `./test --filter b/x` `./test --filter e2e/names` `./test --filter e2e/nothing`\n",
      "tests/a/meson.build": "test('a', x)", "tests/e2e/test_names.py": "",
      "src/a/b.cc": 'add("--flag", "--filter"); OneTwo call; "runs_total"'},
     ["docs/a.md:2"] * 3 + ["docs/a.md:3"] * 3 + ["docs/a.md:4"] * 2 + ["docs/a.md:5"] + ["docs/a.md:6"] * 2),
    ("test-names",
     {"tests/a/b.cc": 'TEST_CASE("a, b", "[c]") {\n}\nTEST_CASE("' + "x" * 30 + '"\n          "' + "x" * 31 + '") {\n}\n'
                      'TEMPLATE_TEST_CASE("fine (x) / y", "[a][b]", int) {\n}\nTEST_CASE(" a") {\n}\n',
      "tests/e2e/test_a.py": "def test_" + "x" * 55 + "(a):\n    pass\n\ndef test_" + "x" * 56 + "(a):\n    pass\n",
      "src/a.cc": 'TEST_CASE("a, b")'},
     ["tests/a/b.cc:1", "tests/a/b.cc:3", "tests/a/b.cc:8", "tests/e2e/test_a.py:4"]),
]
