#include "impl/analysis/plan_report.h"

#include <algorithm>

#include "impl/base/error.h"

namespace lamina::analysis {
namespace {

std::string refusals(const Counts& counts) {
  return fmt::format(
      "refused: {} for memory, {} for batch, {} for GPUs, {} for divisibility, {} for network, {} without a form",
      counts.memory, counts.batch, counts.devices, counts.divisibility, counts.network, counts.no_form);
}

std::string number_or_dash(const std::optional<double>& number) {
  return number ? fmt::format("{:.4g}", *number) : "-";
}

std::string confirmation_table(const SearchResult& result, const SearchOptions& options, const Confirming& confirming) {
  constexpr const char* kRow =
      "{} {:<24} {:<20} {:>4} {:>7} {:>6} {:>6} {:>9} {:>8} {:>10} {:>10} {:>10} {:>10} {:>8}\n";
  std::string text = fmt::format(
      "# simulated: the schedules of the best {} plans of each track on a clock, a layer's times as in the forms; "
      "links "
      "are not shared\n",
      confirming.plans);
  text += fmt::format(fmt::runtime(kRow), "#", "track", "method", "zero", "gpus", "pipe", "m", "ops", "verified",
                      "form_s", "sim_s", "form_days", "sim_days", "sim/form");
  std::string notes;
  for (const TrackResult& track : result.tracks) {
    for (std::size_t i = 0; i < std::min(confirming.plans, track.best.size()); ++i) {
      const PlanCost cost = cost_of(track.best[i].plan, options.setting);
      const Confirmation confirmation = confirming.confirm(cost, options.setting.model);
      const StepPlan& plan = cost.plan;
      text += fmt::format(fmt::runtime(kRow), " ", track.track.name, name_of(plan.order), plan.zero_stage,
                          plan.devices(), plan.pipeline, plan.micro_batches,
                          confirmation.step_s ? fmt::format("{}", confirmation.ops) : "-",
                          confirmation.verified ? "yes" : "no", fmt::format("{:.4g}", cost.step.total_s),
                          number_or_dash(confirmation.step_s), fmt::format("{:.4g}", cost.training_s / seconds_per_day),
                          number_or_dash(confirmed_training_days(confirmation, cost)),
                          confirmation.step_s ? fmt::format("{:.4f}", *over_form(confirmation, cost)) : "-");
      if (!confirmation.reason.empty()) {
        notes += fmt::format("# {} plan {}: {}\n", track.track.name, i + 1, confirmation.reason);
      }
    }
  }
  return text + notes;
}

}  // namespace

PlanCost fastest_plan(const SearchResult& result, const SearchOptions& options) {
  std::optional<Candidate> fastest;
  for (const TrackResult& track : result.tracks) {
    const auto candidate = track.at_most(options.limits.devices);
    if (candidate && (!fastest || candidate->training_s < fastest->training_s)) {
      fastest = candidate;
    }
  }
  if (!fastest) {
    throw UsageError(fmt::format("no plan fits {} GPUs with {:.4g} GB each; {}", options.limits.devices,
                                 options.limits.memory_bytes / 1e9, refusals(result.counts)));
  }
  return cost_of(fastest->plan, options.setting);
}

std::string plan_table(const SearchResult& result, const SearchOptions& options, const Confirming& confirming) {
  std::string text =
      fmt::format("# critical batch {:.6g} sequences; steps below it: {}; at most {} GPUs with {:.4g} GB each\n",
                  options.setting.critical_batch(), name_of(options.setting.step_rule), options.limits.devices,
                  options.limits.memory_bytes / 1e9);
  if (!result.complete) {
    text += "# stopped before the end: the best of what was seen\n";
  }
  text += fmt::format("# {:<24} {:<20} {:>5} {:>7} {:>6} {:>6} {:>4} {:>3} {:>6} {:>4} {:>10} {:>10} {:>6} {:>9}\n",
                      "track", "method", "zero", "gpus", "data", "pipe", "tens", "b", "m", "v", "step_s", "days",
                      "util", "memory_GB");
  for (const TrackResult& track : result.tracks) {
    if (track.best.empty() && track.frontier.empty()) {
      text += fmt::format("  {:<24} no plan\n", track.track.name);
    }
    for (const Candidate& candidate : track.best) {
      const PlanCost cost = cost_of(candidate.plan, options.setting);
      const StepPlan& plan = cost.plan;
      text += fmt::format(
          "  {:<24} {:<20} {:>5} {:>7} {:>6} {:>6} {:>4} {:>3} {:>6} {:>4} {:>10.4g} {:>10.4g} {:>6.3f} {:>9.2f}\n",
          track.track.name, name_of(plan.order), plan.zero_stage, plan.devices(), plan.data, plan.pipeline, plan.tensor,
          plan.micro_batch, plan.micro_batches, plan.chunks, cost.step.total_s, cost.training_s / seconds_per_day,
          cost.model_utilisation, cost.memory.total() / 1e9);
    }
  }
  if (confirming.plans > 0) {
    text += confirmation_table(result, options, confirming);
  }
  text += fmt::format("# {} plans evaluated, {} left out as dominated, in {:.2f} s\n", result.counts.evaluated,
                      result.counts.dominated, result.seconds);
  return text + fmt::format("# {}\n", refusals(result.counts));
}

nlohmann::ordered_json plan_json(const SearchResult& result, const SearchOptions& options,
                                 const Confirming& confirming) {
  const auto list = [&](const std::vector<Candidate>& candidates, std::size_t confirmed) {
    nlohmann::ordered_json plans = nlohmann::ordered_json::array();
    for (const Candidate& candidate : candidates) {
      const PlanCost cost = cost_of(candidate.plan, options.setting);
      plans.push_back(to_json(cost));
      if (plans.size() <= confirmed) {
        plans.back()["simulated"] = to_json(confirming.confirm(cost, options.setting.model), cost);
      }
    }
    return plans;
  };
  nlohmann::ordered_json tracks = nlohmann::ordered_json::array();
  for (const TrackResult& track : result.tracks) {
    tracks.push_back({{"name", track.track.name},
                      {"best", list(track.best, confirming.plans)},
                      {"frontier", list(track.frontier, 0)}});
  }
  return {{"complete", result.complete},
          {"seconds", result.seconds},
          {"critical_batch_sequences", options.setting.critical_batch()},
          {"step_rule", name_of(options.setting.step_rule)},
          {"max_gpus", options.limits.devices},
          {"memory_bytes", options.limits.memory_bytes},
          {"counts", to_json(result.counts)},
          {"tracks", tracks}};
}

}  // namespace lamina::analysis
