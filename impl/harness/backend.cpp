#include "impl/harness/backend.h"

#include "impl/base/sha256.h"
#include "impl/harness/registry.h"
#include "impl/model/weights.h"
#include "impl/schedule/verify.h"

namespace lamina {
namespace {

Schedule build_verified(const Method& method, const Plan& plan) {
  Schedule schedule = build_schedule(method, plan);
  verify(schedule);
  return schedule;
}

std::string sha256_of_data(const DataConfig& data, const ModelShape& model, std::int64_t seed) {
  return open_token_source(data, model.sequence, model.vocabulary, seed)->sha256();
}

void check_weights_fit(const std::string& path, const ModelShape& model) {
  const auto tensors = read_safetensors(path);
  for (const Unit unit : all_units(model)) {
    unit_from_tensors(model, unit, tensors);
  }
}

std::function<std::unique_ptr<MpiTransport>()> mpi_starter() {
#ifdef LAMINA_WITH_MPI
  return [] { return make_mpi_transport(); };
#else
  return nullptr;
#endif
}

}  // namespace

Backend real_backend() {
  return {.methods = all_methods(),
          .method_named = method_named,
          .resolve_plan = resolve_plan,
          .build_schedule = build_verified,
          .planned_memory = planned_memory,
          .train = train,
          .train_on = train_on,
          .start_mpi = mpi_starter(),
          .data_sha256 = sha256_of_data,
          .check_weights = check_weights_fit,
          .sha256 = [](std::string_view text) { return sha256(text); },
          .blas_info = blas_info};
}

}  // namespace lamina
