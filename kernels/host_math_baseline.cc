#define Eigen RepriseEigenBaseline
#include "kernels/host_math_simd.h"

namespace reprise::kernels {
const HostMath kBaselineMath = kMath;
}  // namespace reprise::kernels
