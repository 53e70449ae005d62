// A program to put behind the harness in its tests: plans and schedules without passes, training without compute.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "impl/base/error.h"
#include "impl/base/sha256.h"
#include "impl/harness/backend.h"
#include "impl/harness/scenario.h"

namespace lamina::fakes {

inline std::int64_t only_rank(const Plan&, std::int64_t) { return 0; }
inline const Method kDepthFirst{"data_parallel", "depth-first", nullptr, only_rank, nullptr};
inline const Method kLayered{"layered_accumulation", "layered", nullptr, only_rank, nullptr};
inline constexpr std::array<const Method*, 2> kMethods{&kDepthFirst, &kLayered};

// A step of `time_s` on every rank, of which `exposed_s` exposed.
inline StepRecord step(std::int64_t ranks, double time_s, double exposed_s, double loss = 5) {
  StepRecord record;
  record.rank_time_s.assign(static_cast<std::size_t>(ranks), time_s);
  record.rank_exposed_s.assign(static_cast<std::size_t>(ranks), exposed_s);
  record.loss = loss;
  record.gradient_norm = 2;
  record.counted_targets = 100;
  StepTraffic traffic;
  traffic.bytes[static_cast<std::size_t>(TrafficKind::data_reduce)] = {10, 200, 30};
  traffic.bytes[static_cast<std::size_t>(TrafficKind::control)] = {0, 16, 0};
  record.rank_traffic.assign(static_cast<std::size_t>(ranks), traffic);
  return record;
}

// Steps as asked for, all alike; 0.2 s with communication, 0.1 s without.
inline TrainOutcome train(const TrainRequest& request, const StepProgress& progress) {
  const Plan& plan = request.schedule.plan;
  const std::int64_t ranks = plan.parallel.ranks();
  TrainOutcome outcome;
  for (std::int64_t index = 0; index < request.warmup_steps + request.measured_steps; ++index) {
    outcome.steps.push_back(request.communication ? step(ranks, 0.2, 0.05, 5 - static_cast<double>(index))
                                                  : step(ranks, 0.1, 0));
    progress(index, outcome.steps.back());
  }
  outcome.rank_memory.assign(static_cast<std::size_t>(ranks), RankMemory{1, 2, 3, 4, 5, 6, 7});
  outcome.resident_set_growth_bytes = {99};
  outcome.layers_built = plan.model.layers;
  outcome.parameters_built = model_parameters(plan.model);
  return outcome;
}

inline Backend backend() {
  Backend fake;
  fake.methods = kMethods;
  fake.method_named = [](std::string_view name) -> const Method& {
    for (const Method* method : kMethods) {
      if (method->name == name) {
        return *method;
      }
    }
    throw UsageError(fmt::format("method '{}' is not known", name));
  };
  fake.resolve_plan = [](const Method& method, const ModelShape& model, const Batch& batch, const PlanRequest& request,
                         bool update_after_norm) {
    Plan plan;
    plan.model = model;
    plan.method = method.name;
    plan.parallel = request.parallel;
    plan.zero_stage = request.zero_stage;
    plan.micro_batch_size = batch.micro;
    plan.micro_batches = micro_batches_of(batch, request.parallel.data);
    plan.groups = request.groups.value_or(&method == &kDepthFirst ? plan.micro_batches : 1);
    plan.update_after_norm = update_after_norm;
    return plan;
  };
  fake.build_schedule = [](const Method&, const Plan& plan) {
    return Schedule{plan, std::vector<Program>(static_cast<std::size_t>(plan.parallel.pipeline))};
  };
  fake.planned_memory = [](const Schedule&, std::int64_t, std::int64_t, const OptimizerConfig&, const Precision&, int) {
    return RankMemory{.parameters = 1000};
  };
  fake.train = train;
  fake.data_sha256 = [](const DataConfig&, const ModelShape&, std::int64_t) { return std::string(64, 'd'); };
  fake.check_weights = [](const std::string&, const ModelShape&) {};
  fake.sha256 = [](std::string_view text) { return sha256(text); };
  fake.blas_info = [] { return BlasInfo{"none", "none"}; };
  return fake;
}

// A folder of this test alone, empty at first.
inline std::string folder() {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  std::string name = fmt::format("{}.{}", test->test_suite_name(), test->name());
  std::replace(name.begin(), name.end(), '/', '_');
  std::filesystem::remove_all(name);
  std::filesystem::create_directories(name);
  return name;
}

inline std::string write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A small valid scenario, with synthetic data so that it needs no other file.
inline Json small_scenario() {
  return Json::parse(R"({
    "schema_version": 1, "name": "small", "executor": "train",
    "model": {"layers": 3, "hidden": 4, "heads": 2, "sequence": 8, "vocabulary": 16},
    "data": {"synthetic": {"seed": 1}},
    "batch": {"global": 8, "micro": 1},
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "steps": {"warmup": 1, "measured": 3},
    "runs": [
      {"name": "depth-first", "method": "data_parallel", "parallel": {"data": 2}},
      {"name": "layered", "method": "layered_accumulation", "parallel": {"data": 2}}
    ]
  })");
}

// The message of the UsageError that reading this text as a scenario ends with; empty when it is accepted.
inline std::string refusal(const std::string& text, const std::vector<std::string>& set = {}) {
  const std::string path = write_file(folder() + "/scenario.json", text);
  try {
    std::vector<Override> overrides;
    for (const std::string& one : set) {
      overrides.push_back(parse_override(one));
    }
    read_scenario(path, overrides);
    return "";
  } catch (const UsageError& error) {
    return error.what();
  }
}

inline Scenario read(const Json& document, const std::vector<std::string>& set = {}) {
  const std::string path = write_file(folder() + "/scenario.json", document.dump());
  std::vector<Override> overrides;
  for (const std::string& one : set) {
    overrides.push_back(parse_override(one));
  }
  return read_scenario(path, overrides);
}

}  // namespace lamina::fakes
