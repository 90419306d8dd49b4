// How far a request is, told to the page. It is stopped by ending the worker that it runs in, not from here.
#include "progress.h"

#include <emscripten.h>

#include <string_view>

EM_JS(void, rootdk_tell_progress, (double done), { Module["progress"](done); });

namespace rootdk::app {

void catch_interrupts() {}
bool interrupted() { return false; }

class Progress::Shown {};

Progress::Progress(std::string) {}
Progress::~Progress() = default;

lab::Watch Progress::watch() {
  return {[](double done, std::string_view) { rootdk_tell_progress(done); }, [] { return false; }};
}

}  // namespace rootdk::app
