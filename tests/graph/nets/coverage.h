// What random nets and settings cover.
#ifndef REPRISE_TESTS_GRAPH_NETS_COVERAGE_H_
#define REPRISE_TESTS_GRAPH_NETS_COVERAGE_H_

#include <cstdint>
#include <map>
#include <string>

#include "tests/graph/nets/net.h"
#include "tests/graph/nets/setting.h"

namespace reprise::testing {

// How many nets have which feature.
using Coverage = std::map<std::string, int64_t>;
void CountNet(const Net& net, Coverage& coverage);
void CountSetting(const NetSetting& setting, Coverage& coverage);
// Throughout, reductions included.
bool AllFloat32(const Net& net, const NetSetting& setting);

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_NETS_COVERAGE_H_
