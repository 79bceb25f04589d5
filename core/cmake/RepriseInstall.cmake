# Install rules: libraries, public headers, the tool reprise_plan, and the CMake package that find_package(reprise CONFIG)
# finds.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/reprise)
get_property(libraries GLOBAL PROPERTY REPRISE_LIBRARIES)
install(TARGETS ${libraries} EXPORT repriseTargets FILE_SET HEADERS)
if(TARGET reprise_plan)
  file(RELATIVE_PATH libraries_from_tool /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
  set_target_properties(reprise_plan PROPERTIES INSTALL_RPATH "$ORIGIN/${libraries_from_tool}")
  install(TARGETS reprise_plan)
endif()
install(EXPORT repriseTargets NAMESPACE reprise:: DESTINATION ${package_dir})

configure_package_config_file(core/cmake/repriseConfig.cmake.in repriseConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(repriseConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/repriseConfig.cmake ${PROJECT_BINARY_DIR}/repriseConfigVersion.cmake
        DESTINATION ${package_dir})
if(REPRISE_HAS_CUDA)
  install(FILES core/cmake/FindNCCL.cmake DESTINATION ${package_dir})
endif()
