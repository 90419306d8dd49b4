# Where everything goes, and how others find it: find_package(rootdk) or pkg-config.
include(CMakePackageConfigHelpers)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/rootdk)

# Only a static library passes its own dependencies on; a shared one has them inside.
get_target_property(type rootdk TYPE)
if(type STREQUAL "STATIC_LIBRARY")
  set(passes_on TRUE)
  if(ROOTDK_CHECKPOINT AND ZLIB_FOUND)
    set(passes_on_zlib TRUE)
    set(pc_checkpoint_libs "-lz")
  endif()
  if(ROOTDK_MPI)
    set(passes_on_mpi TRUE)
  endif()
  set(pc_requires "libhwy fmt")
  set(pc_libs "${OpenMP_CXX_FLAGS} -lstdc++ -lm")
else()
  set(passes_on FALSE)
endif()

set(theirs)  # headers that come with their component
foreach(component IN LISTS rootdk_components)
  list(APPEND theirs PATTERN include/rootdk/${component} EXCLUDE PATTERN include/rootdk/${component}.h EXCLUDE)
endforeach()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/rootdk DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN "*.def" ${theirs})
install(FILES ${PROJECT_BINARY_DIR}/include/rootdk/version.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/rootdk)
install(TARGETS rootdk EXPORT rootdk-targets)
install(EXPORT rootdk-targets NAMESPACE rootdk:: DESTINATION ${package})
if(TARGET rootdk_cuda)
  install(TARGETS rootdk_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

foreach(component IN LISTS rootdk_components)
  if(NOT TARGET rootdk_${component})
    continue()
  endif()
  if(EXISTS ${PROJECT_SOURCE_DIR}/include/rootdk/${component}.h)
    install(FILES ${PROJECT_SOURCE_DIR}/include/rootdk/${component}.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/rootdk)
  endif()
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/rootdk/${component} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/rootdk
    FILES_MATCHING PATTERN "*.h")
  install(TARGETS rootdk_${component} EXPORT rootdk-${component}-targets)
  install(EXPORT rootdk-${component}-targets NAMESPACE rootdk:: DESTINATION ${package})
endforeach()
if(TARGET rootdk_command)
  install(TARGETS rootdk_command)
  # With the engine in it, if ./run site has made it: `rootdk tour` puts its results there.
  install(FILES ${PROJECT_SOURCE_DIR}/build/site/rootdk.html DESTINATION ${CMAKE_INSTALL_DATADIR}/rootdk OPTIONAL)
endif()

# All that `cmake --install` wants, and no tests.
add_custom_target(rootdk_installed)
list(TRANSFORM rootdk_components PREPEND rootdk_ OUTPUT_VARIABLE wanted)
foreach(target rootdk rootdk_cuda rootdk_command ${wanted})
  if(TARGET ${target})
    add_dependencies(rootdk_installed ${target})
  endif()
endforeach()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/rootdk-config.cmake.in
  ${PROJECT_BINARY_DIR}/rootdk-config.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/rootdk-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/rootdk-config.cmake ${PROJECT_BINARY_DIR}/rootdk-config-version.cmake
  DESTINATION ${package})

# pkg-config files name the prefix from where they lie, so that an installation can be moved.
file(RELATIVE_PATH pc_up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
list(TRANSFORM rootdk_components PREPEND rootdk_ OUTPUT_VARIABLE modules)
foreach(module rootdk ${modules})
  if(TARGET ${module})
    configure_file(${PROJECT_SOURCE_DIR}/cmake/${module}.pc.in ${PROJECT_BINARY_DIR}/${module}.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/${module}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  endif()
endforeach()
