// Measures which of cuBLASLt's kernels is quickest for each matrix product.
#ifndef REPRISE_KERNELS_CUDA_GEMM_TUNER_H_
#define REPRISE_KERNELS_CUDA_GEMM_TUNER_H_

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "kernels/cuda/gemm.h"

namespace reprise::kernels {

// For every product of gemm.first_choices(): runs the proposals on random operands of its size, and chooses the one
// that is quickest when it runs for long. GELU in the product's kernel competes with a kernel of its own. Nothing else
// should run on the device. Takes memory meanwhile; a product for which there is too little keeps its first choice.
// Takes up to two seconds for a product, or three with GELU. `workspace` has the bytes of the keys.
absl::Status TuneGemms(CudaGemm& gemm, void* workspace, cudaStream_t stream);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_CUDA_GEMM_TUNER_H_
