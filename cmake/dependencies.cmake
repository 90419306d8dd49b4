# What the libraries stand on; nothing is downloaded.
include(${PROJECT_SOURCE_DIR}/cmake/report_page.cmake)  # finds D3, for reports as HTML
find_package(hwy QUIET CONFIG)
find_package(fmt QUIET CONFIG)
find_package(OpenMP QUIET COMPONENTS CXX)
find_package(Eigen3 3.4 QUIET CONFIG)
find_package(nlohmann_json 3.11 QUIET CONFIG)
find_package(ZLIB QUIET)  # for deflated .npz; without it those are refused
find_package(CLI11 QUIET CONFIG)
set(MPI_CXX_SKIP_MPICXX TRUE)  # its C interface is all we use
find_package(MPI QUIET COMPONENTS CXX)

# What is missing is said at once and with the line that mends it, not one by one. (packaging/backend.py reads the
# Debian names, too.)
set(rootdk_debian_names hwy=libhwy-dev fmt=libfmt-dev OpenMP_CXX=g++ Eigen3=libeigen3-dev
  nlohmann_json=nlohmann-json3-dev ZLIB=zlib1g-dev CLI11=libcli11-dev ROOTDK_D3=node-d3)
function(rootdk_refuse_to_build why)
  set(lacks)
  foreach(pair IN LISTS rootdk_debian_names)
    string(REGEX MATCH "^([^=]+)=(.+)$" pair ${pair})
    set(name ${CMAKE_MATCH_1})
    set(package ${CMAKE_MATCH_2})
    if(NOT ${name}_FOUND AND NOT (name STREQUAL "ROOTDK_D3" AND ROOTDK_D3))
      list(APPEND lacks ${package})
    endif()
  endforeach()
  list(JOIN lacks " " lacks)
  if(DEFINED ENV{ROOTDK_LACKS_FILE})
    file(WRITE $ENV{ROOTDK_LACKS_FILE} "${lacks}")
  endif()
  message(FATAL_ERROR "${why}. On Debian: apt-get install ${lacks}")
endfunction()
if(NOT (hwy_FOUND AND fmt_FOUND AND OpenMP_CXX_FOUND))
  rootdk_refuse_to_build("rootdk needs Highway, fmt and OpenMP")
endif()

# A component is there where what it needs is, and where it has sources.
set(rootdk_components distributed mpi nn theory checkpoint audit lab report)  # each after those it stands on
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

rootdk_component(distributed "nothing" TRUE)
rootdk_component(mpi "ROOTDK_DISTRIBUTED and MPI (Debian: libopenmpi-dev)" ROOTDK_DISTRIBUTED AND MPI_CXX_FOUND)
rootdk_component(nn "Eigen 3.4 (Debian: libeigen3-dev)" Eigen3_FOUND)
rootdk_component(theory "Eigen 3.4 (Debian: libeigen3-dev)" Eigen3_FOUND)
rootdk_component(checkpoint "nlohmann-json 3.11 (Debian: nlohmann-json3-dev)" nlohmann_json_FOUND)
rootdk_component(audit "ROOTDK_NN, ROOTDK_THEORY and ROOTDK_CHECKPOINT"
  ROOTDK_NN AND ROOTDK_THEORY AND ROOTDK_CHECKPOINT)
rootdk_component(lab "ROOTDK_NN, ROOTDK_THEORY and ROOTDK_CHECKPOINT" ROOTDK_NN AND ROOTDK_THEORY AND ROOTDK_CHECKPOINT)
rootdk_component(report "ROOTDK_LAB, ROOTDK_AUDIT and nlohmann-json 3.11 (Debian: nlohmann-json3-dev)"
  ROOTDK_LAB AND ROOTDK_AUDIT AND nlohmann_json_FOUND)

# The command says what the laboratory found, in tables and in JSON.
set(rootdk_command_wants)
if(ROOTDK_APPS)
  if(NOT ROOTDK_REPORT)
    list(APPEND rootdk_command_wants rootdk::report)
  endif()
  if(NOT ROOTDK_DISTRIBUTED)
    list(APPEND rootdk_command_wants rootdk::distributed)
  endif()
  if(NOT CLI11_FOUND)
    list(APPEND rootdk_command_wants "CLI11 (Debian: libcli11-dev)")
  endif()
  if(rootdk_command_wants)
    list(JOIN rootdk_command_wants ", " wants)
    message(STATUS "No rootdk command: it needs ${wants}")
  endif()
endif()
