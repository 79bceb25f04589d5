#include "kernels/cuda/gemm_tuner.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/launch.h"
#include "reprise/core/dtype.h"
#include "reprise/core/status_macros.h"

namespace reprise::kernels {
namespace {

// cuBLASLt 13.0 has about eight for a product of bf16 on an H200. For 1024 x 4096 x 1024 the third one takes 9 % less
// time than the first.
constexpr int kProposals = 12;
// A longer product draws all the power that the device may, so that its time depends on how much power a kernel needs
// for the numbers that it gets: with the quickest for random numbers the four units of 16384 x 16384 of step_bench
// took 1.5 % more time than with the first proposals, those of 4096 x 16384 the same; the short ones of 1024 x 4096
// took 9 % less. So longer ones keep the first.
constexpr double kLongestMs = 0.1;
// In turns, so that all run at the same clocks.
constexpr int kRounds = 11;
constexpr double kRoundMs = 1;
// Medians of equal kernels differ by up to 1 % between two such measurements; less is no reason to prefer a later
// proposal to an earlier one.
constexpr double kQuicker = 0.98;
constexpr int kMaxRuns = 200;  // enqueued at a time

struct Free {
  void operator()(void* memory) const { cudaFree(memory); }
};
struct DestroyEvent {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;

int64_t Aligned(int64_t num_bytes) { return (num_bytes + 255) / 256 * 256; }

// Values as activations have them: products of equal numbers, or of zeros, draw less power and run faster.
absl::Status FillRandomly(std::byte* to, int64_t num_bytes, DType dtype, cudaStream_t stream) {
  constexpr int64_t kElements = int64_t{1} << 20;
  std::minstd_rand random(17);
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<float> floats(dtype == DType::kFloat32 ? kElements : 0);
  std::vector<BFloat16> halves(dtype == DType::kFloat32 ? 0 : kElements);
  for (float& value : floats) value = normal(random);
  for (BFloat16& value : halves) value = BFloat16(normal(random));
  const void* const from = dtype == DType::kFloat32 ? static_cast<const void*>(floats.data()) : halves.data();
  const int64_t block = kElements * SizeOf(dtype);
  for (int64_t done = 0; done < num_bytes; done += block) {
    REPRISE_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(to + done, from, static_cast<size_t>(std::min(block, num_bytes - done)),
                                   cudaMemcpyHostToDevice, stream),
                   "filling the operands of a product"));
  }
  return CudaStatus(cudaStreamSynchronize(stream), "filling the operands of a product");
}

class Tuner {
 public:
  Tuner(CudaGemm& gemm, void* workspace, cudaStream_t stream) : gemm_(gemm), workspace_(workspace), stream_(stream) {}

