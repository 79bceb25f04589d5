#include "examples/reprise_plan/arguments.h"

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace reprise {
namespace {

absl::Status Refuse(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(what, "; --help lists the flags and their values"));
}

// Flags of Abseil's that show text and end the process.
bool ShowsHelp(absl::string_view name) {
  for (absl::string_view flag : {"help", "helpfull", "helpshort", "helppackage", "helpmatch", "helpon", "version"}) {
    if (name == flag) return true;
  }
  return false;
}

// Flags of Abseil's that name other flags, which it would check in its own words.
bool NamesFlags(absl::string_view name) {
  for (absl::string_view flag : {"flagfile", "fromenv", "tryfromenv", "undefok"}) {
    if (name == flag) return true;
  }
  return false;
}

// --verify, --noverify.
bool IsSwitch(absl::string_view name) {
  const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
  if (flag != nullptr) return flag->IsOfType<bool>();
  return absl::ConsumePrefix(&name, "no") && absl::FindCommandLineFlag(name) != nullptr && IsSwitch(name);
}

}  // namespace

absl::Status CheckArguments(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view name = arguments[i];
    if (!absl::ConsumePrefix(&name, "-")) {
      return Refuse(absl::StrCat("\"", arguments[i], "\" is not a flag; write --name=value"));
    }
    absl::ConsumePrefix(&name, "-");
    const size_t equals = name.find('=');
    std::string value;
    if (equals != absl::string_view::npos) {
      value = std::string(name.substr(equals + 1));
      name = name.substr(0, equals);
    }
    if (ShowsHelp(name)) continue;
    if (NamesFlags(name)) return Refuse(absl::StrCat("flag --", name, " is not taken; give the flags themselves"));
    if (equals == absl::string_view::npos && IsSwitch(name)) continue;
    absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    if (flag == nullptr) return Refuse(absl::StrCat("there is no flag --", name));
    if (equals == absl::string_view::npos) {
      if (++i == arguments.size()) return Refuse(absl::StrCat("flag --", name, " lacks a value"));
      value = arguments[i];
    }
    std::string error;
    if (!flag->ParseFrom(value, &error))
      return Refuse(absl::StrCat("--", name, "=", value, " is not a value of that flag"));
  }
  return absl::OkStatus();
}

}  // namespace reprise
