#include "graph/cuda/tuning.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "core/model/json_text.h"
#include "graph/cuda/caller_state.h"
#include "graph/cuda/cuda_transport.h"
#include "graph/cuda/nccl_status.h"
#include "graph/cuda/peer_traffic.h"
#include "kernels/cuda/cuda_status.h"
#include "nlohmann/json.hpp"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// {"NVIDIA H200, 132 multiprocessors, CUDA driver 13.0, cuBLASLt 130100": {"products": {key: choice}}}, where an
// algorithm is what the library says that it is, of this version and on this GPU; and
// {"NVIDIA H200, CUDA driver 13.0, NCCL 2.28.9, 2 ranks": {"transports": choices, "milliseconds": {bytes: {name:
// ms}}}}, of which the times are for people.
using Json = nlohmann::ordered_json;
// A file holds a few hundred products at most.
constexpr int64_t kMaxFileBytes = int64_t{1} << 24;
constexpr JsonLimits kLimits = {.depth = 4};
constexpr char kProducts[] = "products", kTransportsEntry[] = "transports", kMilliseconds[] = "milliseconds";
using Choices = std::map<std::string, std::string>;

absl::StatusOr<Json> Read(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    if (errno == ENOENT) return Json::object();
    return absl::UnavailableError(absl::StrCat("tuning file ", path, " cannot be read (", std::strerror(errno), ")"));
  }
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), kMaxFileBytes + 1);
  text.resize(static_cast<size_t>(file.gcount()));
  const auto refuse = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("tuning file ", path, " is ", what, "; remove it, and it will be made anew"));
  };
  if (static_cast<int64_t>(text.size()) > kMaxFileBytes) {
    return refuse(absl::StrCat("longer than ", kMaxFileBytes, " bytes"));
  }
  // Parsing and writing deep values would also take a frame of the stack for each level.
  Json json = CheckJsonLimits(text, kLimits).ok() ? Json::parse(text, /*callback=*/nullptr, /*allow_exceptions=*/false)
                                                  : Json();
  if (json.is_object()) return json;
  return refuse("no JSON object");
}

absl::Status Refuse(const std::string& path, absl::string_view device, absl::string_view place,
                    absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("tuning file ", path, ", \"", device, "\"", place, ": not ", wanted, "; remove this entry"));
}

absl::StatusOr<Choices> ChoicesOf(const Json& json, const std::string& device, const std::string& path) {
  const auto refuse = [&](absl::string_view place, absl::string_view wanted) {
    return Refuse(path, device, place, wanted);
  };
  Choices choices;
  if (!json.contains(device)) return choices;
  const Json& entry = json[device];
  if (!entry.is_object()) return refuse("", "an object");
  if (!entry.contains(kProducts)) return choices;
  const Json& products = entry[kProducts];
  if (!products.is_object()) return refuse(absl::StrCat(", \"", kProducts, "\""), "an object");
  for (const auto& [key, choice] : products.items()) {
    if (!choice.is_string()) return refuse(absl::StrCat(", \"", kProducts, "\", \"", key, "\""), "a text");
    choices.emplace(key, choice.get<std::string>());
  }
  return choices;
}

// Another process may read or replace the file meanwhile, but none sees half of it.
absl::Status Write(const std::string& path, const Json& json) {
  const std::string temporary = absl::StrCat(path, ".", getpid());
  const auto fail = [&] {
    const std::string why = std::strerror(errno);
    std::remove(temporary.c_str());
    return absl::UnavailableError(absl::StrCat("tuning file ", path, " cannot be written (", why, ")"));
  };
  std::ofstream file(temporary);
  file << json.dump(1) << "\n";
  file.close();
  if (!file) return fail();
  if (std::rename(temporary.c_str(), path.c_str()) != 0) return fail();
  return absl::OkStatus();
}

