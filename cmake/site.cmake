# The page with the engine in it. Included by apps/web for the lists; run by `cmake -P` to write the pages:
# web: the folder of that name; d3: d3.min.js; worker, wasm: what runs in a worker; packed: the wasm, gzip and base64;
# out: a folder index.html has worker.js and rootdk.wasm beside it, rootdk.html has everything inside.

# The order in which they stand in the page: all in one function, so what a script uses at once must be above it.
set(rootdk_site_scripts values.js rules.js chart.js heat.js formulas.js charts/histograms.js charts/explain.js
  charts/variance.js charts/phase.js
  charts/gradient.js charts/precision.js charts/init.js charts/bars.js charts/attend.js charts/sweep.js
  charts/train.js charts/head_traces.js line_figure.js audit_view.js chapters.js
  site/engine.js site/npy.js site/save.js site/controls.js site/chart_choices.js site/live.js site/panels.js
  site/tour.js site/story/opening.js
  site/story/sums.js site/story/softmax.js
  site/story/gradients.js site/story/exponent.js site/story/wrong.js site/story/others.js site/story/trained.js
  site/story.js site/playground/figures.js site/playground.js site/phase.js
  site/own.js site/train.js site/npz.js site/audit_here.js site/app.js)
set(rootdk_site_samples trained untrained)  # checkpoints to try the audit on: web/site/sample-NAME.safetensors
set(rootdk_site_styles report.css audit.css site/site.css site/train.css)
if(NOT CMAKE_SCRIPT_MODE_FILE)
  return()
endif()

function(joined result)
  set(text "")
  foreach(name IN LISTS ARGN)
    file(READ ${web}/${name} one)
    string(APPEND text "${one}\n")
  endforeach()
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

joined(style ${rootdk_site_styles})
joined(script ${rootdk_site_scripts})
file(READ ${web}/d3-notice.txt notice)
file(READ ${d3} library)
file(READ ${worker} worker_text)
file(READ ${packed} packed_text)
file(READ ${web}/site/site.html page)
string(STRIP "${packed_text}" packed_text)
if("${worker_text}" MATCHES "</script|<!--")
  message(FATAL_ERROR "${worker}: would end the element that it is put into")
endif()

string(CONCAT csp "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
  "script-src 'unsafe-inline' 'wasm-unsafe-eval' blob:; worker-src blob:")
set(beside "")
set(inside "<script type=\"text/plain\" id=\"engine-worker\">\n${worker_text}\n</script>
<script type=\"text/plain\" id=\"engine-wasm\">${packed_text}</script>")
foreach(name IN LISTS rootdk_site_samples)
  set(sample ${web}/site/sample-${name}.safetensors)
  execute_process(COMMAND base64 -w 0 ${sample} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  string(APPEND inside "\n<script type=\"text/plain\" id=\"sample-${name}\">${text}</script>")
  file(COPY_FILE ${sample} ${out}/sample-${name}.safetensors)
endforeach()

# Each part goes to its place in one pass: what a part contains is never taken for a place.
function(write_page name policy engine)
  set(left "${page}")
  set(text "")
  foreach(place CSP STYLE ENGINE NOTICE D3 SCRIPT)
    string(FIND "${left}" "@${place}@" at)
    if(at EQUAL -1)
      message(FATAL_ERROR "site.html: has no @${place}@ after those before it")
    endif()
    string(SUBSTRING "${left}" 0 ${at} before)
    string(LENGTH "@${place}@" length)
    math(EXPR at "${at} + ${length}")
    string(SUBSTRING "${left}" ${at} -1 left)
    if(place STREQUAL CSP)
      set(part "${policy}")
    elseif(place STREQUAL STYLE)
      set(part "${style}")
    elseif(place STREQUAL ENGINE)
      set(part "${engine}")
    elseif(place STREQUAL NOTICE)
      set(part "${notice}")
    elseif(place STREQUAL D3)
      set(part "${library}")
    else()
      set(part "${script}")
    endif()
    string(APPEND text "${before}${part}")
  endforeach()
  file(WRITE ${out}/${name} "${text}${left}")
endfunction()

write_page(index.html "${csp} 'self'; connect-src 'self'" "${beside}")
write_page(rootdk.html "${csp}" "${inside}")
file(COPY_FILE ${worker} ${out}/worker.js)
file(COPY_FILE ${wasm} ${out}/rootdk.wasm)
