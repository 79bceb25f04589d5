#include "graph/cuda/cupti_api.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

template <class Function>
absl::Status Find(void* library, const char* name, Function& function) {
  void* const address = dlsym(library, name);
  if (address == nullptr) return absl::UnavailableError(absl::StrCat("CUPTI has no ", name, "; install a newer one"));
  function = reinterpret_cast<Function>(address);
  return absl::OkStatus();
}

absl::StatusOr<CuptiApi> Load() {
  // The library that belongs to the headers, by the loader's search, else from where it was when this was built.
  void* library = nullptr;
  for (const char* const name : {"libcupti.so." REPRISE_CUPTI_MAJOR, REPRISE_CUPTI_LIBRARY}) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  if (library == nullptr) {
    return absl::UnavailableError(absl::StrCat("replays cannot be timed without CUPTI: ", dlerror(),
                                               "; install CUPTI, or name its folder in LD_LIBRARY_PATH"));
  }
  CuptiApi api;
  REPRISE_RETURN_IF_ERROR(Find(library, "cuptiSubscribe", api.subscribe));
  REPRISE_RETURN_IF_ERROR(Find(library, "cuptiUnsubscribe", api.unsubscribe));
  REPRISE_RETURN_IF_ERROR(Find(library, "cuptiEnableCallback", api.enable_callback));
  REPRISE_RETURN_IF_ERROR(Find(library, "cuptiGetGraphNodeId", api.get_graph_node_id));
  REPRISE_RETURN_IF_ERROR(Find(library, "cuptiActivityRegisterCallbacks", api.activity_register_callbacks));
  REPRISE_RETURN_IF_ERROR(Find(library, "cuptiActivityEnable", api.activity_enable));
  REPRISE_RETURN_IF_ERROR(Find(library, "cuptiActivityDisable", api.activity_disable));
  REPRISE_RETURN_IF_ERROR(Find(library, "cuptiActivityGetNextRecord", api.activity_get_next_record));
  REPRISE_RETURN_IF_ERROR(Find(library, "cuptiActivityGetNumDroppedRecords", api.activity_get_num_dropped_records));
  REPRISE_RETURN_IF_ERROR(
      Find(library, "cuptiActivityPushExternalCorrelationId", api.activity_push_external_correlation_id));
  REPRISE_RETURN_IF_ERROR(
      Find(library, "cuptiActivityPopExternalCorrelationId", api.activity_pop_external_correlation_id));
  REPRISE_RETURN_IF_ERROR(Find(library, "cuptiActivityFlushAll", api.activity_flush_all));
  REPRISE_RETURN_IF_ERROR(Find(library, "cuptiFinalize", api.finalize));
  REPRISE_RETURN_IF_ERROR(Find(library, "cuptiGetResultString", api.get_result_string));
  return api;
}

}  // namespace

absl::StatusOr<const CuptiApi*> LoadCupti() {
  static const absl::StatusOr<CuptiApi> api = Load();
  REPRISE_RETURN_IF_ERROR(api.status());
  return &*api;
}

absl::Status CuptiStatus(const CuptiApi& cupti, CUptiResult result, absl::string_view what) {
  if (result == CUPTI_SUCCESS) return absl::OkStatus();
  const char* words = "unknown error";
  cupti.get_result_string(result, &words);
  const std::string message = absl::StrCat(what, ": ", words, " (CUPTI error ", static_cast<int>(result), ")");
  switch (result) {
    case CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED:
      return absl::UnavailableError(absl::StrCat(message, "; run without other profilers"));
    case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
    case CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED:
    case CUPTI_ERROR_NOT_SUPPORTED:
      return absl::UnavailableError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace reprise::internal
