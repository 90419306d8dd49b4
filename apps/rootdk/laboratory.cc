// Finds the page by where the command itself lies, so that a folder that was moved still has it.
#include "laboratory.h"

#include <filesystem>
#include <system_error>

#include "rootdk/report/html.h"
#include "text_file.h"

namespace rootdk::app {

std::string laboratory_page() {
  std::error_code none;
  const std::filesystem::path bin = std::filesystem::read_symlink("/proc/self/exe", none).parent_path();
  for (const char* place : {"../share/rootdk/rootdk.html", "../../site/rootdk.html"})
    if (!none && std::filesystem::exists(bin / place, none))
      if (std::string page = read_text_file(bin / place); report::is_laboratory(page)) return page;
  return {};
}

}  // namespace rootdk::app
