// Names inside messages.
#ifndef REPRISE_CORE_QUOTED_H_
#define REPRISE_CORE_QUOTED_H_

#include <string>

#include "absl/strings/string_view.h"

namespace reprise::internal {

// The name in double quotes, fit for one line of a message whatever bytes it holds: unusual bytes are escaped and a
// long name is cut.
std::string Quoted(absl::string_view name);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_QUOTED_H_
