// Copies between ranks, here between streams of one device, each of which is a rank: what lies where after each replay,
// who waits for whom, and how a rank whose peer is missing goes on.
#include "graph/cuda/peer_copies.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "graph/cuda/driver_api.h"
#include "graph/cuda/handles.h"
#include "tests/testing/status_matchers.h"

namespace reprise::internal {
namespace {

using reprise::testing::IsOk;

#define ASSERT_CUDA(call) ASSERT_EQ(call, cudaSuccess)

// Ranks that exchange parts: part p of a rank's source goes to rank p.
class Ranks {
 public:
  static constexpr size_t kPart = 100 * 1024 + 4;

  explicit Ranks(int size) : ranks_(static_cast<size_t>(size)) {}
  ~Ranks() {
    cudaDeviceSynchronize();
    cudaFree(set_);
    for (Rank& rank : ranks_) {
      for (void* memory : {static_cast<void*>(rank.flags), static_cast<void*>(rank.source),
                           static_cast<void*>(rank.received), static_cast<void*>(rank.busy)}) {
        cudaFree(memory);
      }
    }
  }

  void Open() {
    REPRISE_ASSERT_OK_AND_ASSIGN(driver_, LoadDriverApi());
    ASSERT_CUDA(cudaMalloc(reinterpret_cast<void**>(&set_), sizeof(uint32_t)));
    ASSERT_CUDA(cudaMemcpy(set_, &PeerFlags::kSet, sizeof(uint32_t), cudaMemcpyHostToDevice));
    const size_t flag_bytes = PeerFlags::kFlagsPerRank * ranks_.size() * sizeof(uint32_t);
    for (Rank& rank : ranks_) {
      ASSERT_CUDA(cudaMalloc(reinterpret_cast<void**>(&rank.flags), flag_bytes));
      ASSERT_CUDA(cudaMalloc(reinterpret_cast<void**>(&rank.source), kPart * ranks_.size()));
      ASSERT_CUDA(cudaMalloc(reinterpret_cast<void**>(&rank.received), kPart * ranks_.size()));
      ASSERT_CUDA(cudaMalloc(reinterpret_cast<void**>(&rank.busy), kBusy));
      ASSERT_CUDA(cudaMemset(rank.flags, 0, flag_bytes));
      ASSERT_CUDA(cudaMemset(rank.received, kNothing, kPart * ranks_.size()));
      ASSERT_CUDA(cudaStreamCreateWithFlags(rank.stream.receive(), cudaStreamNonBlocking));
    }
    ASSERT_CUDA(cudaDeviceSynchronize());
    for (int r = 0; r < size(); ++r) Capture(r);
  }

  // Rank r's source gets a byte for each part, and goes to the others; what r received is read afterwards, into pinned
  // memory: a copy to other memory would keep the host from starting the other ranks.
  void Run(int r, int replay, char* received) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    for (int part = 0; part < size(); ++part) {
      ASSERT_CUDA(cudaMemsetAsync(rank.source + kPart * static_cast<size_t>(part), Byte(replay, r, part), kPart,
                                  rank.stream.get()));
    }
    ASSERT_CUDA(cudaGraphLaunch(rank.exec.get(), rank.stream.get()));
    if (received == nullptr) return;
    ASSERT_CUDA(cudaMemcpyAsync(received, rank.received, num_bytes(), cudaMemcpyDeviceToHost, rank.stream.get()));
  }
  void Delay(int r, int times) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    for (int i = 0; i < times; ++i) ASSERT_CUDA(cudaMemsetAsync(rank.busy, i, kBusy, rank.stream.get()));
  }

