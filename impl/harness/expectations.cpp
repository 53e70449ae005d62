#include "impl/harness/expectations.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "impl/base/error.h"
#include "impl/harness/result.h"

namespace lamina {
namespace {

// A number, or why there is none.
struct Measured {
  std::optional<double> value;
  std::string reason;
};

const Json* find_run(const Json& runs, const std::string& name, const Json& sweep) {
  for (const Json& run : runs) {
    if (run["name"] == name || (run["run"] == name && run["sweep"] == sweep)) {
      return &run;
    }
  }
  return nullptr;
}

Measured value_of(const Json& run, const std::string& metric) {
  const std::string name = run["name"];
  if (run["status"] != "ok") {
    return {{}, fmt::format("run {} {}", name, run["status"].get<std::string>())};
  }
  const Json& entry = run["metrics"][metric];
  if (metric == "traffic_bytes" || metric == "peak_memory_bytes") {
    return {metric == "traffic_bytes" ? most_bytes_sent(entry) : most_bytes_held(entry), {}};
  }
  if (entry["median"].is_null()) {
    return {{},
            fmt::format("run {} has no {}{}", name, metric,
                        entry.contains("reason") ? ": " + entry["reason"].get<std::string>() : "")};
  }
  return {entry["median"].get<double>(), {}};
}

Measured ratio(const Json& of, const Json& over, const std::string& metric) {
  const Measured above = value_of(of, metric);
  const Measured below = value_of(over, metric);
  if (!above.value || !below.value) {
    return {{}, above.value ? below.reason : above.reason};
  }
  if (*below.value == 0) {
    return {{}, fmt::format("{} of run {} is 0", metric, over["name"].get<std::string>())};
  }
  return {*above.value / *below.value, {}};
}

Measured largest_difference(const Json& of, const Json& equal_to, const std::string& metric) {
  for (const Json* run : {&of, &equal_to}) {
    if ((*run)["status"] != "ok") {
      return {{}, fmt::format("run {} {}", (*run)["name"].get<std::string>(), (*run)["status"].get<std::string>())};
    }
  }
  const Json& left = of["metrics"][metric];
  const Json& right = equal_to["metrics"][metric];
  if (left.size() != right.size()) {
    return {{}, fmt::format("{} and {} steps", left.size(), right.size())};
  }
  double largest = 0;
  for (std::size_t step = 0; step < left.size(); ++step) {
    if (left[step].is_null() || right[step].is_null()) {
      return {{}, fmt::format("{} is null at step {}", metric, step)};
    }
    const double a = left[step], b = right[step];
    const double scale = std::max(std::abs(a), std::abs(b));
    largest = std::max(largest, scale == 0 ? 0.0 : std::abs(a - b) / scale);
  }
  return {largest, {}};
}

bool is_met(const Expectation& expectation, double measured) {
  if (!expectation.equal_to.empty()) {
    return measured <= expectation.within;
  }
  return measured >= expectation.at_least.value_or(measured) && measured <= expectation.at_most.value_or(measured);
}

Json as_written(const Expectation& expectation) {
  Json entry;
  entry["metric"] = expectation.metric;
  entry["of"] = expectation.of;
  if (!expectation.equal_to.empty()) {
    entry["equal_to"] = expectation.equal_to;
    entry["within"] = expectation.within;
    return entry;
  }
  if (!expectation.over.empty()) {
    entry["over"] = expectation.over;
  }
  if (expectation.at_least) {
    entry["at_least"] = *expectation.at_least;
  }
  if (expectation.at_most) {
    entry["at_most"] = *expectation.at_most;
  }
  return entry;
}

Json evaluate(const Expectation& expectation, const Json& runs, const Json& sweep) {
  const std::string& other_name = expectation.equal_to.empty() ? expectation.over : expectation.equal_to;
  const Json* of = find_run(runs, expectation.of, sweep);
  const Json* other = find_run(runs, other_name, sweep);
  LAMINA_CHECK(of != nullptr && (other != nullptr || other_name.empty()), "no run {} or {}", expectation.of,
               other_name);
  const Measured measured = other == nullptr               ? value_of(*of, expectation.metric)
                            : expectation.equal_to.empty() ? ratio(*of, *other, expectation.metric)
                                                           : largest_difference(*of, *other, expectation.metric);
  Json entry = as_written(expectation);
  if (!sweep.empty()) {
    entry["sweep"] = sweep;
  }
  entry["measured"] = measured.value ? finite_or_null(*measured.value) : Json(nullptr);
  entry["met"] = measured.value && is_met(expectation, *measured.value);
  if (!measured.value) {
    entry["reason"] = measured.reason;
  }
  return entry;
}

}  // namespace

Json evaluate_expectations(const Scenario& scenario, const Json& runs) {
  Json entries = Json::array();
  for (const Expectation& expectation : scenario.expectations) {
    const auto is_full = [&](const std::string& name) {
      return std::any_of(runs.begin(), runs.end(), [&](const Json& run) { return run["name"] == name; });
    };
    const std::string& other = expectation.equal_to.empty() ? expectation.over : expectation.equal_to;
    for (const Setting& setting : scenario.settings) {
      Json sweep = Json::object();
      for (const auto& [place, value] : setting.swept) {
        sweep[place] = value;
      }
      if (is_full(expectation.of) &&
          (other.empty() || is_full(other))) {  // two runs named in full: the same at every point
        entries.push_back(evaluate(expectation, runs, Json::object()));
        break;
      }
      entries.push_back(evaluate(expectation, runs, sweep));
    }
  }
  return entries;
}

std::string describe_expectation(const Json& entry) {
  const std::string metric = entry["metric"], of = entry["of"];
  std::string text, bounds;
  if (entry.contains("equal_to")) {
    text = fmt::format("{} of {} equal to {}", metric, of, entry["equal_to"].get<std::string>());
    bounds = fmt::format("within {}", entry["within"].get<double>());
  } else {
    text = fmt::format("{} of {}", metric, of);
    if (entry.contains("over")) {
      text += " over " + entry["over"].get<std::string>();
    }
    if (entry.contains("at_least")) {
      bounds = fmt::format("at least {}", entry["at_least"].get<double>());
    }
    if (entry.contains("at_most")) {
      bounds += fmt::format("{}at most {}", bounds.empty() ? "" : ", ", entry["at_most"].get<double>());
    }
  }
  if (entry.contains("sweep")) {
    text += " at " + entry["sweep"].dump();
  }
  const std::string measured = entry["measured"].is_null() ? entry.value("reason", std::string("not finite"))
                                                           : fmt::format("{:.4g}", entry["measured"].get<double>());
  return fmt::format("{}: {} ({}): {}", text, measured, bounds, entry["met"].get<bool>() ? "met" : "NOT MET");
}

}  // namespace lamina
