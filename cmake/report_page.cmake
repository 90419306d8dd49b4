# The pages of report::html and report::audit_html: web/ and D3 become a C++ source each in the build directory. Without
# D3 the source holds no page, and report::html says so.

find_file(ROOTDK_D3 d3.min.js PATHS /usr/share/nodejs/d3/dist /usr/share/javascript/d3 NO_DEFAULT_PATH
  DOC "D3, embedded in HTML reports (Debian: node-d3)")
set(rootdk_page_script values.js rules.js chart.js heat.js formulas.js charts/histograms.js charts/explain.js
  charts/variance.js charts/phase.js
  charts/gradient.js charts/precision.js charts/init.js charts/bars.js charts/attend.js charts/sweep.js
  charts/train.js chapters.js page.js)

set(rootdk_audit_script values.js rules.js chart.js heat.js line_figure.js audit_view.js audit.js)

# NAME.html becomes SYMBOLBefore and SYMBOLAfter of report/page.h; STYLES and SCRIPTS are lists of files in web/.
function(rootdk_embed_page target name symbol styles scripts)
  set(web ${PROJECT_SOURCE_DIR}/web)
  set(source ${PROJECT_BINARY_DIR}/generated/${name}_page.cc)
  list(TRANSFORM scripts PREPEND ${web}/)
  list(TRANSFORM styles PREPEND ${web}/)
  set(d3)
  if(ROOTDK_D3)
    set(d3 ${ROOTDK_D3})
  else()
    message(STATUS "No HTML reports: they need D3 (Debian: node-d3)")
  endif()
  list(JOIN scripts "|" joined)
  list(JOIN styles "|" joined_styles)
  add_custom_command(OUTPUT ${source}
    COMMAND ${CMAKE_COMMAND} -D "web=${web}" -D "name=${name}" -D "symbol=${symbol}" -D "styles=${joined_styles}"
    -D "scripts=${joined}"
            -D "d3=${d3}" -D "out=${source}" -P ${PROJECT_SOURCE_DIR}/cmake/embed_page.cmake
    DEPENDS ${scripts} ${styles} ${web}/${name}.html ${web}/d3-notice.txt ${d3}
    ${PROJECT_SOURCE_DIR}/cmake/embed_page.cmake
    COMMENT "Embedding the page ${name}" VERBATIM)
  # ISO C++ promises 65536 characters
  set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS -Wno-overlength-strings)
  target_sources(${target} PRIVATE ${source})
endfunction()
