// The page with the engine in it, as ./run site makes it, where this command can find it.
#pragma once

#include <string>

namespace rootdk::app {

/// Its text: share/rootdk/rootdk.html where the command is installed, build/site/rootdk.html in a checkout. Empty if
/// there is none, or one of another version.
std::string laboratory_page();

}  // namespace rootdk::app
