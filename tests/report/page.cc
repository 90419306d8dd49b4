// A filter: results.json in, the page out. For page_test.py.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>

#include "rootdk/error.h"
#include "rootdk/report/html.h"

int main() {
  const std::string json{std::istreambuf_iterator<char>(std::cin), {}};
  try {
    std::cout << rootdk::report::html(json);
  } catch (const rootdk::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