// (c) What rank 0 found is what every rank uses.
absl::Status Share(Machine& world, CudaRank& rank, const std::string& path, const absl::StatusOr<Choices>& found,
                   absl::string_view phase) {
  const std::string mine = rank.rank() == 0 && found.ok() ? Json(*found).dump() : std::string();
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> all, world.ExchangeBytes(phase, {mine}));
  absl::Status status = found.status();
  const Json json = Json::parse(all[0], /*callback=*/nullptr, /*allow_exceptions=*/false);
  if (status.ok() && json.is_object()) {
    const CallerState caller(rank.device());
    status = rank.lanes().compute_kernels().Choose(json.get<Choices>());
    if (!status.ok()) {
      status = absl::Status(status.code(), absl::StrCat("tuning file ", path, ": ", std::string(status.message()),
                                                        "; remove this entry"));
    }
  }
  return world.Agree(phase, status, {});
}

absl::StatusOr<std::string> DeviceName(int device) {
  cudaDeviceProp properties;
  REPRISE_RETURN_IF_ERROR(kernels::CudaStatus(cudaGetDeviceProperties(&properties, device), "asking for the device"));
  int driver = 0;
  REPRISE_RETURN_IF_ERROR(kernels::CudaStatus(cudaDriverGetVersion(&driver), "asking for the driver's version"));
  return absl::StrCat(properties.name, ", ", properties.multiProcessorCount, " multiprocessors, CUDA driver ",
                      driver / 1000, ".", driver % 1000 / 10);
}

// What choices of transports are for.
absl::StatusOr<std::string> TunedRanks(const CudaRank& rank) {
  REPRISE_ASSIGN_OR_RETURN(const std::string device, DeviceName(rank.device()));
  int nccl = 0;
  REPRISE_RETURN_IF_ERROR(NcclStatus(ncclGetVersion(&nccl), "asking for NCCL's version"));
  return absl::StrCat(device, ", NCCL ", NcclVersionName(nccl), ", ", rank.size(), " ranks");
}

// The text of the file's choices; empty if it has none.
absl::StatusOr<std::string> TransportsIn(const CudaRank& rank, const std::string& path) {
  REPRISE_ASSIGN_OR_RETURN(const Json json, Read(path));
  REPRISE_ASSIGN_OR_RETURN(const std::string ranks, TunedRanks(rank));
  if (!json.contains(ranks)) return std::string();
  if (!json[ranks].is_object()) return Refuse(path, ranks, "", "an object");
  if (!json[ranks].contains(kTransportsEntry)) return std::string();
  const Json& text = json[ranks][kTransportsEntry];
  if (!text.is_string()) return Refuse(path, ranks, absl::StrCat(", \"", kTransportsEntry, "\""), "a text");
  const absl::StatusOr<std::vector<TransportChoice>> choices = TransportChoicesFromText(text.get<std::string>());
  if (choices.ok() && !choices->empty()) return text.get<std::string>();
  return Refuse(path, ranks, absl::StrCat(", \"", kTransportsEntry, "\""),
                choices.ok() ? "one or more transports" : std::string(choices.status().message()));
}

// What the file has then: another process may have measured meanwhile.
absl::StatusOr<std::string> KeepTransports(const CudaRank& rank, const std::string& path, const TransportTimes& times) {
  REPRISE_ASSIGN_OR_RETURN(const std::string kept, TransportsIn(rank, path));
  if (!kept.empty() || times.empty()) return kept;
  REPRISE_ASSIGN_OR_RETURN(Json json, Read(path));
  REPRISE_ASSIGN_OR_RETURN(const std::string ranks, TunedRanks(rank));
  Json& entry = json[ranks] = Json::object();
  const std::string choices = ToText(ChooseTransports(times));
  entry[kTransportsEntry] = choices;
  for (const auto& [bytes, of_size] : times) {
    for (const auto& [transport, milliseconds] : of_size) {
      entry[kMilliseconds][absl::StrCat(bytes)][std::string(Name(transport))] = milliseconds;
    }
  }
  REPRISE_RETURN_IF_ERROR(Write(path, json));
  return choices;
}

// (c) Rank 0's text, on every rank.
absl::StatusOr<std::string> FromRank0(Machine& world, const CudaRank& rank, absl::string_view phase,
                                      const std::function<absl::StatusOr<std::string>()>& make) {
  const absl::StatusOr<std::string> mine = rank.rank() == 0 ? make() : absl::StatusOr<std::string>("");
  REPRISE_RETURN_IF_ERROR(world.Agree(phase, mine.status(), {}));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> all, world.ExchangeBytes(phase, {*mine}));
  return all[0];
}

}  // namespace

