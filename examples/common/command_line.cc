#include "examples/common/command_line.h"

#include <algorithm>
#include <iostream>
#include <limits>
#include <map>
#include <new>
#include <stdexcept>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "examples/common/output.h"
#include "reprise/core/status_macros.h"

namespace reprise::examples {
namespace {

absl::Status Refuse(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(what, "; --help lists the flags and their values"));
}

std::string HelpText(absl::string_view program, absl::string_view usage, absl::string_view exit_codes) {
  std::string text = absl::StrCat(program, ": ", usage, "\n\n");
  std::map<absl::string_view, absl::CommandLineFlag*> flags;  // by name: absl's order differs from run to run
  for (const auto& [name, flag] : absl::GetAllFlags()) flags.emplace(name, flag);
  for (const auto& [name, flag] : flags) {
    const std::string value = flag->DefaultValue();
    absl::StrAppend(&text, "  --", name, value.empty() ? "" : "=", value, "\n      ", flag->Help(), "\n");
  }
  absl::StrAppend(&text, "\nExit codes: 0 done; 1 failed; 2 refused, because of a flag, a file or a size",
                  exit_codes.empty() ? "" : "; ", exit_codes, "\n");
  return text;
}

// A flag that --noNAME may stand for too.
absl::CommandLineFlag* FindSwitch(absl::string_view name) {
  absl::CommandLineFlag* const flag = absl::FindCommandLineFlag(name);
  return flag != nullptr && flag->IsOfType<bool>() ? flag : nullptr;
}

template <class T>
std::string WholeNumbers() {
  return absl::StrCat("whole numbers from ", std::numeric_limits<T>::min(), " to ", std::numeric_limits<T>::max());
}

// The values of a flag whose type does not say itself what is wrong; empty for a type that is not known here.
std::string ValuesOf(const absl::CommandLineFlag& flag) {
  if (flag.IsOfType<bool>()) return "true or false";
  if (flag.IsOfType<int>() || flag.IsOfType<absl::optional<int>>()) return WholeNumbers<int>();
  if (flag.IsOfType<int64_t>()) return WholeNumbers<int64_t>();
  if (flag.IsOfType<uint64_t>()) return WholeNumbers<uint64_t>();
  if (flag.IsOfType<double>()) return "a number";
  return "";
}

absl::Status Set(absl::CommandLineFlag& flag, absl::string_view value) {
  std::string error;
  if (flag.ParseFrom(value, &error)) return absl::OkStatus();
  // absl says which flag and value first, as is said here.
  absl::string_view reason = error;
  absl::ConsumePrefix(&reason, absl::StrCat("Illegal value '", value, "' specified for flag '", flag.Name(), "'"));
  absl::ConsumePrefix(&reason, "; ");
  const std::string values = ValuesOf(flag);
  const std::string known = values.empty() ? std::string(reason) : absl::StrCat("it takes ", values);
  return Refuse(
      absl::StrCat("--", flag.Name(), "=", value, " is not a value of that flag", known.empty() ? "" : ": ", known));
}

// 2 if the fault is in what was asked for.
int ExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kOutOfRange:
      return 2;
    default:
      return 1;
  }
}

}  // namespace

absl::StatusOr<std::string> ReadCommandLine(absl::string_view program, absl::string_view usage,
                                            absl::string_view exit_codes, const std::vector<std::string>& arguments) {
  std::string shown;
  for (size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view name = arguments[i];
    if (!absl::ConsumePrefix(&name, "-")) {
      return Refuse(absl::StrCat("\"", arguments[i], "\" is not a flag; write --name=value"));
    }
    absl::ConsumePrefix(&name, "-");
    const size_t equals = name.find('=');
    if (name == "help" || name == "helpfull" || name == "helpshort" || name == "h") {
      shown = HelpText(program, usage, exit_codes);
    } else if (name == "version") {
      shown = absl::StrCat(program, " of reprise " REPRISE_VERSION "\n");
    } else if (absl::CommandLineFlag* flag = FindSwitch(name)) {
      REPRISE_RETURN_IF_ERROR(Set(*flag, "true"));
    } else if (absl::CommandLineFlag* negated = absl::ConsumePrefix(&name, "no") ? FindSwitch(name) : nullptr) {
      REPRISE_RETURN_IF_ERROR(Set(*negated, "false"));
    } else {
      name = absl::StripPrefix(arguments[i], "-");
      absl::ConsumePrefix(&name, "-");
      absl::CommandLineFlag* const known = absl::FindCommandLineFlag(name.substr(0, equals));
      if (known == nullptr) return Refuse(absl::StrCat("there is no flag --", name.substr(0, equals)));
      if (equals == absl::string_view::npos && ++i == arguments.size()) {
        return Refuse(absl::StrCat("--", name, " lacks a value"));
      }
      const absl::string_view value =
          equals == absl::string_view::npos ? absl::string_view(arguments[i]) : name.substr(equals + 1);
      // What a script's unset variable leaves must not pass for a flag that was not given.
      if (value.empty()) return Refuse(absl::StrCat("--", known->Name(), " lacks a value"));
      REPRISE_RETURN_IF_ERROR(Set(*known, value));
    }
  }
  return shown;
}

int RunProgram(int argc, char** argv, absl::string_view usage, const std::function<absl::StatusOr<int>()>& run,
               absl::string_view exit_codes) {
  KeepStandardDescriptors();
  absl::string_view program = argc > 0 ? argv[0] : "program";
  if (const size_t slash = program.rfind('/'); slash != absl::string_view::npos) program.remove_prefix(slash + 1);
  const auto all = [&]() -> absl::StatusOr<int> {
    REPRISE_ASSIGN_OR_RETURN(const std::string shown,
                             ReadCommandLine(program, usage, exit_codes, {argv + std::min(argc, 1), argv + argc}));
    std::cout << shown;
    int exit_code = 0;
    if (shown.empty()) {
      REPRISE_ASSIGN_OR_RETURN(exit_code, run());
    }
    REPRISE_RETURN_IF_ERROR(CheckOutput());
    return exit_code;
  };
  absl::StatusOr<int> exit_code = absl::UnknownError("");
  try {
    exit_code = all();
  } catch (const std::bad_alloc&) {
    exit_code = absl::ResourceExhaustedError("there is not enough memory; ask for less");
  } catch (const std::length_error&) {
    exit_code = absl::ResourceExhaustedError("no container holds that much; ask for less");
  }
  if (exit_code.ok()) return *exit_code;
  std::cerr << program << ": " << std::string(exit_code.status().message()) << "\n";
  return ExitCode(exit_code.status());
}

}  // namespace reprise::examples
