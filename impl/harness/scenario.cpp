#include "impl/harness/scenario.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "impl/analysis/cluster_file.h"
#include "impl/base/error.h"
#include "impl/base/nearest.h"
#include "impl/harness/keys.h"
#include "impl/harness/links.h"

namespace lamina {
namespace {

// Every check below the keys' own throws through this, so that each message begins with the file.
[[noreturn]] void refuse(const std::string& file, const std::string& reason) {
  throw UsageError(fmt::format("{}: {}", file, reason));
}

// ---- setting values by place -------------------------------------------------------------------------------------

// Takes out the other alternatives of a group of which exactly one may be given.
void drop_alternatives(Json& object, const Key& parent, const std::string& name) {
  const auto& group = parent.exactly_one_of;
  if (std::find(group.begin(), group.end(), name) == group.end()) {
    return;
  }
  for (const std::string_view other : group) {
    if (other != name) {
      object.erase(std::string(other));
    }
  }
}

void replace_element(Json& element, const std::string& place, const Override& wanted) {
  if (wanted.value.is_null()) {
    throw UsageError(fmt::format("{}: null cannot take {} out of its list", wanted.place, place));
  }
  if (!wanted.value.is_object()) {
    throw UsageError(
        fmt::format("{}: {} would be {}, and must be an object", wanted.place, place, brief(wanted.value)));
  }
  element = wanted.value;
}

// `rest` is what is left of the place below `value`, whose own place is `done`.
void set_below(Json& value, const std::string& done, std::string_view rest, const Override& wanted) {
  if (rest.starts_with('[')) {
    const std::size_t close = rest.find(']');
    const std::string_view which = rest.substr(1, close - 1);
    const std::string_view after = rest.substr(std::min(close + 2, rest.size()));
    bool found = false;
    for (std::size_t i = 0; value.is_array() && i < value.size(); ++i) {
      const bool named = value[i].is_object() && value[i].contains("name") && value[i]["name"] == which;
      if (which.empty() || named || which == std::to_string(i)) {
        const std::string at = fmt::format("{}[{}]", done, i);
        if (after.empty()) {
          replace_element(value[i], at, wanted);
        } else {
          set_below(value[i], at, after, wanted);
        }
        found = true;
      }
    }
    if (!found) {
      throw UsageError(fmt::format("{}: there is no {}[{}]", wanted.place, done, which));
    }
    return;
  }
  if (!value.is_object()) {
    throw UsageError(fmt::format("{}: {} is {}, not an object", wanted.place, done, brief(value)));
  }
  const std::size_t end = rest.find_first_of(".[");
  const std::string name(rest.substr(0, end));
  if (const Key* parent = find_key(done); parent != nullptr) {
    drop_alternatives(value, *parent, name);
  }
  const std::string at = done.empty() ? name : done + "." + name;
  if (end == std::string_view::npos) {
    if (wanted.value.is_null()) {
      value.erase(name);
    } else {
      value[name] = wanted.value;
    }
    return;
  }
  if (!value.contains(name)) {
    value[name] = Json::object();
  }
  set_below(value[name], at, rest.substr(rest[end] == '.' ? end + 1 : end), wanted);
}

std::string nearest_key(std::string_view place) {
  std::vector<std::string_view> places;
  for (const Key& key : scenario_keys()) {
    places.push_back(key.path);
  }
  return std::string(nearest_name(place, places));
}

void apply(Json& document, const Override& wanted) {
  if (wanted.place.empty() || find_key(wanted.place) == nullptr) {
    throw UsageError(fmt::format("{} is not a known key; did you mean {}?", wanted.place, nearest_key(wanted.place)));
  }
  set_below(document, "", wanted.place, wanted);
}

// ---- the sweep ---------------------------------------------------------------------------------------------------

using Swept = std::vector<std::pair<std::string, Json>>;

void check_sweep(const Json& document, const std::string& file) {
  const auto sweep = document.find("sweep");
  if (sweep == document.end()) {
    return;
  }
  if (!sweep->is_object() || sweep->empty()) {
    refuse(file, fmt::format("sweep is {}; it must be an object of keys with lists of values", brief(*sweep)));
  }
  for (const auto& [place, values] : sweep->items()) {
    const Key* key = find_key(place);
    if (key == nullptr) {
      refuse(file, fmt::format("sweep.{} is not a known key; did you mean {}?", place, nearest_key(place)));
    }
    const bool of_runs = !key->path.starts_with("expect") && key->path != "name" && key->path != "schema_version" &&
                         key->path != "runs[].name";
    const bool single = key->type != KeyType::object && key->type != KeyType::list && key->type != KeyType::sweep;
    if (!of_runs || !single) {
      refuse(file, fmt::format("sweep.{} cannot be swept; only single values that runs depend on can", place));
    }
    if (!values.is_array() || values.empty()) {
      refuse(file, fmt::format("sweep.{} is {}; it must be a list of values", place, brief(values)));
    }
    if (std::any_of(values.begin(), values.end(), [](const Json& value) { return value.is_null(); })) {
      refuse(file, fmt::format("sweep.{} holds null; each of its values must be one that the key can have", place));
    }
    std::set<Json> different(values.begin(), values.end());
    if (different.size() != values.size()) {
      refuse(file, fmt::format("sweep.{} holds a value twice", place));
    }
  }
}

// Every combination, the last key varying fastest.
std::vector<Swept> combinations(const Json& document) {
  std::vector<Swept> all{{}};
  const auto sweep = document.find("sweep");
  if (sweep == document.end()) {
    return all;
  }
  constexpr std::size_t kMost = 10000;
  for (const auto& [place, values] : sweep->items()) {
    std::vector<Swept> longer;
    for (const Swept& point : all) {
      for (const Json& value : values) {
        longer.push_back(point);
        longer.back().emplace_back(place, value);
      }
    }
    all = std::move(longer);
    if (all.size() > kMost) {
      throw UsageError(fmt::format("sweep has more than {} combinations", kMost));
    }
  }
  return all;
}

// ---- from the valid document to structs --------------------------------------------------------------------------

std::optional<std::int64_t> optional_integer(const Json& object, const char* name) {
  return object.contains(name) ? std::optional(object[name].get<std::int64_t>()) : std::nullopt;
}

std::string resolved_path(const Json& value, const std::string& file) {
  const std::filesystem::path path(value.get<std::string>());
  return path.is_absolute() ? path.string() : (std::filesystem::path(file).parent_path() / path).string();
}

void check_is_file(std::string_view key, const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) {
    return;
  }
  const bool missing = !error || error == std::errc::no_such_file_or_directory;
  throw UsageError(fmt::format("{} is {}; {}", key, path.size() > 300 ? path.substr(0, 300) + "..." : path,
                               missing ? "there is no such file" : error.message()));
}

ModelShape model_from(const Json& json) {
  ModelShape shape{.layers = json["layers"],
                   .hidden = json["hidden"],
                   .heads = json["heads"],
                   .sequence = json["sequence"],
                   .vocabulary = json["vocabulary"]};
  validate(shape);
  return shape;
}

DataConfig data_from(const Json& json, const std::string& file) {
  using enum DataConfig::Kind;
  const auto from_file = [&](DataConfig::Kind kind, const char* name) {
    DataConfig config{.kind = kind, .path = resolved_path(json[name], file)};
    check_is_file(fmt::format("data.{}", name), config.path);
    return config;
  };
  if (json.contains("text_file")) {
    return from_file(text_file, "text_file");
  }
  if (json.contains("token_file")) {
    return from_file(token_file, "token_file");
  }
  if (json.contains("json_file")) {
    return from_file(json_file, "json_file");
  }
  return {.kind = synthetic, .path = {}, .seed = json["synthetic"]["seed"]};
}

OptimizerConfig optimizer_from(const Json& json) {
  OptimizerConfig config;
  config.learning_rate = json["learning_rate"];
  config.weight_decay = json["weight_decay"];
  config.clip_norm = json["clip_norm"];
  if (json["name"] == "adamw") {
    config.kind = OptimizerConfig::Kind::adamw;
    config.beta1 = json["beta1"];
    config.beta2 = json["beta2"];
    config.epsilon = json["epsilon"];
  }
  return config;
}

RealType real_type_from(const Json& json) {
  for (const RealType type : {RealType::fp64, RealType::fp32, RealType::bf16}) {
    if (json == name_of(type)) {
      return type;
    }
  }
  return RealType::fp16;
}

Precision precision_from(const Json& json) {
  Precision precision = precision_of(real_type_from(json["compute"]));
  if (json.contains("wire") && json["wire"] != json["compute"]) {
    throw UsageError(
        fmt::format("precision.wire is {} and precision.compute {}; they must be the same: weights and "
                    "activations travel as they are stored",
                    json["wire"].get<std::string>(), json["compute"].get<std::string>()));
  }
  if (json.contains("reduce")) {
    precision.reduce = real_type_from(json["reduce"]);
    if (precision.reduce != precision.compute && precision.reduce != precision.wide()) {
      throw UsageError(
          fmt::format("precision.reduce is {} and precision.compute {}; gradients travel in {}, or in 16 bits where "
                      "precision.compute has the same 16",
                      name_of(precision.reduce), name_of(precision.compute), name_of(precision.wide())));
    }
  }
  if (precision.scales_loss()) {
    precision.loss_scale = json["loss_scale"];
    precision.growth_interval = json["growth_interval"];
  }
  return precision;
}

LinkRequest link_from(const Json& transport) {
  LinkRequest request;
  if (!transport.contains("link")) {
    return request;
  }
  if (transport["kind"] != "threads") {
    throw UsageError("transport.link is for transport.kind threads; between processes the link is what the network is");
  }
  const Json& link = transport["link"];
  if (link.contains("preset")) {
    const LinkPreset& preset = link_preset(link["preset"].get<std::string>());
    request.preset = preset.name;
    request.link = {preset.bandwidth_bits_per_s, preset.latency_s};
  } else if (link.contains("bandwidth_bits_per_s")) {
    request.link.bandwidth_bits_per_s = link["bandwidth_bits_per_s"];
  } else {
    request.all_reduce_share_of_compute = link["all_reduce_share_of_compute"].get<double>();
  }
  if (link.contains("latency_s")) {
    request.link.latency_s = link["latency_s"];
  }
  return request;
}

CollectiveBackend collectives_from(const Json& transport, const Precision& precision) {
  if (transport["collectives"] == name_of(CollectiveBackend::ring)) {
    return CollectiveBackend::ring;
  }
  if (transport["kind"] != "mpi") {
    throw UsageError("transport.collectives library is for transport.kind mpi: between threads there is no library");
  }
  if (has_16_bits(precision.reduce)) {
    throw UsageError(
        fmt::format("transport.collectives is library and precision.reduce {}: MPI has no sums of 16-bit "
                    "numbers; set precision.reduce fp32",
                    name_of(precision.reduce)));
  }
  return CollectiveBackend::library;
}

std::optional<DumpConfig> dump_from(const Json& document, const std::string& file, std::int64_t steps) {
  if (!document.contains("dump")) {
    return std::nullopt;
  }
  const Json& json = document["dump"];
  DumpConfig dump{.step = json["step"], .gradients = {}, .weights = {}};
  if (dump.step >= steps) {
    throw UsageError(fmt::format("dump.step is {}; the run has {} steps, counted from 0", dump.step, steps));
  }
  dump.gradients = json.contains("gradients") ? resolved_path(json["gradients"], file) : "";
  dump.weights = json.contains("weights") ? resolved_path(json["weights"], file) : "";
  if (dump.gradients == dump.weights) {
    throw UsageError(fmt::format("dump.gradients and dump.weights are both {}", dump.weights));
  }
  return dump;
}

RunRequest run_from(const Json& json) {
  RunRequest run{.name = json["name"], .plan = {}};
  PlanRequest& plan = run.plan;
  plan.method = json["method"];
  plan.parallel = {json["parallel"]["data"], json["parallel"]["pipeline"], json["parallel"]["tensor"]};
  plan.zero_stage = json["zero_stage"];
  const std::string recompute = json["recompute"];
  plan.recompute = recompute == "full"        ? Recompute::full
                   : recompute == "selective" ? Recompute::selective
                                              : Recompute::none;
  plan.groups = optional_integer(json, "groups");
  plan.chunks = optional_integer(json, "chunks");
  plan.prefetch_layers = optional_integer(json, "prefetch_layers");
  plan.resident_layers = optional_integer(json, "resident_layers");
  plan.keep_full_gradient = json["keep_full_gradient"];
  return run;
}

std::vector<RunRequest> runs_from(const Json& json) {
  std::vector<RunRequest> runs;
  std::set<std::string> names;
  for (const Json& run : json) {
    runs.push_back(run_from(run));
    if (!names.insert(runs.back().name).second) {
      throw UsageError(fmt::format("runs[{}].name is {}, which an earlier run has", runs.size() - 1, runs.back().name));
    }
  }
  return runs;
}

Disturbance::Kind disturbance_kind(const std::string& name) {
  using enum Disturbance::Kind;
  return std::map<std::string, Disturbance::Kind>{{"sleep", sleep}, {"fail", fail}, {"out_of_memory", out_of_memory},
                                                  {"exit", exit},   {"kill", kill}, {"stop", stop}}
      .at(name);
}

std::vector<Disturbance> disturbances_from(const Json& json, const std::vector<RunRequest>& runs, std::int64_t steps) {
  std::int64_t most_ranks = 1;
  for (const RunRequest& run : runs) {
    most_ranks = std::max(most_ranks, run.plan.parallel.ranks());
  }
  std::vector<Disturbance> disturbances;
  for (const Json& one : json) {
    Disturbance disturbance;
    disturbance.kind = disturbance_kind(one["kind"].get<std::string>());
    disturbance.rank = one["rank"];
    disturbance.step = optional_integer(one, "step").value_or(-1);
    disturbance.sleep_s = one.contains("sleep_s") ? one["sleep_s"].get<double>() : 0;
    const std::size_t index = disturbances.size();
    if (disturbance.rank >= most_ranks) {
      throw UsageError(
          fmt::format("disturbances[{}].rank is {}; the runs have {} ranks", index, disturbance.rank, most_ranks));
    }
    if (disturbance.step >= steps) {
      throw UsageError(
          fmt::format("disturbances[{}].step is {}; the run has {} steps", index, disturbance.step, steps));
    }
    disturbances.push_back(disturbance);
  }
  return disturbances;
}

Executor executor_of(const Json& document) {
  const std::string name = document["executor"];
  return name == "train" ? Executor::train : name == "simulate" ? Executor::simulate : Executor::search;
}

Setting setting_from(const Json& document, const std::string& file, Swept swept) {
  Setting setting;
  setting.swept = std::move(swept);
  setting.model = model_from(document["model"]);
  if (document.contains("cluster")) {
    setting.cluster = analysis::read_cluster(resolved_path(document["cluster"], file));
    setting.transport = "simulated";
  }
  if (executor_of(document) == Executor::search) {
    setting.search = document["search"];
    return setting;
  }
  setting.data = data_from(document["data"], file);
  setting.batch = {document["batch"]["global"], document["batch"]["micro"]};
  setting.optimizer = optimizer_from(document["optimizer"]);
  setting.precision = precision_from(document["precision"]);
  setting.warmup_steps = document["steps"]["warmup"];
  setting.measured_steps = document["steps"]["measured"];
  setting.seed = document["seed"];
  if (setting.cluster) {  // every step is the same
    setting.warmup_steps = 0;
    setting.measured_steps = 1;
  } else {
    setting.transport = document["transport"]["kind"];
    setting.collectives = collectives_from(document["transport"], setting.precision);
    setting.link = link_from(document["transport"]);
  }
  if (document.contains("initial_weights")) {
    setting.initial_weights = resolved_path(document["initial_weights"], file);
    check_is_file("initial_weights", setting.initial_weights);
  }
  const std::int64_t steps = setting.warmup_steps + setting.measured_steps;
  setting.dump = dump_from(document, file, steps);
  setting.runs = runs_from(document["runs"]);
  setting.disturbances = disturbances_from(document["disturbances"], setting.runs, steps);
  return setting;
}

std::vector<Expectation> expectations_from(const Json& json) {
  std::vector<Expectation> expectations;
  for (const Json& one : json) {
    Expectation expectation;
    expectation.metric = one["metric"];
    expectation.of = one["of"];
    if (!one.contains("equal_to")) {
      expectation.over = one.value("over", "");  // a metric that is a ratio itself has none
      if (one.contains("at_least")) {
        expectation.at_least = one["at_least"].get<double>();
      }
      if (one.contains("at_most")) {
        expectation.at_most = one["at_most"].get<double>();
      }
      if (!expectation.at_least && !expectation.at_most) {
        throw UsageError(fmt::format("expect[{}] must hold at_least, at_most or both", expectations.size()));
      }
    } else {
      expectation.equal_to = one["equal_to"];
      expectation.within = one["within"];
    }
    expectations.push_back(std::move(expectation));
  }
  return expectations;
}

void check_run_names(const Scenario& scenario) {
  std::set<std::string> names;
  for (const Setting& setting : scenario.settings) {
    for (const RunRequest& run : setting.runs) {
      names.insert(run.name);
      names.insert(full_name(run, setting));
    }
  }
  const std::vector<std::string_view> known(names.begin(), names.end());
  for (std::size_t i = 0; i < scenario.expectations.size(); ++i) {
    const Expectation& expectation = scenario.expectations[i];
    const auto check = [&](const char* key, const std::string& name) {
      if (!name.empty() && !names.contains(name)) {
        throw UsageError(fmt::format("expect[{}].{} is {}; no run is named so; did you mean {}?", i, key, name,
                                     nearest_name(name, known)));
      }
    };
    check("of", expectation.of);
    check("over", expectation.over);
    check("equal_to", expectation.equal_to);
  }
}

// Whether ranks are threads or processes is settled when the program starts.
void check_one_transport(const Scenario& scenario) {
  for (const Setting& setting : scenario.settings) {
    if (setting.transport != scenario.settings.front().transport) {
      throw UsageError("sweep.transport.kind has several values; run the scenario once for each transport");
    }
  }
}

// Two runs must not write the same file.
void check_dump_names(const Scenario& scenario) {
  std::set<std::string> files;
  for (const Setting& setting : scenario.settings) {
    for (const RunRequest& run : setting.runs) {
      const auto dump = dump_of(setting, full_name(run, setting));
      if (!dump) {
        continue;
      }
      for (const std::string& file : {dump->gradients, dump->weights}) {
        if (!file.empty() && !files.insert(file).second) {
          throw UsageError(
              fmt::format("dump would write {} once for each of several runs; put {{run}} into its name", file));
        }
      }
    }
  }
}

std::string value_as_text(const Json& value) {
  if (value.is_number_float()) {
    return fmt::format("{}", value.get<double>());
  }
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

Override parse_override(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw UsageError(fmt::format("--set {}: give it as path=value", text));
  }
  try {
    static_cast<void>(Json(text).dump());
  } catch (const Json::exception&) {
    throw UsageError(fmt::format("--set {}: is not UTF-8", brief(Json(text))));
  }
  std::string place = text.substr(0, equals);
  const std::string value = text.substr(equals + 1);
  Json json = Json::accept(value) ? parse_strict_json(value, "--set " + place) : Json(value);
  return {std::move(place), std::move(json)};
}

Scenario read_scenario(const std::string& file, const std::vector<Override>& overrides) {
  Json document = read_strict_json(file);
  for (const Override& wanted : overrides) {
    try {
      apply(document, wanted);
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("--set {}", error.what()));
    }
  }
  if (!document.is_object()) {
    validate_keys(document, file);  // throws
  }
  check_sweep(document, file);
  Scenario scenario;
  scenario.file = file;
  try {
    for (Swept& swept : combinations(document)) {
      Json point = document;
      for (const auto& [place, value] : swept) {
        apply(point, {place, value});
      }
      validate_keys(point, file);
      fill_defaults(point);
      scenario.settings.push_back(setting_from(point, file, std::move(swept)));
      if (scenario.settings.size() == 1) {
        scenario.name = point["name"];
        scenario.purpose = point["purpose"];
        scenario.executor = executor_of(point);
        scenario.expectations = expectations_from(point["expect"]);
        scenario.document = std::move(point);
      }
    }
    check_one_transport(scenario);
    check_run_names(scenario);
    check_dump_names(scenario);
  } catch (const UsageError& error) {
    const std::string reason = error.what();
    if (reason.starts_with(file + ": ")) {
      throw;
    }
    refuse(file, reason);
  }
  return scenario;
}

std::string full_name(const RunRequest& run, const Setting& setting) {
  std::string name = run.name;
  for (const auto& [place, value] : setting.swept) {
    name += fmt::format(", {}={}", place.substr(place.find_last_of('.') + 1), value_as_text(value));
  }
  return name;
}

std::optional<DumpConfig> dump_of(const Setting& setting, const std::string& run_name) {
  std::optional<DumpConfig> dump = setting.dump;
  if (!dump) {
    return dump;
  }
  std::string name = run_name;
  std::replace(name.begin(), name.end(), '/', '_');
  for (std::string* file : {&dump->gradients, &dump->weights}) {
    constexpr std::string_view kMark = "{run}";
    if (const std::size_t at = file->find(kMark); at != std::string::npos) {
      file->replace(at, kMark.size(), name);
    }
  }
  return dump;
}

std::string canonical_text(const Scenario& scenario) {
  return nlohmann::json(scenario.document).dump();  // the plain document type keeps its keys sorted
}

}  // namespace lamina
