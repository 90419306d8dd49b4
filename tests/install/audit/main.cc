// A program of somebody else's over rootdk::audit: links, and catches the library's errors.
#include <rootdk/audit.h>
#include <rootdk/error.h>

#include <string>

int main() {
  try {
    rootdk::audit::recognise(rootdk::checkpoint::Checkpoint::open("nowhere.safetensors"));
  } catch (const rootdk::Error&) {
    return rootdk::audit::families().size() > 10 ? 0 : 1;
  }
  return 1;
}
