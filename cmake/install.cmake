# Where everything goes, and how others find it: find_package(rootdk) or pkg-config.
include(CMakePackageConfigHelpers)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/rootdk)

# Only a static library passes its own dependencies on; a shared one has them inside.
get_target_property(type rootdk TYPE)
if(type STREQUAL "STATIC_LIBRARY")
  set(passes_on TRUE)
  set(pc_requires "libhwy fmt")
  set(pc_libs "${OpenMP_CXX_FLAGS} -lstdc++ -lm")
else()
  set(passes_on FALSE)
endif()

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/rootdk DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN nn EXCLUDE PATTERN theory EXCLUDE PATTERN theory.h EXCLUDE
  PATTERN report EXCLUDE)
install(FILES ${PROJECT_BINARY_DIR}/include/rootdk/version.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/rootdk)
install(TARGETS rootdk EXPORT rootdk-targets)
install(EXPORT rootdk-targets NAMESPACE rootdk:: DESTINATION ${package})

if(TARGET rootdk_nn)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/rootdk/nn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/rootdk
    FILES_MATCHING PATTERN "*.h")
  install(TARGETS rootdk_nn EXPORT rootdk-nn-targets)
  install(EXPORT rootdk-nn-targets NAMESPACE rootdk:: DESTINATION ${package})
endif()
if(TARGET rootdk_theory)
  install(FILES ${PROJECT_SOURCE_DIR}/include/rootdk/theory.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/rootdk)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/rootdk/theory DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/rootdk
    FILES_MATCHING PATTERN "*.h")
  install(TARGETS rootdk_theory EXPORT rootdk-theory-targets)
  install(EXPORT rootdk-theory-targets NAMESPACE rootdk:: DESTINATION ${package})
endif()
if(TARGET rootdk_report)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/rootdk/report DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/rootdk
    FILES_MATCHING PATTERN "*.h")
  install(TARGETS rootdk_report EXPORT rootdk-report-targets)
  install(EXPORT rootdk-report-targets NAMESPACE rootdk:: DESTINATION ${package})
endif()
if(TARGET rootdk_command)
  install(TARGETS rootdk_command)
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/rootdk-config.cmake.in
  ${PROJECT_BINARY_DIR}/rootdk-config.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/rootdk-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/rootdk-config.cmake ${PROJECT_BINARY_DIR}/rootdk-config-version.cmake
  DESTINATION ${package})

# pkg-config files name the prefix from where they lie, so that an installation can be moved.
file(RELATIVE_PATH pc_up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
foreach(module rootdk rootdk_nn rootdk_theory rootdk_report)
  if(TARGET ${module})
    configure_file(${PROJECT_SOURCE_DIR}/cmake/${module}.pc.in ${PROJECT_BINARY_DIR}/${module}.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/${module}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  endif()
endforeach()
