# How targets of this project are declared. No flag is global, so that an embedding project's targets stay as they are.

# reprise_library(NAME core SRCS a.cc ... [DEPS absl::status ...] [PRIVATE_DEPS ...] [CUDA]): the library reprise::core,
# shared if BUILD_SHARED_LIBS is set. A header is public exactly when it lies in include/; sources name private headers by their path from the
# root. In a folder with two libraries, headers named cuda_* are those of the one marked CUDA. A private dependency that
# consumers need not have is given as $<BUILD_INTERFACE:...>. Names in anonymous namespaces are unique in a library: presets
# with sanitizers compile several sources as one (CMAKE_UNITY_BUILD), and .ci/lint reads them so.
function(reprise_library)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "CUDA" "NAME" "SRCS;DEPS;PRIVATE_DEPS")
  set(target reprise_${ARG_NAME})
  add_library(${target} ${ARG_SRCS})
  add_library(reprise::${ARG_NAME} ALIAS ${target})
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/include/*.h)
  if(ARG_CUDA)
    list(FILTER headers INCLUDE REGEX "/cuda_[^/]*$")
  else()
    list(FILTER headers EXCLUDE REGEX "/cuda_[^/]*$")
  endif()
  if(headers)
    target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS include FILES ${headers})
  endif()
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${ARG_NAME} POSITION_INDEPENDENT_CODE ON DEFINE_SYMBOL ""
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} INSTALL_RPATH "$ORIGIN")
  reprise_warnings(${target})
  set_property(GLOBAL APPEND PROPERTY REPRISE_LIBRARIES ${target})
endfunction()

# CMake 3.25 has no C++20 for the CUDA language of nvcc 13, hence its -std. GCC takes the sources of a unity build for
# headers, in which types of anonymous namespaces would be a mistake.
function(reprise_warnings target)
  set(warnings -Wall -Wextra $<$<BOOL:${REPRISE_WERROR}>:-Werror>
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>>:-Wno-subobject-linkage>)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:${warnings}>
    "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr;-Xcompiler=-Wall$<$<BOOL:${REPRISE_WERROR}>:;-Werror=all-warnings>>")
endfunction()

# reprise_executable(NAME reprise_plan SRCS ... [DEPS ...]): an executable in <build>/bin.
function(reprise_executable)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "" "NAME" "SRCS;DEPS")
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS})
  target_include_directories(${ARG_NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_features(${ARG_NAME} PRIVATE cxx_std_20)
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  reprise_warnings(${ARG_NAME})
endfunction()

# For code of tests: little optimisation, and the headers of GoogleTest and Abseil compiled once, since compiling tests is
# most of what CI does. CMAKE_DISABLE_PRECOMPILE_HEADERS shows whether each file includes what it uses. Presets with
# sanitizers optimise libraries, but not this: model_test.cc takes 8 s of CPU time there instead of 17 to 21 s. Nor do their
# unity builds help here, where headers are precompiled and names repeat.
function(reprise_fast_compilation target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1> $<$<CONFIG:Debug>:-O0>)
  target_link_libraries(${target} PRIVATE GTest::gmock)
  target_precompile_headers(${target} REUSE_FROM reprise_testing)
  set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
endfunction()

# reprise_test(NAME planner_test SRCS ... [DEPS ...] [LABEL unit] [TIMEOUT 300]): a GoogleTest executable that is one
# ctest test, labelled with LABEL and with its folder's name, built by tests_<folder> too. It runs in the project's root.
# A test that skips itself is reported as skipped, not as passed.
function(reprise_test)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "" "NAME;LABEL;TIMEOUT" "SRCS;DEPS")
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME folder)
  reprise_executable(NAME ${ARG_NAME} SRCS ${ARG_SRCS} DEPS ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  reprise_fast_compilation(${ARG_NAME})
  add_dependencies(tests_${folder} ${ARG_NAME})
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  # GoogleTest lists skipped tests last only if none failed: ctest looks at this expression before the exit code.
  set_tests_properties(${ARG_NAME} PROPERTIES
    LABELS "${ARG_LABEL};${folder}" TIMEOUT ${ARG_TIMEOUT} SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\] [^\n]*\n*$")
endfunction()

# reprise_starts_threads(parallel_test ...): tests of this folder for a thread sanitizer: labelled threads, built by
# tests_threads.
function(reprise_starts_threads)
  foreach(test IN LISTS ARGN)
    set_property(TEST ${test} APPEND PROPERTY LABELS threads)
    add_dependencies(tests_threads ${test})
  endforeach()
endfunction()

# reprise_gpu_test(NAME cuda_session_test SRCS ... [DEPS ...] [RANKS 1 2] [HOSTS]): a reprise_test on devices for each
# number of ranks, one process each (see tests/testing/gpu_main.cc): cuda_session_test, labelled gpu, for one and
# cuda_session_test_2_ranks, labelled multi_gpu, for two. With HOSTS also cuda_session_test_2x2_hosts, on two hosts of two
# ranks, as one GPU can stand for them. Such tests run one at a time.
function(reprise_gpu_test)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "HOSTS" "NAME" "SRCS;DEPS;RANKS")
  if(NOT ARG_RANKS)
    set(ARG_RANKS 1)
  endif()
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME folder)
  reprise_executable(NAME ${ARG_NAME} SRCS ${ARG_SRCS} ${PROJECT_SOURCE_DIR}/tests/testing/gpu_main.cc
    DEPS ${ARG_DEPS} reprise_cuda GTest::gmock)
  reprise_fast_compilation(${ARG_NAME})
  add_dependencies(tests_${folder} ${ARG_NAME})
  if(ARG_HOSTS)
    list(APPEND ARG_RANKS 2x2)
  endif()
  foreach(ranks IN LISTS ARG_RANKS)
    set(test ${ARG_NAME})
    set(label gpu)
    set(arguments --ranks=${ranks})
    if(ranks STREQUAL 2x2)
      string(APPEND test _2x2_hosts)
      set(label multi_gpu)
      set(arguments --ranks=4 --hosts=2)
    elseif(ranks GREATER 1)
      string(APPEND test _${ranks}_ranks)
      set(label multi_gpu)
    endif()
    add_test(NAME ${test} COMMAND ${ARG_NAME} ${arguments} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${test} PROPERTIES RESOURCE_LOCK gpu TIMEOUT 600
      LABELS "${label};${folder}" SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\] [^\n]*\n*$")
  endforeach()
endfunction()

# reprise_process_test(NAME ranks_differ_test RANKS 2 3 SRCS ... [DEPS ...]): a reprise_test whose ranks are processes on the
# host (see tests/testing/process_main.cc), for each number of ranks: ranks_differ_test_2_ranks and so on, labelled unit.
function(reprise_process_test)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "" "NAME" "SRCS;DEPS;RANKS")
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME folder)
  reprise_executable(NAME ${ARG_NAME} SRCS ${ARG_SRCS} ${PROJECT_SOURCE_DIR}/tests/testing/process_main.cc
    DEPS ${ARG_DEPS} reprise_process_world GTest::gmock)
  reprise_fast_compilation(${ARG_NAME})
  add_dependencies(tests_${folder} ${ARG_NAME})
  foreach(ranks IN LISTS ARG_RANKS)
    add_test(NAME ${ARG_NAME}_${ranks}_ranks COMMAND ${ARG_NAME} --ranks=${ranks}
      WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${ARG_NAME}_${ranks}_ranks PROPERTIES LABELS "unit;${folder}" TIMEOUT 300)
  endforeach()
endfunction()

# reprise_benchmark(NAME plan_bench SMOKE_FILTER regex SRCS ... [DEPS ...]): a Google Benchmark executable; a source holds
# its main. The benchmarks that SMOKE_FILTER matches also run, briefly, as a ctest test labelled bench: it checks that they
# run and are right.
function(reprise_benchmark)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "" "NAME;SMOKE_FILTER" "SRCS;DEPS")
  reprise_executable(NAME ${ARG_NAME} SRCS ${ARG_SRCS} DEPS ${ARG_DEPS} benchmark::benchmark)
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME} --benchmark_min_time=0.01 --benchmark_filter=${ARG_SMOKE_FILTER})
  # A benchmark that reports an error still exits with zero, and so does a filter that matches nothing.
  set_tests_properties(${ARG_NAME} PROPERTIES
    LABELS bench TIMEOUT 120 FAIL_REGULAR_EXPRESSION "ERROR OCCURRED;Failed to match any benchmarks")
endfunction()
