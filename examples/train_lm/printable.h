// Bytes that a model made, for a terminal.
#ifndef REPRISE_EXAMPLES_TRAIN_LM_PRINTABLE_H_
#define REPRISE_EXAMPLES_TRAIN_LM_PRINTABLE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace reprise::examples {

// The text as it is, line breaks and tabs included, but for bytes that are not UTF-8, or are of a character that is not
// visible: each becomes an escape, such as \x1b. The result is UTF-8.
std::string Printable(absl::string_view text);

}  // namespace reprise::examples

#endif  // REPRISE_EXAMPLES_TRAIN_LM_PRINTABLE_H_
