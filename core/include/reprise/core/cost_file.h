// What was measured on a machine, as one file: predictions read its costs, and worlds what is quickest there.
#ifndef REPRISE_CORE_COST_FILE_H_
#define REPRISE_CORE_COST_FILE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "reprise/core/cost_model.h"
#include "reprise/core/transport.h"

namespace reprise {

// What was measured on, by name: elsewhere choices may be slower, or impossible.
using MachineFacts = std::map<std::string, std::string>;
// The first that differs, as `"ranks" is "2" there but "4" here`; empty if none does.
std::string DifferenceOf(const MachineFacts& there, const MachineFacts& here);

struct CostFile {
  MachineFacts device = {};  // gpu, driver, cublaslt: GEMMs are for these
  MachineFacts job = {};     // nccl, ranks, hosts, nccl_settings: transports are for these on that device
  CostModel costs = {};
  std::vector<TransportChoice> transports = {};   // PlanOptions::transports where these are unset
  std::map<std::string, std::string> gemms = {};  // by GEMM what cuBLASLt says that its quickest kernel is

  friend bool operator==(const CostFile&, const CostFile&) = default;
};

// {"version": 1,
//  "device": {"cublaslt": "130100", "driver": "13.0", "gpu": "NVIDIA H200, 132 multiprocessors"},
//  "job": {"hosts": "1", "nccl": "2.28.9", "nccl_settings": "NCCL_GRAPH_REGISTER=0", "ranks": "2"},
//  "costs": {"flops": 7e14, "ranks": 2, "calls": {"head": {"forward": 1e12, "backward": 2e12}}},
//  "transports": "nccl,4194304:copy_engine",
//  "gemms": {...}}
//
// All but the version may be missing, and of the costs, the fields of CostModel by name, any: it then is as
// initialised, but `ranks` is unset if both bandwidths are given. CostFileFromJson refuses everything else
// (InvalidArgument, saying where); ToJson gives text that reads as the same file.
std::string ToJson(const CostFile& file);
absl::StatusOr<CostFile> CostFileFromJson(absl::string_view json);

}  // namespace reprise

#endif  // REPRISE_CORE_COST_FILE_H_
