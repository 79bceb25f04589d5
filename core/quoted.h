// Names inside messages.
#ifndef REPRISE_CORE_QUOTED_H_
#define REPRISE_CORE_QUOTED_H_

#include <string>

#include "absl/strings/string_view.h"

namespace reprise::internal {

// Is it UTF-8 without characters that control a terminal or the direction of the text around them?
bool IsPrintable(absl::string_view text);

// The name in double quotes, fit for one line of a message whatever bytes it holds: unusual bytes are escaped and a
// long name is cut.
std::string Quoted(absl::string_view name);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_QUOTED_H_
