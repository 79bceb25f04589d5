#define Eigen RepriseEigenAvx512
#include "kernels/host_math_simd.h"

namespace reprise::kernels {
const HostMath kAvx512Math = kMath;
}  // namespace reprise::kernels
