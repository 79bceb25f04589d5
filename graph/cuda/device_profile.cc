#include "graph/cuda/device_profile.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/cuda/cupti_api.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr size_t kBufferAlignment = 8;  // that CUPTI asks for
constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET,
                                         // External correlation records accompany the records of API calls.
                                         CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, CUPTI_ACTIVITY_KIND_RUNTIME,
                                         CUPTI_ACTIVITY_KIND_DRIVER};
constexpr CUpti_ExternalCorrelationKind kExternal = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;

struct Record {
  uint64_t graph_node = 0;  // 0: not of a graph
  uint32_t correlation = 0;
  Activity activity;
};

// "void ns::Kernel<int>(int*)" as "ns::Kernel<int>".
std::string KernelName(const char* mangled) {
  if (mangled == nullptr) return "";
  int status = 0;
  char* const demangled = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = demangled == nullptr ? mangled : demangled;
  std::free(demangled);
  int depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (name[i] == '(' && depth == 0 && name.compare(i, 11, "(anonymous ") != 0) {
      name.resize(i);
      break;
    }
  }
  return name.rfind("void ", 0) == 0 ? name.substr(5) : name;
}

class CuptiProfile;
// CUPTI's callbacks for buffers carry no argument of ours, and may come on a thread of CUPTI's: the lock is held while
// one reads a buffer.
std::mutex open_mutex;
CuptiProfile* open_profile = nullptr;

class CuptiProfile : public DeviceProfile {
 public:
  CuptiProfile(int rank, const CuptiApi& cupti) : rank_(rank), cupti_(cupti) {}
  ~CuptiProfile() override { Close().IgnoreError(); }

  absl::Status Open() {
    {
      const std::lock_guard<std::mutex> lock(open_mutex);
      if (open_profile != nullptr) {
        return absl::FailedPreconditionError("another profile of this process is open; stop that first");
      }
      open_profile = this;
      static int64_t profiles = 0;
      number_ = profiles++;
    }
    is_open_ = true;
    // If another tool holds CUPTI, all else is that tool's.
    REPRISE_RETURN_IF_ERROR(
        Check(cupti_.subscribe(&subscriber_, reinterpret_cast<CUpti_CallbackFunc>(OnCallback), this), "opening CUPTI"));
    is_subscribed_ = true;
    REPRISE_RETURN_IF_ERROR(
        Check(cupti_.enable_callback(1, subscriber_, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED),
              "asking CUPTI for nodes"));
    REPRISE_RETURN_IF_ERROR(
        Check(cupti_.activity_register_callbacks(GiveBuffer, TakeBuffer), "asking CUPTI for records"));
    for (const CUpti_ActivityKind kind : kKinds) {
      REPRISE_RETURN_IF_ERROR(Check(cupti_.activity_enable(kind), "asking CUPTI for records"));
      enabled_.push_back(kind);
    }
    return absl::OkStatus();
  }

  int64_t number() const override { return number_; }

  absl::StatusOr<GraphExecHandle> Instantiate(cudaGraph_t graph, const NodeCommands& commands) override {
    instantiating_ = &commands;
    GraphExecHandle exec;
    const cudaError_t error = cudaGraphInstantiate(exec.receive(), graph, cudaGraphInstantiateFlagUseNodePriority);
    instantiating_ = nullptr;
    REPRISE_RETURN_IF_ERROR(kernels::CudaStatus(error, "instantiating a graph to time it"));
    return exec;
  }

  void BeginReplay(int schedule) override { schedules_.push_back(schedule); }
  void BeginLaunch(CommandId command) override {
    const uint64_t replay = schedules_.size() - 1;
    cupti_.activity_push_external_correlation_id(kExternal, replay << 32 | static_cast<uint32_t>(command.value()));
  }
  void EndLaunch() override { cupti_.activity_pop_external_correlation_id(kExternal, nullptr); }

