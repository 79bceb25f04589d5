# Builds and runs the consumer against this project, found in one of three ways; or only configures this project.
# find_package: installed into a prefix of its own. What cannot be had must be refused by a sentence: components that do
#   not exist, or that it was built without, and reprise::cuda where it was not asked for.
# shared: as find_package, with shared libraries, built here without CUDA, unoptimised.
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

# Configuring the consumer with these arguments fails, and says so.
function(expect_refusal sentence)
  execute_process(COMMAND ${configure} ${ARGN} RESULT_VARIABLE result ERROR_VARIABLE errors OUTPUT_QUIET)
  string(REGEX REPLACE "[ \n]+" " " errors "${errors}")
  string(FIND "${errors}" "${sentence}" found)
  if(result EQUAL 0 OR found EQUAL -1)
    message(FATAL_ERROR "Configuring with ${ARGN} must fail with \"${sentence}\"; it gave ${result}: ${errors}")
  endif()
  file(REMOVE_RECURSE ${build})
endfunction()

if(WAY STREQUAL "add_subdirectory")
  list(APPEND configure -DCONSUMER_SUBDIRECTORY=${SOURCE_DIR})
else()
  if(WAY STREQUAL "shared")
    set(BUILD_DIR ${WORK_DIR}/reprise)
    set(HAS_CUDA OFF)
    string(TOUPPER ${CONFIG} upper_config)
    run(${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${BUILD_DIR} -G ${GENERATOR} -DCMAKE_BUILD_TYPE=${CONFIG}
      -DCMAKE_CXX_FLAGS_${upper_config}=-O0
      -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} -DBUILD_SHARED_LIBS=ON -DREPRISE_CUDA=OFF
      -DREPRISE_BUILD_TESTS=OFF -DREPRISE_BUILD_BENCH=OFF -DREPRISE_BUILD_EXAMPLES=OFF)
    run(${CMAKE_COMMAND} --build ${BUILD_DIR} --parallel 2)
  endif()
  file(REMOVE_RECURSE ${WORK_DIR}/prefix ${build})
  run(${CMAKE_COMMAND} --install ${BUILD_DIR} --config ${CONFIG} --prefix ${WORK_DIR}/prefix)
  list(APPEND configure -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix)
  if(EXISTS ${BUILD_DIR}/bin/reprise_plan)
    run(${WORK_DIR}/prefix/bin/reprise_plan --stack=2 --param_shape=64x64)
  endif()

  expect_refusal("There is no component foo: reprise has core, kernels, graph, cuda." -DCONSUMER_COMPONENTS=foo)
  set(components core kernels graph)
  if(HAS_CUDA)
    expect_refusal("reprise::cuda, which find_package(reprise) gives only for COMPONENTS cuda" -DCONSUMER_LINKS_CUDA=ON)
    file(WRITE ${WORK_DIR}/old_nccl/include/nccl.h "#define NCCL_MAJOR 2\n#define NCCL_MINOR 18\n#define NCCL_PATCH 3\n")
    file(WRITE ${WORK_DIR}/old_nccl/lib/libnccl.so "")
    expect_refusal("Found unsuitable version \"2.18.3\", but required is at least \"2.28\"" -DCONSUMER_COMPONENTS=cuda
      -DNCCL_ROOT=${WORK_DIR}/old_nccl)
    list(APPEND components cuda)
  else()
    expect_refusal("Component cuda is missing: reprise was built without CUDA." -DCONSUMER_COMPONENTS=cuda)
    expect_refusal("reprise::cuda, which find_package(reprise) gives only for COMPONENTS cuda, and this package was built without CUDA"
      -DCONSUMER_LINKS_CUDA=ON)
  endif()
  list(JOIN components "," components)
  list(APPEND configure -DCONSUMER_COMPONENTS=${components})
endif()

run(${configure})
run(${CMAKE_COMMAND} --build ${build} --target consumer --parallel 2)
run(${build}/consumer)
