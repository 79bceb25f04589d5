// The sum of a gradient's parts, into the accumulator, and the squares of what it then holds.
#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/elements.cuh"
#include "reprise/core/norm_ranges.h"

namespace reprise::kernels {
namespace {

// One block fills a multiprocessor. On an H200, of 67 M elements in two bf16 parts: 0.20 ms by the whole GPU, as quick
// as a copy, and 1.2 ms by 8 blocks (665 GB/s; 780 of 268 M elements, whose ranges are longer).
constexpr int kThreads = 512;
// Packs of each of two parts that a thread has in flight; half as many where elements are twice as long.
constexpr int kPacks = 8;
// Elements of a pack: 16 bytes of the accumulator.
constexpr int kPack = 4;
static_assert(kNormTile == int64_t{kThreads} * kPacks * kPack);

// Beside GEMMs. On an H200, with a simpler kernel of which 8 blocks took 940 GB/s: what 67 M elements in two
// bf16 parts add to four GEMMs of 3.45 ms that repeat: 65 us with 8 blocks, 193 with 16, 237 with 4 (they last into
// the next GEMM), 163 with 132, and 132 with the whole GPU; and 134 M elements to two GEMMs of 13.3 ms: 219 with
// 8 blocks, 391 with the whole GPU. This one with 8 blocks adds 65 us to the GEMM beside it in step_bench's mlp4.
constexpr int kBesideBlocks = 8;
// From this many elements on. At 67 M few blocks win, see above; at 4 M they lose, 53 us against the whole GPU's 12.
// This is halfway, in ratio.
constexpr int64_t kBesideElements = int64_t{16} << 20;

// Segments that one launch takes.
constexpr int kMaxSegments = 64;
struct LaunchSegments {
  int count;
  int64_t first[kMaxSegments];
  int64_t end[kMaxSegments];
};

template <class W>
struct Arguments {
  // The n-th part in order.
  __device__ const W* PartAt(int n) const {
    if (n == own_place) return own;
    return parts + (own_place >= 0 && n > own_place ? n - 1 : n) * elements;
  }

  const ControlBlock* control;
  int position;
  const W* parts;
  const W* own;
  int own_place;  // of `own` among all parts; -1 without it
  int num_parts;  // all
  int64_t elements;
  float* accumulator;
  double* norm_partials;
  int64_t range_elements;
  // Elements [begin, end), with all their segments. Launches follow one another: a range that began before `begin` has
  // a partial norm already, which is added to.
  int64_t begin, end;
};

// What the counters say of this replay.
struct Moment {
  bool add;
  bool is_last;  // of the step
};

// A pack as it was loaded. As elements of two bytes it would take a register for each.
template <class T>
using Words = Pack<uint32_t, kPack * sizeof(T) / sizeof(uint32_t)>;

template <class T>
__device__ float FloatAt(const Words<T>& words, int e) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return __uint_as_float(words.elements[e]);
  } else {
    const uint32_t word = words.elements[e / 2];
    return __uint_as_float(e % 2 == 0 ? word << 16 : word & 0xffff0000u);
  }
}

__device__ double Square(float value) { return static_cast<double>(value) * value; }

// `count` elements from `first` on, whole packs at pack addresses, which go to the threads in turn. Adds the squares of
// this thread's results to `squares`.
template <class W>
__device__ void AccumulatePacks(const Arguments<W>& a, const Moment& moment, int64_t first, int count,
                                double& squares) {
  constexpr int kStep = kThreads * kPack;  // from pack to pack of a thread
  constexpr int kInFlight = kPacks * 2 / static_cast<int>(sizeof(W));
  float* const accumulators = a.accumulator + first;
  for (int begin = static_cast<int>(threadIdx.x) * kPack; begin < count; begin += kInFlight * kStep) {
    float* const accumulator = accumulators + begin;
    const auto for_each_pack = [&](const auto& body) {
#pragma unroll
      for (int p = 0; p < kInFlight; ++p) {
        if (begin + p * kStep < count) body(p);
      }
    };
    // Without a value, a pack that is not there would keep its registers from round to round.
    Words<W> even[kInFlight] = {}, odd[kInFlight] = {};
    Words<float> old[kInFlight] = {};
    float sums[kInFlight][kPack];
    const auto load = [&](int n, Words<W>(&words)[kInFlight]) {
      if (n >= a.num_parts) return;
      const W* const part = a.PartAt(n) + first + begin;
      for_each_pack([&](int p) { words[p] = *reinterpret_cast<const Words<W>*>(part + p * kStep); });
    };
    const auto add = [&](int n, const Words<W>(&words)[kInFlight]) {
      if (n >= a.num_parts) return;
#pragma unroll
      for (int p = 0; p < kInFlight; ++p) {
#pragma unroll
        for (int e = 0; e < kPack; ++e) {
          const float value = FloatAt<W>(words[p], e);
          sums[p][e] = n == 0 ? value : sums[p][e] + value;
        }
      }
    };
    load(0, even);
    load(1, odd);
    // Last: of four packs the compiler keeps one in local memory, and waits for it.
    if (moment.add) {
      for_each_pack([&](int p) { old[p] = *reinterpret_cast<const Words<float>*>(accumulator + p * kStep); });
    }
    add(0, even);
    add(1, odd);
#pragma unroll 1
    for (int n = 2; n < a.num_parts; n += 2) {
      load(n, even);
      load(n + 1, odd);
      add(n, even);
      add(n + 1, odd);
    }
    for_each_pack([&](int p) {
      Pack<float, kPack> result;
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        result.elements[e] = moment.add ? FloatAt<float>(old[p], e) + sums[p][e] : sums[p][e];
        if (moment.is_last) squares += Square(result.elements[e]);
      }
      StorePack(accumulator + p * kStep, result);
    });
  }
}

