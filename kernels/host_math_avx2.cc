#define Eigen RepriseEigenAvx2
#include "kernels/host_math_simd.h"

namespace reprise::kernels {
const HostMath kAvx2Math = kMath;
}  // namespace reprise::kernels
