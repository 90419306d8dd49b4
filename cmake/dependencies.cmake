# What the libraries stand on; nothing is downloaded.
find_package(hwy CONFIG REQUIRED)
find_package(fmt CONFIG REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)

# Only rootdk::nn and rootdk::theory need Eigen: without it there is neither.
find_package(Eigen3 3.4 QUIET CONFIG)
foreach(component nn theory)
  string(TOUPPER ROOTDK_${component} option)
  file(GLOB component_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${component}/*.cc)
  if(PROJECT_IS_TOP_LEVEL AND Eigen3_FOUND AND component_sources)
    option(${option} "Build rootdk::${component}" ON)
  else()
    option(${option} "Build rootdk::${component}" OFF)
  endif()
  if(${option} AND NOT Eigen3_FOUND)
    message(FATAL_ERROR "${option} is on, but Eigen 3.4 was not found (Debian: libeigen3-dev)")
  endif()
endforeach()
