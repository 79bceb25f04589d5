// Which commands are of one rank alone.
#include "graph/launch_command.h"

#include <utility>

#include "gtest/gtest.h"

namespace reprise::internal {
namespace {

template <size_t... Index>
void ExpectAllSorted(std::index_sequence<Index...>) {
  const auto expect_sorted = [](const auto& command) {
    using Kind = std::decay_t<decltype(command)>;
    EXPECT_NE(OneRankCommand<Kind>, IsCollective(Command(command))) << "alternative " << Command(command).index();
  };
  (expect_sorted(std::variant_alternative_t<Index, Command>{}), ...);
}

TEST(OneRankCommandTest, IsEachThatIsNoCollective) {
  ExpectAllSorted(std::make_index_sequence<std::variant_size_v<Command>>());
}

}  // namespace
}  // namespace reprise::internal
