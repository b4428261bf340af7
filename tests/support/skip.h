#pragma once

#include <catch2/catch.hpp>
#include <cstdio>

/// Ends the current test case as skipped. `./test` counts the printed lines and shows the reasons.
#define SKIP_TEST(reason)                                                                                \
  do {                                                                                                   \
    std::printf("[skipped] %s: %s\n", Catch::getResultCapture().getCurrentTestName().c_str(), (reason)); \
    std::fflush(stdout);                                                                                 \
    SUCCEED();                                                                                           \
    return;                                                                                              \
  } while (false)
