# A script, for cmake -P: writes `out`, a C++ source with the page around the results. `d3` may be empty: then there is
# no page. The parts go into raw string literals as they are; @NAME@ in the page is where each goes. `name` is the
# page's, `symbol` what it is called in C++.

set(before "")
set(after "")
if(d3)
  file(READ ${web}/${name}.html page)
  set(style "")
  string(REPLACE "|" ";" styles "${styles}")
  foreach(path IN LISTS styles)
    file(READ ${path} one)
    string(APPEND style "${one}\n")
  endforeach()
  file(READ ${web}/d3-notice.txt notice)
  file(READ ${d3} library)
  set(script "")
  string(REPLACE "|" ";" scripts "${scripts}")
  foreach(path IN LISTS scripts)
    file(READ ${path} one)
    string(APPEND script "${one}\n")
  endforeach()
  # The longest last, and none of them is looked into again: what a part contains is never taken for a place.
  string(FIND "${page}" "@RESULTS@" middle)
  string(SUBSTRING "${page}" 0 ${middle} before)
  math(EXPR middle "${middle} + 9")
  string(SUBSTRING "${page}" ${middle} -1 after)
  string(REPLACE "@STYLE@" "${style}" before "${before}")
  string(FIND "${after}" "@SCRIPT@" place)
  string(SUBSTRING "${after}" 0 ${place} head)
  math(EXPR place "${place} + 8")
  string(SUBSTRING "${after}" ${place} -1 tail)
  string(REPLACE "@NOTICE@" "${notice}" head "${head}")
  string(FIND "${head}" "@D3@" place)
  string(SUBSTRING "${head}" 0 ${place} start)
  math(EXPR place "${place} + 4")
  string(SUBSTRING "${head}" ${place} -1 end)
  set(after "${start}${library}${end}${script}${tail}")
endif()

file(WRITE ${out}
  "// Made from web/ by cmake/embed_page.cmake.\n#include \"report/page.h\"\n\nnamespace rootdk::report {\n\n"
  "const std::string_view ${symbol}Before = R\"__page__(" "${before}" ")__page__\";\n"
  "const std::string_view ${symbol}After = R\"__page__(" "${after}" ")__page__\";\n\n}  // namespace rootdk::report\n")
