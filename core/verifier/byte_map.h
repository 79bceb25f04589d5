// A value for each byte of a buffer or a storage, kept as ranges of equal values.
#ifndef REPRISE_CORE_VERIFIER_BYTE_MAP_H_
#define REPRISE_CORE_VERIFIER_BYTE_MAP_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

namespace reprise::internal {

// Assign merges what it covers, so a sequence of assignments costs O(log n) each, amortised.
template <class T>
class ByteMap {
 public:
  // Bytes 0 to size - 1, all with `value`; Visit and Assign leave out any others.
  ByteMap(int64_t size, const T& value) : size_(size) {
    ranges_.emplace(0, value);
    ranges_.emplace(size, value);  // bounds the last range
  }

  // Calls visit(first, last, T&) for each range inside [first, last), in order. It may change the value.
  template <class Visitor>
  void Visit(int64_t first, int64_t last, Visitor visit) {
    first = std::max(first, int64_t{0});
    last = std::min(last, size_);
    if (first >= last) return;
    Cut(last);
    for (auto it = Cut(first); it->first < last;) {
      const auto next = std::next(it);
      visit(it->first, next->first, it->second);
      it = next;
    }
  }

  // Calls visit(first, last, const T&) for each range inside [first, last), in order, until it returns false.
  template <class Visitor>
  void Find(int64_t first, int64_t last, Visitor visit) const {
    first = std::max(first, int64_t{0});
    last = std::min(last, size_);
    if (first >= last) return;
    for (auto it = std::prev(ranges_.upper_bound(first)); it->first < last; ++it) {
      if (!visit(std::max(first, it->first), std::min(last, std::next(it)->first), it->second)) return;
    }
  }

  // Gives [first, last) one value.
  void Assign(int64_t first, int64_t last, T value) {
    first = std::max(first, int64_t{0});
    last = std::min(last, size_);
    if (first >= last) return;
    const auto end = Cut(last);
    const auto begin = Cut(first);
    begin->second = std::move(value);
    ranges_.erase(std::next(begin), end);
  }

 private:
  using Ranges = std::map<int64_t, T>;

  // The range that starts at `offset`, split off if there is none.
  typename Ranges::iterator Cut(int64_t offset) {
    const auto after = ranges_.lower_bound(offset);
    if (after->first == offset) return after;
    return ranges_.emplace_hint(after, offset, std::prev(after)->second);
  }

  const int64_t size_;
  Ranges ranges_;  // by first byte
};

}  // namespace reprise::internal

#endif  // REPRISE_CORE_VERIFIER_BYTE_MAP_H_
