// Digests of memory, on the host and on devices: a sum over words of 8 bytes, each mixed with its place, so that any
// number of threads find the same one.
#ifndef REPRISE_GRAPH_DIGEST_H_
#define REPRISE_GRAPH_DIGEST_H_

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define REPRISE_HOST_DEVICE __host__ __device__
#else
#define REPRISE_HOST_DEVICE
#endif

namespace reprise::internal {

inline constexpr int64_t kDigestWord = 8;  // bytes

REPRISE_HOST_DEVICE inline uint64_t MixWord(uint64_t word, int64_t index) {
  word ^= (static_cast<uint64_t>(index) + 1) * 0x9e3779b97f4a7c15u;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
  return word ^ (word >> 31);
}

// Up to 8 bytes at any address as a word, the first one lowest.
REPRISE_HOST_DEVICE inline uint64_t WordAt(const std::byte* from, int64_t num_bytes) {
  uint64_t word = 0;
  for (int64_t i = 0; i < num_bytes; ++i) word |= static_cast<uint64_t>(from[i]) << (8 * i);
  return word;
}

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_DIGEST_H_
