# What the libraries stand on; nothing is downloaded.
find_package(hwy CONFIG REQUIRED)
find_package(fmt CONFIG REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)

# Only rootdk::nn needs Eigen: without it there is none.
find_package(Eigen3 3.4 QUIET CONFIG)
file(GLOB nn_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/nn/*.cc)
if(PROJECT_IS_TOP_LEVEL AND Eigen3_FOUND AND nn_sources)
  option(ROOTDK_NN "Build rootdk::nn" ON)
else()
  option(ROOTDK_NN "Build rootdk::nn" OFF)
endif()
if(ROOTDK_NN AND NOT Eigen3_FOUND)
  message(FATAL_ERROR "ROOTDK_NN is on, but Eigen 3.4 was not found (Debian: libeigen3-dev)")
endif()