  absl::StatusOr<Timeline> Stop(int64_t& origin_ns) override {
    REPRISE_RETURN_IF_ERROR(Check(cupti_.activity_flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "collecting records"));
    REPRISE_RETURN_IF_ERROR(Close());
    if (dropped_ > 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("CUPTI dropped ", dropped_, " records; time fewer replays at once"));
    }
    origin_ns = origin_ns_;
    return MakeTimeline();
  }

 private:
  absl::Status Check(CUptiResult result, absl::string_view what) const { return CuptiStatus(cupti_, result, what); }

  absl::Status Close() {
    if (!std::exchange(is_open_, false)) return absl::OkStatus();
    absl::Status status;
    if (std::exchange(is_subscribed_, false)) {
      for (const CUpti_ActivityKind kind : std::exchange(enabled_, {})) {
        status.Update(Check(cupti_.activity_disable(kind), "closing CUPTI"));
      }
      status.Update(Check(cupti_.unsubscribe(subscriber_), "closing CUPTI"));
      // Or every later call of CUDA's would pay for the tool. Gives the last buffers back.
      status.Update(Check(cupti_.finalize(), "closing CUPTI"));
    }
    const std::lock_guard<std::mutex> lock(open_mutex);
    open_profile = nullptr;
    return status;
  }

  // ---- callbacks ----

  static void CUPTIAPI OnCallback(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
    if (domain != CUPTI_CB_DOMAIN_RESOURCE || id != CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED) return;
    const auto* const resource = static_cast<const CUpti_ResourceData*>(data);
    static_cast<CuptiProfile*>(self)->AddClone(*static_cast<const CUpti_GraphData*>(resource->resourceDescriptor));
  }
  void AddClone(const CUpti_GraphData& cloned) {
    if (instantiating_ == nullptr) return;
    const auto command = instantiating_->find(cloned.originalNode);
    uint64_t id = 0;
    if (command == instantiating_->end()) return;
    if (cupti_.get_graph_node_id(cloned.node, &id) == CUPTI_SUCCESS) commands_[id] = command->second;
  }

  static void CUPTIAPI GiveBuffer(uint8_t** buffer, size_t* size, size_t* max_records) {
    *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
    *size = *buffer == nullptr ? 0 : kBufferBytes;
    *max_records = 0;
  }
  // May be called on a thread of CUPTI's.
  static void CUPTIAPI TakeBuffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t, size_t valid_size) {
    {
      // None is open for what CUPTI gives back late.
      const std::lock_guard<std::mutex> lock(open_mutex);
      if (open_profile != nullptr) open_profile->ReadBuffer(context, stream, buffer, valid_size);
    }
    std::free(buffer);
  }
  void ReadBuffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t valid_size) {
    CUpti_Activity* record = nullptr;
    while (cupti_.activity_get_next_record(buffer, valid_size, &record) == CUPTI_SUCCESS) ReadRecord(*record);
    size_t dropped = 0;
    if (cupti_.activity_get_num_dropped_records(context, stream, &dropped) == CUPTI_SUCCESS) dropped_ += dropped;
  }

  template <class T>
  void Add(const T& record, ActivityKind kind, std::string name, int64_t num_bytes) {
    if (record.end == 0) return;
    if (origin_ns_ == 0) origin_ns_ = static_cast<int64_t>(record.start);
    records_.push_back({record.graphNodeId,
                        record.correlationId,
                        {.kind = kind,
                         .name = std::move(name),
                         .stream = record.streamId,
                         .start_us = FromOrigin(record.start),
                         .end_us = FromOrigin(record.end),
                         .num_bytes = num_bytes}});
  }
  double FromOrigin(uint64_t ns) const { return static_cast<double>(static_cast<int64_t>(ns) - origin_ns_) / 1000; }
  void ReadRecord(const CUpti_Activity& record) {
    switch (record.kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel10&>(record);
        Add(kernel, ActivityKind::kKernel, KernelName(kernel.name), 0);
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpy6&>(record);
        Add(copy, ActivityKind::kCopy, "", static_cast<int64_t>(copy.bytes));
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY2: {
        const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpyPtoP4&>(record);
        Add(copy, ActivityKind::kCopy, "", static_cast<int64_t>(copy.bytes));
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMSET: {
        const auto& fill = reinterpret_cast<const CUpti_ActivityMemset4&>(record);
        Add(fill, ActivityKind::kFill, "", static_cast<int64_t>(fill.bytes));
        break;
      }
      case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
        const auto& external = reinterpret_cast<const CUpti_ActivityExternalCorrelation&>(record);
        if (external.externalKind == kExternal) externals_[external.correlationId] = external.externalId;
        break;
      }
      default:
        break;
    }
  }

  // ---- the result ----

  Timeline MakeTimeline() {
    std::map<std::pair<int, CommandId>, CommandSpan> spans;  // by replay
    for (Record& record : records_) {
      const auto external = externals_.find(record.correlation);
      if (external == externals_.end()) continue;  // of something else
      const int replay = static_cast<int>(external->second >> 32);
      CommandId command(static_cast<int32_t>(external->second & 0xffffffffu));
      if (!command.valid()) {
        const auto node = commands_.find(record.graph_node);
        if (node == commands_.end()) continue;
        command = node->second;
      }
      CommandSpan& span = spans[{replay, command}];
      const double start = record.activity.start_us, end = record.activity.end_us;
      span.start_us = span.activities.empty() ? start : std::min(span.start_us, start);
      span.end_us = span.activities.empty() ? end : std::max(span.end_us, end);
      span.activities.push_back(std::move(record.activity));
    }
    Timeline timeline;
    for (auto& [key, span] : spans) {
      span.rank = rank_;
      span.replay = key.first;
      span.schedule = schedules_[key.first];
      span.command = key.second;
      std::sort(span.activities.begin(), span.activities.end(), [](const Activity& a, const Activity& b) {
        return std::tie(a.start_us, a.end_us, a.name) < std::tie(b.start_us, b.end_us, b.name);
      });
      timeline.spans.push_back(std::move(span));
    }
    return timeline;
  }

  const int rank_;
  const CuptiApi& cupti_;
  int64_t number_ = 0;
  bool is_open_ = false, is_subscribed_ = false;
  std::vector<CUpti_ActivityKind> enabled_;
  CUpti_SubscriberHandle subscriber_ = nullptr;
  const NodeCommands* instantiating_ = nullptr;
  std::unordered_map<uint64_t, CommandId> commands_;  // by id of a cloned node
  std::vector<int> schedules_;                        // by replay
  // ---- read under open_mutex until it is closed ----
  int64_t origin_ns_ = 0;  // start of the first record
  std::vector<Record> records_;
  std::unordered_map<uint32_t, uint64_t> externals_;  // by correlation
  size_t dropped_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceProfile>> StartDeviceProfile(int rank) {
  REPRISE_ASSIGN_OR_RETURN(const CuptiApi* const cupti, LoadCupti());
  return StartDeviceProfile(rank, *cupti);
}

absl::StatusOr<std::unique_ptr<DeviceProfile>> StartDeviceProfile(int rank, const CuptiApi& cupti) {
  auto profile = std::make_unique<CuptiProfile>(rank, cupti);
  REPRISE_RETURN_IF_ERROR(profile->Open());
  return std::unique_ptr<DeviceProfile>(std::move(profile));
}

}  // namespace reprise::internal
