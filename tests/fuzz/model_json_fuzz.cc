// Fuzzes Model::FromJson: whatever the text, it is refused, or read as a model that survives the way through JSON.
//
// With libFuzzer, from the project's root, in one line each:
//   clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -Icore/include -I. tests/fuzz/model_json_fuzz.cc
//     core/{dtype,json_reader,json_text,layout,model,model_json,model_validation,names,quoted}.cc
//     -labsl_status -labsl_statusor -labsl_strings -labsl_base -labsl_throw_delegate -o model_json_fuzz
//   mkdir -p found && ./model_json_fuzz -max_len=4096 found tests/fuzz/corpus/model_json
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>

#include "reprise/core/layout.h"
#include "reprise/core/model.h"

namespace {

// libFuzzer keeps the input of a run that aborts.
[[noreturn]] void Fail(const char* what) {
  std::cerr << what << "\n";
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::StatusOr<reprise::Model> model =
      reprise::Model::FromJson(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!model.ok()) {
    if (model.status().code() != absl::StatusCode::kInvalidArgument) Fail("another code than InvalidArgument");
    return 0;
  }
  const std::string text = model->ToJson();
  const absl::StatusOr<reprise::Model> again = reprise::Model::FromJson(text);
  if (!again.ok()) Fail("what ToJson wrote is refused");
  if (!(*again == *model)) Fail("the model has changed on the way through JSON");
  if (again->ToJson() != text) Fail("the text has changed on the way through JSON");
  // What a valid model is asked next.
  if (model->ToString().empty() != (*model == reprise::Model())) Fail("ToString has nothing to say");
  (void)LayOut(*model, 3);
  return 0;
}
