# Builds and runs the consumer against this project, found in one of two ways; or only configures this project.
# find_package: installed into a prefix of its own; built without CUDA, it must refuse the component cuda by name.
# add_subdirectory: as a part of the consumer, unoptimised and only what its executable needs, to be quick.
# install_preset: the preset must need neither GoogleTest nor Google Benchmark.
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

if(WAY STREQUAL "install_preset")
  run(${CMAKE_COMMAND} -S ${SOURCE_DIR} --preset install -B ${WORK_DIR} -DCMAKE_CXX_COMPILER=${COMPILER}
    -DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON -DCMAKE_DISABLE_FIND_PACKAGE_benchmark=ON)
  return()
endif()

set(build ${WORK_DIR}/build)
set(configure ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${build} -G ${GENERATOR}
  -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})

if(WAY STREQUAL "find_package")
  file(REMOVE_RECURSE ${WORK_DIR})
  run(${CMAKE_COMMAND} --install ${BUILD_DIR} --config ${CONFIG} --prefix ${WORK_DIR}/prefix)
  list(APPEND configure -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix)
  if(EXISTS ${BUILD_DIR}/bin/reprise_plan)
    run(${WORK_DIR}/prefix/bin/reprise_plan --stack=2 --param_shape=64x64)
  endif()

  set(components core kernels graph)
  if(HAS_CUDA)
    list(APPEND components cuda)
  else()
    execute_process(COMMAND ${configure} -DCONSUMER_COMPONENTS=cuda RESULT_VARIABLE result ERROR_VARIABLE errors)
    string(REGEX REPLACE "[ \n]+" " " errors "${errors}")
    if(result EQUAL 0 OR NOT errors MATCHES "Component cuda is missing: reprise was built without CUDA\\.")
      message(FATAL_ERROR "Asking for the component cuda must fail with a sentence; it gave ${result}: ${errors}")
    endif()
    file(REMOVE_RECURSE ${build})
  endif()
  list(APPEND configure "-DCONSUMER_COMPONENTS=${components}")
else()
  list(APPEND configure -DCONSUMER_SUBDIRECTORY=${SOURCE_DIR})
endif()

run(${configure})
run(${CMAKE_COMMAND} --build ${build} --target consumer --parallel 2)
run(${build}/consumer)
