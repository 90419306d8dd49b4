# How every target of this repository is compiled. Not for users: nothing here reaches who links rootdk.

if(ROOTDK_SANITIZE)
  add_compile_options(-fsanitize=${ROOTDK_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${ROOTDK_SANITIZE})
endif()

if(ROOTDK_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

function(rootdk_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wvla
    $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Woverloaded-virtual>)
endfunction()

# GCC 12 sees overlap where a literal and a string are joined (its bug 105329). For what is mostly text.
function(rootdk_no_restrict_warnings target)
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
endfunction()

# The checks for undefined behaviour double what GCC takes to compile. They stay out of what is mostly text, and out of
# the tests' own lines; what those call has them.
function(rootdk_few_checks target)
  if(ROOTDK_SANITIZE MATCHES "undefined")
    target_compile_options(${target} PRIVATE -fno-sanitize=undefined)
  endif()
endfunction()

# For the libraries. Kernels ask for FMA where they want it, through Highway; that the compiler adds none of its own
# keeps scalar code at the same bits under every compiler and instruction set.
function(rootdk_library_flags target)
  rootdk_warnings(${target})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE -ffp-contract=off)
  set_target_properties(${target} PROPERTIES
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)
endfunction()

# A shared library exports its API and nothing else: hidden visibility keeps our own symbols in, the version script the
# weak ones of std:: templates. Sanitizer runtimes are resolved in the executable, so only plain builds forbid undefined
# symbols.
function(rootdk_seal target)
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
    set(script ${PROJECT_SOURCE_DIR}/cmake/exports.map)
    target_link_options(${target} PRIVATE -Wl,--version-script=${script})
    set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${script})
    if(NOT ROOTDK_SANITIZE)
      target_link_options(${target} PRIVATE -Wl,-z,defs)
    endif()
  endif()
endfunction()