  // What rank r has received after a replay of all.
  std::string Expected(int r, int replay) const {
    std::string bytes;
    for (int from = 0; from < size(); ++from) {
      bytes.append(kPart, static_cast<char>(from == r ? kNothing : Byte(replay, from, r)));
    }
    return bytes;
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  size_t num_bytes() const { return kPart * ranks_.size(); }  // that a rank receives
  cudaStream_t stream(int r) const { return ranks_[static_cast<size_t>(r)].stream.get(); }
  uint32_t* flags(int r) const { return ranks_[static_cast<size_t>(r)].flags; }
  std::byte* received(int r) const { return ranks_[static_cast<size_t>(r)].received; }

  static constexpr int kNothing = 0xff;

 private:
  static constexpr size_t kBusy = size_t{256} << 20;

  struct Rank {
    uint32_t* flags = nullptr;
    std::byte* source = nullptr;
    std::byte* received = nullptr;
    std::byte* busy = nullptr;
    StreamHandle stream;
    GraphHandle graph;
    GraphExecHandle exec;
  };

  static int Byte(int replay, int from, int part) { return (replay * 31 + from * 7 + part) % kNothing; }

  void Capture(int r) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    PeerFlags flags = {.rank = r, .set = set_};
    std::vector<PeerCopy> copies;
    for (int peer = 0; peer < size(); ++peer) {
      flags.blocks.push_back(ranks_[static_cast<size_t>(peer)].flags);
      if (peer == r) continue;
      copies.push_back({.to = received(peer) + kPart * static_cast<size_t>(r),
                        .from = rank.source + kPart * static_cast<size_t>(peer),
                        .num_bytes = static_cast<int64_t>(kPart)});
    }
    ASSERT_CUDA(cudaStreamBeginCapture(rank.stream.get(), cudaStreamCaptureModeThreadLocal));
    EXPECT_THAT(CopyToPeers(driver_, flags, copies, rank.stream.get()), IsOk());
    ASSERT_CUDA(cudaStreamEndCapture(rank.stream.get(), rank.graph.receive()));
    ASSERT_CUDA(cudaGraphInstantiate(rank.exec.receive(), rank.graph.get(), 0));
  }

  DriverApi driver_;
  uint32_t* set_ = nullptr;
  std::vector<Rank> ranks_;
};

class PeerCopiesTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, PeerCopiesTest, ::testing::Values(2, 3, 4));

// Ranks run ahead of each other as far as the flags let them, by chance: whoever reads what it received before others
// may write there again sees one replay's bytes.
TEST_P(PeerCopiesTest, EveryReplayBringsItsOwnBytes) {
  constexpr int kReplays = 40;
  Ranks ranks(GetParam());
  ASSERT_NO_FATAL_FAILURE(ranks.Open());
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  const size_t num_bytes = ranks.num_bytes();
  void* pinned = nullptr;
  ASSERT_CUDA(cudaMallocHost(&pinned, num_bytes * static_cast<size_t>(ranks.size() * kReplays)));
  const auto received = [&](int r, int replay) {
    return static_cast<char*>(pinned) + num_bytes * static_cast<size_t>(r * kReplays + replay);
  };
  for (int replay = 0; replay < kReplays; ++replay) {
    std::vector<int> order;
    for (int r = 0; r < ranks.size(); ++r) order.push_back(r);
    std::shuffle(order.begin(), order.end(), random);
    for (const int r : order) {
      ASSERT_NO_FATAL_FAILURE(ranks.Delay(r, static_cast<int>(random() % 3)));
      ASSERT_NO_FATAL_FAILURE(ranks.Run(r, replay, received(r, replay)));
    }
  }
  ASSERT_CUDA(cudaDeviceSynchronize());
  for (int r = 0; r < ranks.size(); ++r) {
    for (int replay = 0; replay < kReplays; ++replay) {
      EXPECT_TRUE(std::string(received(r, replay), num_bytes) == ranks.Expected(r, replay))
          << "rank " << r << ", replay " << replay;
    }
  }
  ASSERT_CUDA(cudaFreeHost(pinned));
}

