# Decides whether reprise::cuda is built, and sets REPRISE_HAS_CUDA. REPRISE_CUDA is ON, OFF or AUTO: ON if the CUDA
# toolkit and NCCL are here.
set(REPRISE_CUDA AUTO CACHE STRING "Build reprise::cuda: ON, OFF or AUTO")
set_property(CACHE REPRISE_CUDA PROPERTY STRINGS AUTO ON OFF)

# The oldest that do; an installed package asks for the same.
set(REPRISE_CUDA_TOOLKIT_VERSION 13.0)
set(REPRISE_NCCL_VERSION 2.28)

set(REPRISE_HAS_CUDA OFF)
if(REPRISE_CUDA)
  set(required)
  if(NOT REPRISE_CUDA STREQUAL AUTO)
    set(required REQUIRED)
  endif()
  find_package(CUDAToolkit ${REPRISE_CUDA_TOOLKIT_VERSION} ${required})
  if(CUDAToolkit_FOUND)
    find_package(NCCL ${REPRISE_NCCL_VERSION} ${required})
  endif()
  if(CUDAToolkit_FOUND AND NCCL_FOUND)
    set(REPRISE_HAS_CUDA ON)
    if(NOT CMAKE_CUDA_COMPILER)
      set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
    endif()
    # Machine code for Hopper, where all was measured, and its PTX, which newer devices compile when a program starts.
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 90)
    endif()
    enable_language(CUDA)
  endif()
endif()
message(STATUS "reprise::cuda is built: ${REPRISE_HAS_CUDA}")
