#include "graph/cuda/tuning.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

#include "absl/strings/str_cat.h"
#include "graph/cuda/caller_state.h"
#include "kernels/cuda/cuda_status.h"
#include "nlohmann/json.hpp"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// {"NVIDIA H200, 132 multiprocessors, CUDA driver 13.0, cuBLASLt 130100": {"products": {key: choice}}}, where an
// algorithm is what the library says that it is, of this version and on this GPU.
using Json = nlohmann::ordered_json;
constexpr char kProducts[] = "products";
using Choices = std::map<std::string, std::string>;

absl::StatusOr<Json> Read(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    if (errno == ENOENT) return Json::object();
    return absl::UnavailableError(absl::StrCat("tuning file ", path, " cannot be read (", std::strerror(errno), ")"));
  }
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Json json = Json::parse(text, /*callback=*/nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  return absl::InvalidArgumentError(
      absl::StrCat("tuning file ", path, " is no JSON object; remove it, and it will be made anew"));
}

absl::StatusOr<Choices> ChoicesOf(const Json& json, const std::string& device, const std::string& path) {
  const auto refuse = [&](absl::string_view place, absl::string_view wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("tuning file ", path, ", \"", device, "\"", place, ": not ", wanted, "; remove this entry"));
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
absl::Status Share(World& world, CudaRank& rank, const std::string& path, const absl::StatusOr<Choices>& found,
                   absl::string_view phase) {
  const std::string mine = rank.rank() == 0 && found.ok() ? Json(*found).dump() : std::string();
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> all, world.ExchangeBytes({mine}));
  absl::Status status = found.status();
  const Json json = Json::parse(all[0], /*callback=*/nullptr, /*allow_exceptions=*/false);
  if (status.ok() && json.is_object()) {
    const CallerState caller(rank.device());
    status = rank.compute_kernels().Choose(json.get<Choices>());
    if (!status.ok()) {
      status = absl::Status(status.code(), absl::StrCat("tuning file ", path, ": ", std::string(status.message()),
                                                        "; remove this entry"));
    }
  }
  return world.Agree(phase, status, {});
}

}  // namespace

absl::StatusOr<std::string> TunedDevice(int device) {
  cudaDeviceProp properties;
  REPRISE_RETURN_IF_ERROR(kernels::CudaStatus(cudaGetDeviceProperties(&properties, device), "asking for the device"));
  int driver = 0;
  REPRISE_RETURN_IF_ERROR(kernels::CudaStatus(cudaDriverGetVersion(&driver), "asking for the driver's version"));
  const size_t library = kernels::CublasLtVersion();
  return absl::StrCat(properties.name, ", ", properties.multiProcessorCount, " multiprocessors, CUDA driver ",
                      driver / 1000, ".", driver % 1000 / 10, ", cuBLASLt ", library);
}

absl::Status LoadTuning(World& world, CudaRank& rank, const std::string& path) {
  const auto load = [&]() -> absl::StatusOr<Choices> {
    if (rank.rank() != 0) return Choices();
    const CallerState caller(rank.device());
    REPRISE_ASSIGN_OR_RETURN(const Json json, Read(path));
    REPRISE_ASSIGN_OR_RETURN(const std::string device, TunedDevice(rank.device()));
    return ChoicesOf(json, device, path);
  };
  return Share(world, rank, path, load(), "reading the tuning file");
}

absl::Status Tune(World& world, CudaRank& rank, const std::string& path) {
  const auto tune = [&]() -> absl::StatusOr<Choices> {
    REPRISE_RETURN_IF_ERROR(rank.Wait());
    if (rank.rank() != 0) return Choices();
    const CallerState caller(rank.device());
    const Choices before = rank.compute_kernels().choices();
    REPRISE_RETURN_IF_ERROR(rank.compute_kernels().Tune());
    Choices after = rank.compute_kernels().choices();
    if (after == before) return after;
    REPRISE_ASSIGN_OR_RETURN(Json json, Read(path));
    REPRISE_ASSIGN_OR_RETURN(const std::string device, TunedDevice(rank.device()));
    // What another process chose meanwhile stays.
    REPRISE_ASSIGN_OR_RETURN(const Choices now, ChoicesOf(json, device, path));
    for (auto& [key, choice] : after) {
      const auto kept = now.find(key);
      if (kept != now.end()) {
        choice = kept->second;
      } else {
        json[device][kProducts][key] = choice;
      }
    }
    REPRISE_RETURN_IF_ERROR(Write(path, json));
    return after;
  };
  return Share(world, rank, path, tune(), "choosing kernels");
}

}  // namespace reprise::internal
