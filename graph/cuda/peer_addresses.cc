#include "graph/cuda/peer_addresses.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "graph/cuda/nccl_status.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

using kernels::CudaStatus;

// ncclGetLsaDevicePointer, which the header that this is built with may lack.
using GetPointer = ncclResult_t (*)(ncclWindow_t window, size_t offset, int rank, void** address);
GetPointer FindGetPointer() {
  static const GetPointer function = reinterpret_cast<GetPointer>(dlsym(RTLD_DEFAULT, "ncclGetLsaDevicePointer"));
  return function;
}

// Anything else would be read by the host in a copy, and end the process.
bool IsDeviceMemory(const void* address) {
  cudaPointerAttributes attributes = {};
  if (address != nullptr && cudaPointerGetAttributes(&attributes, address) == cudaSuccess) {
    return attributes.type == cudaMemoryTypeDevice;
  }
  cudaGetLastError();
  return false;
}

absl::Status WrongAddress(int rank, absl::string_view found) {
  int version = 0;
  ncclGetVersion(&version);
  return absl::UnavailableError(absl::StrCat("the memory of rank ", rank, " is not where NCCL ",
                                             NcclVersionName(version), " was understood to open it (", found,
                                             "); use a version of NCCL that this was tried with, 2.28.7 to 2.30.7"));
}

absl::Status AskDevice(ncclWindow_t window, cudaStream_t stream, std::vector<std::byte*>& addresses) {
  constexpr absl::string_view kWhat = "asking for addresses";
  const size_t num_bytes = addresses.size() * sizeof(std::byte*);
  std::byte** scratch = nullptr;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaMalloc(&scratch, num_bytes), "taking memory for addresses"));
  absl::Status status =
      CudaStatus(LaunchPeerAddresses(stream, window, static_cast<int>(addresses.size()), scratch), kWhat);
  status.Update(
      CudaStatus(cudaMemcpyAsync(addresses.data(), scratch, num_bytes, cudaMemcpyDeviceToHost, stream), kWhat));
  status.Update(CudaStatus(cudaStreamSynchronize(stream), kWhat));
  cudaFree(scratch);
  return status;
}

absl::Status AskLibrary(GetPointer get_pointer, ncclWindow_t window, std::vector<std::byte*>& addresses) {
  for (size_t rank = 0; rank < addresses.size(); ++rank) {
    void* address = nullptr;
    REPRISE_RETURN_IF_ERROR(NcclStatus(get_pointer(window, /*offset=*/0, static_cast<int>(rank), &address),
                                       absl::StrCat("asking NCCL for the memory of rank ", rank)));
    addresses[rank] = static_cast<std::byte*>(address);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::byte*>> FindPeerAddresses(ncclComm_t communicator, ncclWindow_t window, int size,
                                                          cudaStream_t stream) {
  // NCCL gives something else, of which devices know nothing, where it has no windows.
  if (!IsDeviceMemory(window)) {
    return absl::UnavailableError(
        "the devices cannot reach each other's memory through NCCL; see that they have peer access and that neither "
        "NCCL_WIN_ENABLE nor NCCL_CUMEM_ENABLE is 0");
  }
  if (const int in_reach = NumRanksInReach(communicator); in_reach != size) {
    return absl::UnavailableError(absl::StrCat("NCCL lets the devices of ", in_reach, " ranks reach each other's ",
                                               "memory, but there are ", size,
                                               " ranks; see that all devices have peer access to each other"));
  }
  std::vector<std::byte*> addresses(static_cast<size_t>(size));
  const GetPointer get_pointer = FindGetPointer();
  REPRISE_RETURN_IF_ERROR(get_pointer != nullptr ? AskLibrary(get_pointer, window, addresses)
                                                 : AskDevice(window, stream, addresses));
  for (int rank = 0; rank < size; ++rank) {
    if (!IsDeviceMemory(addresses[static_cast<size_t>(rank)])) return WrongAddress(rank, "no device memory is there");
  }
  return addresses;
}

absl::Status CheckTokens(absl::Span<const uint32_t* const> words, absl::Span<const uint32_t> tokens,
                         cudaStream_t stream) {
  for (size_t rank = 0; rank < words.size(); ++rank) {
    if (!IsDeviceMemory(words[rank])) return WrongAddress(static_cast<int>(rank), "no device memory is there");
    uint32_t found = 0;
    REPRISE_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(&found, words[rank], sizeof(found), cudaMemcpyDeviceToHost, stream),
                   "reading another rank's token"));
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream), "reading another rank's token"));
    if (found == tokens[rank]) continue;
    return WrongAddress(static_cast<int>(rank), absl::StrCat("its token ", tokens[rank], " reads as ", found));
  }
  return absl::OkStatus();
}

}  // namespace reprise::internal
