#include "impl/harness/registry.h"

#include <array>
#include <vector>

#include "baselines/baselines.h"
#include "impl/base/error.h"
#include "impl/base/nearest.h"
#include "impl/methods/methods.h"

namespace lamina {

std::span<const Method* const> all_methods() {
  static constexpr std::array<const Method*, 6> kMethods{
      &data_parallel, &gpipe, &one_f_one_b, &interleaved_one_f_one_b, &layered_accumulation, &modular_pipeline};
  return kMethods;
}

const Method& method_named(std::string_view name) {
  std::vector<std::string_view> known;
  for (const Method* method : all_methods()) {
    if (method->name == name) {
      return *method;
    }
    known.push_back(method->name);
  }
  throw UsageError(fmt::format("method '{}' is not known; did you mean '{}'?", name, nearest_name(name, known)));
}

}  // namespace lamina