TEST(PeerCopiesOrderTest, NothingIsWrittenBeforeItsOwnerIsThere) {
  Ranks ranks(2);
  ASSERT_NO_FATAL_FAILURE(ranks.Open());
  ASSERT_NO_FATAL_FAILURE(ranks.Run(1, 5, nullptr));
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(cudaStreamQuery(ranks.stream(1)), cudaErrorNotReady);
  std::string bytes(Ranks::kPart * 2, '\0');
  ASSERT_CUDA(cudaMemcpyAsync(bytes.data(), ranks.received(0), bytes.size(), cudaMemcpyDeviceToHost, ranks.stream(0)));
  ASSERT_CUDA(cudaStreamSynchronize(ranks.stream(0)));
  EXPECT_TRUE(bytes == std::string(bytes.size(), static_cast<char>(Ranks::kNothing)));
  ASSERT_NO_FATAL_FAILURE(ranks.Run(0, 5, nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  ASSERT_CUDA(cudaMemcpy(bytes.data(), ranks.received(0), bytes.size(), cudaMemcpyDeviceToHost));
  EXPECT_TRUE(bytes == ranks.Expected(0, 5));
}

TEST(PeerCopiesOrderTest, ARankWhosePeerIsMissingGoesOnOnceItsFlagsAreSet) {
  Ranks ranks(3);
  ASSERT_NO_FATAL_FAILURE(ranks.Open());
  ASSERT_NO_FATAL_FAILURE(ranks.Run(0, 1, nullptr));
  ASSERT_NO_FATAL_FAILURE(ranks.Run(2, 1, nullptr));
  absl::SleepFor(absl::Milliseconds(50));
  StreamHandle stream;
  ASSERT_CUDA(cudaStreamCreateWithFlags(stream.receive(), cudaStreamNonBlocking));
  const std::vector<uint32_t> set(PeerFlags::kFlagsPerRank * 3, PeerFlags::kSet);
  const absl::Time deadline = absl::Now() + absl::Seconds(5);
  for (const int r : {0, 2}) {
    EXPECT_EQ(cudaStreamQuery(ranks.stream(r)), cudaErrorNotReady) << r;
    while (cudaStreamQuery(ranks.stream(r)) == cudaErrorNotReady && absl::Now() < deadline) {
      ASSERT_CUDA(cudaMemcpyAsync(ranks.flags(r), set.data(), set.size() * sizeof(uint32_t), cudaMemcpyHostToDevice,
                                  stream.get()));
      ASSERT_CUDA(cudaStreamSynchronize(stream.get()));
    }
    EXPECT_EQ(cudaStreamQuery(ranks.stream(r)), cudaSuccess) << r;
  }
}

// One rank alone stands for all: the flag that it sets at another is the one that it waits for from there.
TEST(PeerCopiesOrderTest, AnyNumberOfRanksIsWaitedFor) {
  constexpr int kSize = 300;
  constexpr size_t kNumBytes = PeerFlags::kFlagsPerRank * kSize * sizeof(uint32_t);
  REPRISE_ASSERT_OK_AND_ASSIGN(const DriverApi driver, LoadDriverApi());
  uint32_t* words = nullptr;
  ASSERT_CUDA(cudaMalloc(reinterpret_cast<void**>(&words), kNumBytes + sizeof(uint32_t)));
  ASSERT_CUDA(cudaMemset(words, 0, kNumBytes));
  ASSERT_CUDA(
      cudaMemcpy(words + kNumBytes / sizeof(uint32_t), &PeerFlags::kSet, sizeof(uint32_t), cudaMemcpyHostToDevice));
  PeerFlags flags = {.rank = 0, .set = words + kNumBytes / sizeof(uint32_t)};
  for (int peer = 0; peer < kSize; ++peer) flags.blocks.push_back(words + peer);
  StreamHandle stream;
  GraphHandle graph;
  GraphExecHandle exec;
  ASSERT_CUDA(cudaStreamCreateWithFlags(stream.receive(), cudaStreamNonBlocking));
  ASSERT_CUDA(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  EXPECT_THAT(CopyToPeers(driver, flags, {}, stream.get()), IsOk());
  ASSERT_CUDA(cudaStreamEndCapture(stream.get(), graph.receive()));
  ASSERT_CUDA(cudaGraphInstantiate(exec.receive(), graph.get(), 0));
  for (int replay = 0; replay < 3; ++replay) ASSERT_CUDA(cudaGraphLaunch(exec.get(), stream.get()));
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (cudaStreamQuery(stream.get()) == cudaErrorNotReady && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  ASSERT_EQ(cudaStreamQuery(stream.get()), cudaSuccess);
  std::vector<uint32_t> left(kNumBytes / sizeof(uint32_t), 7);
  ASSERT_CUDA(cudaMemcpy(left.data(), words, kNumBytes, cudaMemcpyDeviceToHost));
  EXPECT_EQ(left, std::vector<uint32_t>(left.size(), PeerFlags::kClear)) << "each is cleared";
  ASSERT_CUDA(cudaFree(words));
}

}  // namespace
}  // namespace reprise::internal
