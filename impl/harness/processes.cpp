#include "impl/harness/processes.h"

#include <optional>

#include "impl/base/error.h"
#include "impl/comm/agreement.h"
#include "impl/comm/gather.h"
#include "impl/comm/launcher.h"
#include "impl/harness/context.h"
#include "impl/harness/result.h"
#include "impl/schedule/text.h"

namespace lamina {
namespace {

// Something that every rank refuses in the same words.
class Refusal : public UsageError {
 public:
  using UsageError::UsageError;
};

Json place_as_json(const RankPlace& place) {
  return {{"host", place.host}, {"cores", place.cores}, {"network", place.network}};
}

// What ranks must not differ in, beside the scenario: the program, its data, and what it does with them.
std::string hash_of_plans(const Experiment& experiment, const Backend& backend, bool trace) {
  std::string text = version_text() + (trace ? " with trace" : "");
  for (const std::string& data : experiment.data_sha256) {
    text += "\n" + data;
  }
  for (const PreparedRun& run : experiment.runs) {
    text += fmt::format("\n{} {} {}", run.name, run.share.threads_per_rank, to_text(run.schedule));
  }
  return backend.sha256(text);
}

void check_uses_processes(const Scenario& scenario) {
  if (!wants_processes(scenario)) {
    throw UsageError(
        fmt::format("{}: transport.kind is {}, whose ranks are all in one process; start it without a "
                    "launcher, or set transport.kind=mpi",
                    scenario.file, scenario.settings.front().transport));
  }
}

int take_part(const std::function<Scenario()>& read, RunOptions options, const Backend& backend,
              MpiTransport& transport, std::FILE* output, std::FILE* errors) {
  Scenario scenario;
  agree(transport, backend, "scenario", errors, [&] {
    scenario = read();
    check_uses_processes(scenario);
    return backend.sha256(canonical_text(scenario));
  });
  const Placement placement = agree_on_placement(transport);
  Experiment experiment;
  agree(transport, backend, "plan", errors, [&] {
    experiment = prepare(scenario, backend, placement);
    return hash_of_plans(experiment, backend, options.trace);
  });
  if (options.out.empty()) {
    options.out = "out/" + scenario.name;
  }
  agree_on_first(transport, [&] { make_room(experiment, options); });
  if (transport.rank() != 0) {
    follow_experiment(experiment, backend, transport);
    return kFine;
  }
  Reporter reporter(output, errors);
  return run_experiment(experiment, backend, options, reporter, &transport);
}

}  // namespace

bool wants_processes(const Scenario& scenario) { return scenario.settings.front().transport == "mpi"; }

bool launched_with_others() { return launched_ranks().has_value(); }

void agree(MpiTransport& transport, const Backend& backend, std::string_view name, std::FILE* errors,
           const std::function<std::string()>& work) {
  std::string hash, refusal;
  try {
    hash = work();
  } catch (const UsageError& error) {
    refusal = error.what();
    hash = backend.sha256("refused: " + refusal);
  }
  try {
    check_same_everywhere(transport, name, hash);
  } catch (const UsageError& error) {
    if (!refusal.empty()) {
      fmt::print(errors, "lamina: rank {} on {}: {}\n", transport.rank(), host_name(), refusal);
    }
    throw Refusal(error.what());
  }
  if (!refusal.empty()) {
    throw Refusal(refusal);
  }
}

void agree_on_first(MpiTransport& transport, const std::function<void()>& check) {
  std::string obstacle;
  if (transport.rank() == 0) {
    try {
      check();
    } catch (const UsageError& error) {
      obstacle = error.what();
    }
  }
  obstacle = spread_from_first(*group_of_all(transport), obstacle);
  if (!obstacle.empty()) {
    throw Refusal(obstacle);
  }
}

Placement agree_on_placement(MpiTransport& transport) {
  const RankPlace here{host_name(), usable_cores(), "mpi: " + transport.network().text()};
  const auto all = group_of_all(transport);
  Json places = Json::array();
  for (const std::string& text : gather_on_first(*all, place_as_json(here).dump())) {
    places.push_back(Json::parse(text));
  }
  Placement placement;
  for (const Json& place : Json::parse(spread_from_first(*all, places.dump()))) {
    placement.processes.push_back({place["host"], place["cores"], place["network"]});
  }
  return placement;
}

int over_processes(const Backend& backend, std::FILE* errors, const std::function<int(MpiTransport&)>& work) {
  if (!backend.start_mpi) {
    throw UsageError("this build has no MPI: transport.kind mpi and launchers need one configured with LAMINA_MPI=on");
  }
  const auto transport = backend.start_mpi();
  try {
    return work(*transport);
  } catch (const Refusal& refusal) {
    if (transport->rank() == 0) {
      fmt::print(errors, "lamina: {}\n", refusal.what());
      std::fflush(errors);
    }
    return kUsage;
  } catch (const std::exception& error) {
    transport->abort(error.what());
    return kFailed;
  }
}

int run_over_processes(const std::function<Scenario()>& read, RunOptions options, const Backend& backend,
                       std::FILE* output, std::FILE* errors) {
  return over_processes(backend, errors, [&](MpiTransport& transport) {
    return take_part(read, std::move(options), backend, transport, output, errors);
  });
}

}  // namespace lamina
