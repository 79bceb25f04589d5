#include "reprise/graph/measure.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "graph/in_use.h"
#include "graph/machine.h"
#include "reprise/core/status_macros.h"

namespace reprise {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 24;

absl::Status Cannot(const std::string& path, absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("cost file ", path, " cannot be ", what, " (", std::strerror(errno), ")"));
}

}  // namespace

absl::StatusOr<CostFile> Measure(World& world, const MeasureOptions& options) {
  REPRISE_ENTER(internal::MachineOf(world), "Measure");
  return internal::MachineOf(world).Measure(options);
}

absl::Status WriteCostFile(const std::string& path, const CostFile& file) {
  const std::string temporary = absl::StrCat(path, ".", getpid());
  const std::string text = ToJson(file);
  std::FILE* const out = std::fopen(temporary.c_str(), "we");
  if (out == nullptr) return Cannot(path, "written");
  bool written = std::fwrite(text.data(), 1, text.size(), out) == text.size();
  written = std::fflush(out) == 0 && written && fsync(fileno(out)) == 0;
  written = std::fclose(out) == 0 && written;
  if (written && std::rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  absl::Status status = Cannot(path, "written");
  std::remove(temporary.c_str());
  return status;
}

absl::StatusOr<CostFile> ReadCostFile(const std::string& path) {
  std::ifstream in(path);
  std::string text(kMaxFileBytes + 1, '\0');
  if (!in || !(in.read(text.data(), kMaxFileBytes + 1) || in.eof())) return Cannot(path, "read");
  text.resize(static_cast<size_t>(in.gcount()));
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("cost file ", path, ": ", why, "; make it anew by step_bench --measure"));
  };
  if (static_cast<int64_t>(text.size()) > kMaxFileBytes) {
    return refuse(absl::StrCat("longer than ", kMaxFileBytes, " bytes"));
  }
  absl::StatusOr<CostFile> file = CostFileFromJson(text);
  return file.ok() ? file : refuse(file.status().message());
}

}  // namespace reprise
