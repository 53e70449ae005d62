// What the harness asks of the rest of the program, as functions, so that tests can run it without training.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "impl/comm/mpi.h"
#include "impl/engine/train.h"
#include "impl/model/data.h"
#include "impl/model/transformer.h"
#include "impl/schedule/build.h"

namespace lamina {

struct Backend {
  std::span<const Method* const> methods;
  std::function<const Method&(std::string_view name)> method_named;  // throws UsageError
  std::function<Plan(const Method&, const ModelShape&, const Batch&, const PlanRequest&, bool update_after_norm)>
      resolve_plan;
  std::function<Schedule(const Method&, const Plan&)> build_schedule;  // built and verified
  // Of one rank, before anything is allocated; as planned_memory().
  std::function<RankMemory(const Schedule&, std::int64_t pipeline_rank, std::int64_t data_rank, const OptimizerConfig&,
                           const Precision&, int compute_threads)>
      planned_memory;
  std::function<TrainOutcome(const TrainRequest&, const StepProgress&)> train;
  std::function<TrainOutcome(const TrainRequest&, Transport&, const StepProgress&)> train_on;
  std::function<std::unique_ptr<MpiTransport>()> start_mpi;  // empty in a build without MPI
  // Both throw UsageError when what a file holds does not fit the model.
  std::function<std::string(const DataConfig&, const ModelShape&, std::int64_t seed)> data_sha256;
  std::function<void(const std::string& path, const ModelShape&)> check_weights;
  std::function<std::string(std::string_view)> sha256;
  std::function<BlasInfo()> blas_info;
};

// The program itself.
Backend real_backend();

}  // namespace lamina
