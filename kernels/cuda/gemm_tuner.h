// Measures which of cuBLASLt's kernels is quickest for each GEMM.
#ifndef REPRISE_KERNELS_CUDA_GEMM_TUNER_H_
#define REPRISE_KERNELS_CUDA_GEMM_TUNER_H_

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "kernels/cuda/gemm.h"

namespace reprise::kernels {

// For every product of gemm.first_choices(): runs the proposals on random operands of its size, in turns, and chooses
// the quickest; products of more than 0.1 ms keep the first, see gemm_tuner.cc. GELU in the product's kernel competes
// with a kernel of its own. Nothing else should run on the device. Takes memory meanwhile; a product for which there is
// too little keeps its first choice. Takes about 0.2 s for a product. `workspace` has the bytes of the keys.
absl::Status TuneGemms(CudaGemm& gemm, void* workspace, cudaStream_t stream);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_CUDA_GEMM_TUNER_H_
