// The functions of CUPTI that a profile needs, looked up when the first one starts: programs must run where CUPTI is
// not installed.
#ifndef REPRISE_GRAPH_CUDA_CUPTI_API_H_
#define REPRISE_GRAPH_CUDA_CUPTI_API_H_

#include <cupti.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace reprise::internal {

struct CuptiApi {
  decltype(&cuptiSubscribe) subscribe = nullptr;
  decltype(&cuptiUnsubscribe) unsubscribe = nullptr;
  decltype(&cuptiEnableCallback) enable_callback = nullptr;
  decltype(&cuptiGetGraphNodeId) get_graph_node_id = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) activity_register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) activity_enable = nullptr;
  decltype(&cuptiActivityDisable) activity_disable = nullptr;
  decltype(&cuptiActivityGetNextRecord) activity_get_next_record = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) activity_get_num_dropped_records = nullptr;
  decltype(&cuptiActivityPushExternalCorrelationId) activity_push_external_correlation_id = nullptr;
  decltype(&cuptiActivityPopExternalCorrelationId) activity_pop_external_correlation_id = nullptr;
  decltype(&cuptiActivityFlushAll) activity_flush_all = nullptr;
  decltype(&cuptiFinalize) finalize = nullptr;
  decltype(&cuptiGetResultString) get_result_string = nullptr;
};

// Loaded once per process. Unavailable, with the loader's words, if the library or a function is missing.
absl::StatusOr<const CuptiApi*> LoadCupti();

// Unavailable if another tool holds CUPTI or it may not be used here; otherwise Internal.
absl::Status CuptiStatus(const CuptiApi& cupti, CUptiResult result, absl::string_view what);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_CUPTI_API_H_
