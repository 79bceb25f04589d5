#include "kernels/host_math.h"

namespace reprise::kernels {

const HostMath& Math() {
#ifdef REPRISE_KERNELS_X86
  static const HostMath& math = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                                        __builtin_cpu_supports("fma")
                                    ? kAvx512Math
                                : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? kAvx2Math
                                                                                                  : kBaselineMath;
  return math;
#else
  return kBaselineMath;
#endif
}

}  // namespace reprise::kernels
