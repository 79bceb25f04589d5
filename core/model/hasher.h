// Mixes a sequence of words into 128 bits: the same result on every machine and compiler. Not for secrets.
#ifndef REPRISE_CORE_MODEL_HASHER_H_
#define REPRISE_CORE_MODEL_HASHER_H_

#include <bit>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "reprise/core/plan.h"

namespace reprise::internal {

// Each word permutes the state, so that two sequences which differ in one word never meet at that word.
class Hasher {
 public:
  void Add(uint64_t word) {
    high_ = std::rotl(high_ ^ (word * kPi[0]), 29) * kPi[1] + low_;
    low_ = std::rotl(low_ ^ (word * kPi[2]), 37) * kPi[3] + high_;
    ++count_;
  }
  // Length first, then the bytes, eight to a word, the first one lowest.
  void Add(absl::string_view text) {
    Add(static_cast<uint64_t>(text.size()));
    uint64_t word = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      word |= static_cast<uint64_t>(static_cast<unsigned char>(text[i])) << (8 * (i % 8));
      if (i % 8 == 7 || i + 1 == text.size()) {
        Add(word);
        word = 0;
      }
    }
  }
  Fingerprint Finish() const {
    Hasher last = *this;
    for (int round = 0; round < 4; ++round) {
      last.Add(count_);
      last.high_ ^= last.high_ >> 32;
      last.low_ ^= last.low_ >> 32;
    }
    return {last.high_, last.low_};
  }

 private:
  // Fraction of pi in hexadecimal, lowest bit set: odd factors lose nothing.
  static constexpr uint64_t kPi[] = {0x243f6a8885a308d3, 0x13198a2e03707345, 0xa4093822299f31d1, 0x082efa98ec4e6c89};

  uint64_t high_ = 0x452821e638d01377, low_ = 0xbe5466cf34e90c6d;
  uint64_t count_ = 0;
};

}  // namespace reprise::internal

#endif  // REPRISE_CORE_MODEL_HASHER_H_
