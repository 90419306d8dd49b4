# From a checkout, as an overlay port: vcpkg install rootdk --overlay-ports=packaging/vcpkg. A port of the registry gets
# its sources by vcpkg_from_github instead (docs/releasing.md).
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if("lab" IN_LIST FEATURES)
  set(components ON)
else()
  set(components OFF)
endif()
set(options)
foreach(component NN THEORY CHECKPOINT AUDIT LAB REPORT)
  list(APPEND options -DROOTDK_${component}=${components})
endforeach()

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS ${options} -DROOTDK_TESTS=OFF -DROOTDK_EXAMPLES=OFF -DROOTDK_APPS=OFF -DROOTDK_CUDA=OFF
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/rootdk)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
