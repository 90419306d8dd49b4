# What the libraries stand on; nothing is downloaded.
find_package(hwy CONFIG REQUIRED)
find_package(fmt CONFIG REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)

# A component is there where what it needs is, and where it has sources.
set(rootdk_components nn theory checkpoint audit lab report)  # each after those it stands on
function(rootdk_component name needs)  # CONDITION...
  string(TOUPPER ROOTDK_${name} option)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cc)
  if(${ARGN})
    set(found TRUE)
  else()
    set(found FALSE)
  endif()
  if(PROJECT_IS_TOP_LEVEL AND found AND sources)
    option(${option} "Build rootdk::${name}" ON)
  else()
    option(${option} "Build rootdk::${name}" OFF)
  endif()
  if(${option} AND NOT found)
    message(FATAL_ERROR "${option} is on, but it needs ${needs}")
  endif()
endfunction()

find_package(Eigen3 3.4 QUIET CONFIG)
find_package(nlohmann_json 3.11 QUIET CONFIG)
rootdk_component(nn "Eigen 3.4 (Debian: libeigen3-dev)" Eigen3_FOUND)
rootdk_component(theory "Eigen 3.4 (Debian: libeigen3-dev)" Eigen3_FOUND)
rootdk_component(checkpoint "nlohmann-json 3.11 (Debian: nlohmann-json3-dev)" nlohmann_json_FOUND)
rootdk_component(audit "ROOTDK_NN, ROOTDK_THEORY and ROOTDK_CHECKPOINT" ROOTDK_NN AND ROOTDK_THEORY AND ROOTDK_CHECKPOINT)
rootdk_component(lab "ROOTDK_NN, ROOTDK_THEORY and ROOTDK_CHECKPOINT" ROOTDK_NN AND ROOTDK_THEORY AND ROOTDK_CHECKPOINT)
rootdk_component(report "ROOTDK_LAB, ROOTDK_AUDIT and nlohmann-json 3.11 (Debian: nlohmann-json3-dev)" ROOTDK_LAB AND ROOTDK_AUDIT AND nlohmann_json_FOUND)
include(${PROJECT_SOURCE_DIR}/cmake/report_page.cmake)  # reports as HTML need D3 as well
if(ROOTDK_CHECKPOINT)
  find_package(ZLIB QUIET)  # for deflated .npz; without it those are refused
endif()

# The command says what the laboratory found, in tables and in JSON.
set(rootdk_command_wants)
if(ROOTDK_APPS)
  find_package(CLI11 QUIET CONFIG)
  if(NOT ROOTDK_REPORT)
    list(APPEND rootdk_command_wants rootdk::report)
  endif()
  if(NOT CLI11_FOUND)
    list(APPEND rootdk_command_wants "CLI11 (Debian: libcli11-dev)")
  endif()
  if(rootdk_command_wants)
    list(JOIN rootdk_command_wants ", " wants)
    message(STATUS "No rootdk command: it needs ${wants}")
  endif()
endif()