// Of these elements those from `done` on, wherever they lie, one by one. Each thread has those of the same packs, so
// that its squares are added in the same order.
template <class W>
__device__ void AccumulateElements(const Arguments<W>& a, const Moment& moment, int64_t first, int done, int count,
                                   double& squares) {
  constexpr int kStep = kThreads * kPack;
  for (int pack = done - done % kStep + static_cast<int>(threadIdx.x) * kPack; pack < count; pack += kStep) {
    if (pack < done) continue;
    for (int64_t i = first + pack; i < first + pack + kPack && i < first + count; ++i) {
      float sum = ToFloat(a.PartAt(0)[i]);
      for (int part = 1; part < a.num_parts; ++part) sum += ToFloat(a.PartAt(part)[i]);
      const float result = moment.add ? a.accumulator[i] + sum : sum;
      a.accumulator[i] = result;
      if (moment.is_last) squares += Square(result);
    }
  }
}

template <class W>
__global__ void __launch_bounds__(kThreads) AccumulateKernel(Arguments<W> a, LaunchSegments segments) {
  Moment moment = {.add = false, .is_last = true};
  if (a.control != nullptr) {
    const int64_t microbatch = a.control->microbatch + a.position;
    moment = {.add = microbatch != 0, .is_last = microbatch + 1 == a.control->microbatches};
  }
  int segment = 0;
  const int ranges = static_cast<int>((a.end + a.range_elements - 1) / a.range_elements);
  for (int range = static_cast<int>(a.begin / a.range_elements + blockIdx.x); range < ranges; range += gridDim.x) {
    const int64_t begin = range * a.range_elements;
    double squares = 0;
    while (segment < segments.count && segments.end[segment] <= begin) ++segment;
    while (segment < segments.count && segments.first[segment] < begin + a.range_elements) {
      const int64_t first = segments.first[segment] > begin ? segments.first[segment] : begin;
      const int64_t left = begin + a.range_elements - first;
      const bool ends = segments.end[segment] - first <= left;
      const int count = static_cast<int>(ends ? segments.end[segment] - first : left);
      const uint64_t addresses = (reinterpret_cast<uint64_t>(a.parts + first) |
                                  (a.own_place < 0 ? 0 : reinterpret_cast<uint64_t>(a.own + first))) *
                                     (sizeof(float) / sizeof(W)) |
                                 reinterpret_cast<uint64_t>(a.accumulator + first);
      const bool aligned = addresses % sizeof(Pack<float, kPack>) == 0 && (a.num_parts == 1 || a.elements % kPack == 0);
      const int whole = aligned ? count / kPack * kPack : 0;
      AccumulatePacks(a, moment, first, whole, squares);
      AccumulateElements(a, moment, first, whole, count, squares);
      if (!ends) break;
      ++segment;
    }
    if (!moment.is_last) continue;
    squares = BlockSum(squares);
    if (threadIdx.x != 0) continue;
    a.norm_partials[range] = begin < a.begin ? a.norm_partials[range] + squares : squares;
  }
}

}  // namespace

cudaError_t LaunchReduceAccumulate(const LaunchPlace& place, const ReduceAccumulateArguments& a) {
  const int64_t range = NormRangeElements(a.elements);
  return WithElement(a.reduce_dtype, [&](auto type) {
    using W = decltype(type);
    Arguments<W> launch = {.control = a.mode == AccumulateMode::kByMicrobatch ? a.control : nullptr,
                           .position = a.position,
                           .parts = static_cast<const W*>(a.parts),
                           .own = static_cast<const W*>(a.own),
                           .own_place = a.own == nullptr ? -1 : a.own_place,
                           .num_parts = a.num_parts + (a.own == nullptr ? 0 : 1),
                           .elements = a.elements,
                           .accumulator = a.accumulator,
                           .norm_partials = a.norm_partials,
                           .range_elements = range,
                           .begin = 0,
                           .end = 0};
    const size_t num_segments = a.segments.size();
    size_t next = 0;
    do {
      LaunchSegments segments = {};
      for (; segments.count < kMaxSegments && next < num_segments; ++segments.count, ++next) {
        segments.first[segments.count] = a.segments[next].first;
        segments.end[segments.count] = a.segments[next].first + a.segments[next].count;
      }
      launch.begin = launch.end;
      launch.end = next < num_segments ? a.segments[next].first : a.elements;
      const int64_t ranges = CeilDivide(launch.end, range) - launch.begin / range;
      const bool few = a.beside_compute && a.elements >= kBesideElements && ranges >= kBesideBlocks;
      const cudaError_t error = Launch(place.stream, few ? dim3(kBesideBlocks) : Blocks(ranges), kThreads, 0,
                                       AccumulateKernel<W>, launch, segments);
      if (error != cudaSuccess) return error;
    } while (next < num_segments);
    return cudaSuccess;
  });
}

}  // namespace reprise::kernels