  absl::Status Open() {
    for (Event* event : {&start_, &end_}) {
      cudaEvent_t made = nullptr;
      REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&made), "creating an event"));
      event->reset(made);
    }
    return absl::OkStatus();
  }

  absl::Status Tune(const GemmKey& key) {
    REPRISE_ASSIGN_OR_RETURN(const bool has_room, TakeOperands(key));
    if (!has_room) return absl::OkStatus();
    REPRISE_ASSIGN_OR_RETURN(std::vector<Candidate> candidates, Proposals(key));
    if (key.epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
      const GemmKey plain = Plain(key);
      if (IsOpen(plain)) {
        REPRISE_ASSIGN_OR_RETURN(std::vector<Candidate> plain_candidates, Proposals(plain));
        REPRISE_RETURN_IF_ERROR(Choose(plain, std::move(plain_candidates)));
      }
      if (!IsOpen(plain)) candidates.push_back(Apart(key, plain));
    }
    return Choose(key, std::move(candidates));
  }

 private:
  // A kernel for the product; without an algorithm, a product and a kernel of GELU's.
  struct Candidate {
    std::optional<GemmAlgorithm> algorithm;
    std::function<absl::Status()> run;
    double ms = 0;  // of a run, about
    std::vector<double> samples = {};

    int Runs(double wanted_ms) const {
      return static_cast<int>(std::clamp(std::ceil(wanted_ms / ms), 1.0, static_cast<double>(kMaxRuns)));
    }
    double Median() const {
      std::vector<double> sorted = samples;
      std::sort(sorted.begin(), sorted.end());
      return sorted[sorted.size() / 2];
    }
  };

  // The product alone, for a kernel of GELU's after it: where that reads its input from.
  static GemmKey Plain(GemmKey key) {
    if (key.epilogue == CUBLASLT_EPILOGUE_GELU_AUX) key.c_alignment = key.h_alignment;
    key.h_alignment = GemmKey::kMaxAlignment;  // of none
    key.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return key;
  }

  // Is it still to be chosen for?
  bool IsOpen(const GemmKey& key) const {
    return !gemm_.choices().contains(key) || gemm_.first_choices().contains(key);
  }

  absl::StatusOr<bool> TakeOperands(const GemmKey& key) {
    const DType in = static_cast<DType>(key.in), out = static_cast<DType>(key.out);
    const int64_t a = Aligned(key.m * key.k * SizeOf(in)), b = Aligned(key.k * key.n * SizeOf(in));
    const int64_t c = Aligned(key.m * key.n * SizeOf(out));
    const int64_t h = key.epilogue == CUBLASLT_EPILOGUE_DEFAULT ? 0 : c;
    memory_.reset();
    void* memory = nullptr;
    if (cudaMalloc(&memory, static_cast<size_t>(a + b + c + h)) != cudaSuccess) {
      cudaGetLastError();
      return false;
    }
    memory_.reset(memory);
    std::byte* const bytes = static_cast<std::byte*>(memory);
    a_ = bytes;
    b_ = bytes + a;
    c_ = bytes + a + b;
    h_ = bytes + a + b + c;
    REPRISE_RETURN_IF_ERROR(FillRandomly(bytes, a + b, in, stream_));
    REPRISE_RETURN_IF_ERROR(FillRandomly(bytes + a + b, c + h, out, stream_));
    return true;
  }

  absl::StatusOr<std::vector<Candidate>> Proposals(const GemmKey& key) const {
    REPRISE_ASSIGN_OR_RETURN(const std::vector<GemmAlgorithm> proposals, gemm_.Propose(key, kProposals));
    std::vector<Candidate> candidates;
    for (const GemmAlgorithm& algorithm : proposals) {
      candidates.push_back({algorithm, [this, key, algorithm] { return RunAs(key, algorithm, c_); }});
    }
    return candidates;
  }

  Candidate Apart(const GemmKey& key, const GemmKey& plain) const {
    const std::optional<GemmAlgorithm> algorithm = gemm_.choices().at(plain);
    return {std::nullopt, [this, key, plain, algorithm]() -> absl::Status {
              if (!algorithm.has_value()) return absl::UnimplementedError("no kernel");
              const DType dtype = static_cast<DType>(key.out);
              const DeviceInput c = {dtype, c_}, h = {dtype, h_};
              const DeviceOutput to = {dtype, c_};
              const LaunchPlace place = {.stream = stream_};
              const int64_t count = key.m * key.n;
              const bool forward = key.epilogue == CUBLASLT_EPILOGUE_GELU_AUX;
              REPRISE_RETURN_IF_ERROR(RunAs(plain, *algorithm, forward ? h_ : c_));
              return CudaStatus(
                  forward ? LaunchGeluTanh(place, {count, h, to}) : LaunchGeluTanhBackward(place, {count, c, h, to}),
                  "GELU after a GEMM");
            }};
  }

  absl::Status RunAs(const GemmKey& key, const GemmAlgorithm& algorithm, std::byte* c) const {
    return gemm_.RunAs(key, algorithm, {.a = a_, .b = b_, .c = c, .h = h_, .workspace = workspace_}, stream_);
  }

  absl::Status Choose(const GemmKey& key, std::vector<Candidate> candidates) const {
    REPRISE_RETURN_IF_ERROR(Measure(candidates));
    const Candidate* best = nullptr;
    for (const Candidate& candidate : candidates) {
      if (best == nullptr || candidate.Median() < kQuicker * best->Median()) best = &candidate;
    }
    if (best != nullptr) gemm_.Choose(key, best->algorithm);
    return absl::OkStatus();
  }

  // Leaves those that can run, in their order, with a sample for each round; the first of a long product.
  absl::Status Measure(std::vector<Candidate>& candidates) const {
    std::vector<Candidate> able;
    for (Candidate& candidate : candidates) {
      if (!candidate.run().ok()) continue;  // a proposal need not be able to
      REPRISE_ASSIGN_OR_RETURN(candidate.ms, Time(candidate, 1));
      REPRISE_ASSIGN_OR_RETURN(candidate.ms, Time(candidate, candidate.Runs(kRoundMs)));
      able.push_back(std::move(candidate));
      if (able[0].ms > kLongestMs) break;
    }
    const int rounds = able.size() == 1 ? 1 : kRounds;
    for (int round = 0; round < rounds; ++round) {
      for (Candidate& candidate : able) {
        REPRISE_ASSIGN_OR_RETURN(candidate.samples.emplace_back(), Time(candidate, candidate.Runs(kRoundMs)));
      }
    }
    candidates = std::move(able);
    return absl::OkStatus();
  }

  // Milliseconds of one run.
  absl::StatusOr<double> Time(const Candidate& candidate, int runs) const {
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(start_.get(), stream_), "timing a product"));
    for (int i = 0; i < runs; ++i) REPRISE_RETURN_IF_ERROR(candidate.run());
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(end_.get(), stream_), "timing a product"));
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(end_.get()), "timing a product"));
    float ms = 0;
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventElapsedTime(&ms, start_.get(), end_.get()), "timing a product"));
    return std::max(static_cast<double>(ms), 1e-3) / runs;
  }

  CudaGemm& gemm_;
  void* const workspace_;
  const cudaStream_t stream_;
  Event start_, end_;
  std::unique_ptr<void, Free> memory_;
  std::byte *a_ = nullptr, *b_ = nullptr, *c_ = nullptr, *h_ = nullptr;
};

}  // namespace

absl::Status TuneGemms(CudaGemm& gemm, void* workspace, cudaStream_t stream) {
  Tuner tuner(gemm, workspace, stream);
  REPRISE_RETURN_IF_ERROR(tuner.Open());
  const std::set<GemmKey> open = gemm.first_choices();
  for (const GemmKey& key : open) REPRISE_RETURN_IF_ERROR(tuner.Tune(key));
  return absl::OkStatus();
}

}  // namespace reprise::kernels