absl::StatusOr<std::string> TunedDevice(int device) {
  REPRISE_ASSIGN_OR_RETURN(const std::string name, DeviceName(device));
  return absl::StrCat(name, ", cuBLASLt ", kernels::CublasLtVersion());
}

absl::Status LoadTuning(Machine& world, CudaRank& rank, const std::string& path) {
  const auto load = [&]() -> absl::StatusOr<Choices> {
    if (rank.rank() != 0) return Choices();
    const CallerState caller(rank.device());
    REPRISE_ASSIGN_OR_RETURN(const Json json, Read(path));
    REPRISE_ASSIGN_OR_RETURN(const std::string device, TunedDevice(rank.device()));
    return ChoicesOf(json, device, path);
  };
  return Share(world, rank, path, load(), "reading the tuning file");
}

absl::Status Tune(Machine& world, CudaRank& rank, const std::string& path) {
  const CallerState caller(rank.device());
  constexpr absl::string_view kPhase = "choosing kernels";
  REPRISE_RETURN_IF_ERROR(world.Agree(kPhase, rank.queue().Wait(), {}));
  REPRISE_ASSIGN_OR_RETURN(const std::string untuned, FromRank0(world, rank, kPhase, [&] {
                             return rank.lanes().compute_kernels().has_untuned() ? std::string("untuned") : std::string();
                           }));
  if (untuned.empty()) return absl::OkStatus();
  const auto tune = [&]() -> absl::StatusOr<Choices> {
    if (rank.rank() != 0) return Choices();
    REPRISE_RETURN_IF_ERROR(rank.lanes().compute_kernels().Tune());
    Choices choices = rank.lanes().compute_kernels().choices();
    REPRISE_ASSIGN_OR_RETURN(Json json, Read(path));
    REPRISE_ASSIGN_OR_RETURN(const std::string device, TunedDevice(rank.device()));
    // What another process chose meanwhile stays.
    REPRISE_ASSIGN_OR_RETURN(const Choices now, ChoicesOf(json, device, path));
    for (auto& [key, choice] : choices) {
      const auto kept = now.find(key);
      if (kept != now.end()) {
        choice = kept->second;
      } else {
        json[device][kProducts][key] = choice;
      }
    }
    REPRISE_RETURN_IF_ERROR(Write(path, json));
    return choices;
  };
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<PeerTraffic> traffic, PeerTraffic::Start(world, rank));
  const absl::Status shared = Share(world, rank, path, tune(), kPhase);
  const absl::Status stopped = traffic == nullptr ? absl::OkStatus() : traffic->Stop(world);
  return shared.ok() ? stopped : shared;
}

absl::StatusOr<AutoTransports> TuneTransports(Machine& world, CudaRank& rank, const std::string& path,
                                              const std::function<absl::StatusOr<TransportTimes>()>& measure) {
  if (rank.size() == 1) return AutoTransports{.reason = "one rank has nothing to choose"};
  const CallerState caller(rank.device());
  REPRISE_ASSIGN_OR_RETURN(const std::string why, WhyNoWindows(world, rank));
  if (!why.empty()) return AutoTransports{.reason = absl::StrCat("no other can be used: ", why)};
  std::string reason = absl::StrCat("kept in ", path);
  REPRISE_ASSIGN_OR_RETURN(std::string text,
                           FromRank0(world, rank, "reading the tuning file", [&] { return TransportsIn(rank, path); }));
  if (text.empty()) {
    reason = absl::StrCat("measured, and kept in ", path);
    REPRISE_ASSIGN_OR_RETURN(const TransportTimes times, measure());
    REPRISE_ASSIGN_OR_RETURN(
        text, FromRank0(world, rank, "choosing transports", [&] { return KeepTransports(rank, path, times); }));
  }
  if (text.empty()) return AutoTransports{.reason = "too little memory to measure others"};
  REPRISE_ASSIGN_OR_RETURN(std::vector<TransportChoice> choices, TransportChoicesFromText(text));
  return AutoTransports{std::move(choices), std::move(reason)};
}

}  // namespace reprise::internal
