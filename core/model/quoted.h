// Names inside messages.
#ifndef REPRISE_CORE_MODEL_QUOTED_H_
#define REPRISE_CORE_MODEL_QUOTED_H_

#include <string>

#include "absl/strings/string_view.h"

namespace reprise::internal {

// What of the text is not UTF-8 or not a visible character that two texts could be told apart by: the code point, its
// kind and its byte, as in "U+200B, a format character, at byte 3". Empty if there is no such thing.
std::string FirstUnprintable(absl::string_view text);

// The name in double quotes, fit for one line of a message whatever bytes it holds: unusual bytes are escaped and a
// long name is cut.
std::string Quoted(absl::string_view name);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_MODEL_QUOTED_H_
