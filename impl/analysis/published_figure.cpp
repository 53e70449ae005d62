// Predicted against measured step times: a row for each published measurement, none left out.
#include <algorithm>
#include <cmath>
#include <map>

#include "impl/analysis/cost.h"
#include "impl/analysis/paper.h"
#include "impl/base/error.h"
#include "impl/base/median.h"
#include "impl/base/strict_json.h"

namespace lamina::analysis {
namespace {

using nlohmann::ordered_json;

// An error is the larger of predicted and measured time over the smaller, less one. Kept as |ln(predicted/measured)|,
// in which both directions weigh alike.
constexpr double kFarOff = 0.1;  // a row with a larger error is named
// "Not met at nominal link rates": the prediction at these falls below the measurement by more than this error …
constexpr double kFarBelow = 0.2;
// … where more than this share of the predicted step is data-parallel traffic that nothing hides.
constexpr double kWaitsForNetwork = 0.1;

// Sizes of |ln(predicted/measured)| over rows that have both.
struct Errors {
  std::size_t rows = 0;
  double median = 0;
  double largest = 0;
};

Errors errors_of(const std::vector<double>& ratios) {
  std::vector<double> sizes;
  std::transform(ratios.begin(), ratios.end(), std::back_inserter(sizes), [](double ratio) { return std::abs(ratio); });
  return sizes.empty() ? Errors{} : Errors{sizes.size(), median(sizes), *std::max_element(sizes.begin(), sizes.end())};
}

ordered_json to_json(const Errors& errors) {
  const auto unless_empty = [&](double value) { return errors.rows > 0 ? ordered_json(value) : ordered_json(nullptr); };
  return {{"rows", errors.rows},
          {"median_abs_log_ratio", unless_empty(errors.median)},
          {"largest_abs_log_ratio", unless_empty(errors.largest)}};
}

// ln(1.1) as "10.0 %".
std::string percent(double log_ratio) { return fmt::format("{:.1f} %", 100 * std::expm1(std::abs(log_ratio))); }
std::string percent_of(double share) { return fmt::format("{:.0f} %", 100 * share); }

// A row beside what is predicted for it.
struct Compared {
  const PublishedRow& row;
  PublishedPrediction prediction, at_nominal_links;
  std::string reason;                          // why it has no ratio; empty where it has
  std::optional<double> log_ratio;             // ln(predicted/measured)
  std::optional<double> log_ratio_at_nominal;  // the same with the links' nominal rates

  bool far_off() const { return log_ratio && std::abs(*log_ratio) > std::log1p(kFarOff); }
  bool not_met_at_nominal_links() const {
    return log_ratio_at_nominal && *log_ratio_at_nominal < -std::log1p(kFarBelow) &&
           prediction.step.exposed_data_s > kWaitsForNetwork * prediction.total_s;
  }
};

Compared compare(const PublishedRow& row, const std::vector<Cluster>& clusters) {
  Compared result{row, predict_published(row, clusters), predict_published(row, clusters, LinkRates::nominal), {}, {},
                  {}};
  const auto measured = row.measured_s();
  result.reason = result.prediction.reason;
  if (result.reason.empty() && !measured) {
    result.reason = "no measured step time";
  }
  if (result.reason.empty()) {
    result.log_ratio = std::log(result.prediction.total_s / *measured);
    result.log_ratio_at_nominal = std::log(result.at_nominal_links.total_s / *measured);
  }
  return result;
}

Errors errors_of(const std::vector<Compared>& rows) {
  std::vector<double> ratios;
  for (const Compared& compared : rows) {
    if (compared.log_ratio) {
      ratios.push_back(*compared.log_ratio);
    }
  }
  return errors_of(ratios);
}

ordered_json row_of(const Compared& compared) {
  const PublishedRow& row = compared.row;
  const PublishedPrediction& prediction = compared.prediction;
  const bool predicted = prediction.reason.empty();
  const auto measured = row.measured_s();
  const auto measured_bytes = row.measured_bytes();
  const auto of = [&](auto value) { return predicted ? ordered_json(value) : ordered_json(nullptr); };
  const auto ratio = [](const std::optional<double>& logarithm) {
    return logarithm ? ordered_json(std::exp(*logarithm)) : ordered_json(nullptr);
  };
  std::string notes;
  for (const std::string& note : prediction.notes) {
    notes += (notes.empty() ? "" : "; ") + note;
  }
  return {{"id", row.id},
          {"model", text_or_null(row.model)},
          {"gpus", or_null(row.gpus)},
          {"tensor", or_null(row.tensor)},
          {"pipeline", or_null(row.pipeline)},
          {"data", or_null(row.data)},
          {"micro_batch", or_null(row.micro_batch)},
          {"global_batch", or_null(row.global_batch)},
          {"method", of(std::string(name_of(prediction.plan.order)))},
          {"chunks", of(prediction.plan.chunks)},
          {"zero_stage", or_null(row.zero_stage)},
          {"recompute", text_or_null(row.recompute)},
          {"cluster", of(prediction.cluster)},
          {"predicted_step_s", of(prediction.total_s)},
          {"measured_step_s", or_null(measured)},
          {"measured_kind", text_or_null(row.iteration_kind)},
          {"ratio", ratio(compared.log_ratio)},
          {"ratio_at_nominal_links", ratio(compared.log_ratio_at_nominal)},
          {"layers_s", of(prediction.step.work_s)},
          {"bubble_s", of(prediction.step.bubble_s)},
          {"boundary_s", of(prediction.step.boundary_s)},
          {"exposed_data_s", of(prediction.step.exposed_data_s)},
          {"head_s", of(prediction.ends.head_s)},
          {"vocabulary_s", of(prediction.ends.vocabulary_s)},
          {"update_s", of(prediction.ends.update_s)},
          {"share_of_peak", of(prediction.share_of_peak)},
          {"predicted_memory_bytes", of(prediction.memory_bytes)},
          {"published_memory_bytes", or_null(measured_bytes)},
          {"memory_ratio", predicted && measured_bytes ? ordered_json(prediction.memory_bytes / *measured_bytes)
                                                       : ordered_json(nullptr)},
          {"reason", text_or_null(compared.reason)},
          {"notes", text_or_null(notes)},
          {"source", text_or_null(row.source)}};
}

// Each half of a device's rows predicted with the curve that the other half gives: rows in turn to either half.
struct HoldOut {
  std::string device;
  std::vector<EfficiencyPoint> curve;  // of all rows
  Errors first_by_second, second_by_first;
};

std::vector<HoldOut> hold_outs(const PaperOptions& options) {
  std::vector<HoldOut> result;
  std::map<std::string, std::vector<Cluster>> devices;
  for (const Cluster& cluster : options.published_clusters) {
    devices[cluster.device.name].push_back(cluster);
  }
  for (const auto& [device, own] : devices) {
    std::vector<PublishedRow> halves[2];
    std::size_t turn = 0;
    for (const PublishedRow& row : options.published) {
      if (!log_ratios({row}, own).empty()) {
        halves[turn++ % 2].push_back(row);
      }
    }
    const auto first = fitted_efficiency(halves[0], own, device);
    const auto second = fitted_efficiency(halves[1], own, device);
    const auto all = fitted_efficiency(options.published, own, device);
    if (first && second && all) {
      result.push_back({device, *all, errors_of(log_ratios(halves[0], with_efficiency(own, device, *second))),
                        errors_of(log_ratios(halves[1], with_efficiency(own, device, *first)))});
    }
  }
  return result;
}

ordered_json to_json(const HoldOut& hold_out) {
  ordered_json points = ordered_json::array();
  for (const EfficiencyPoint& point : hold_out.curve) {
    points.push_back({{"hidden", point.hidden}, {"share_of_peak", point.share_of_peak}});
  }
  return {{"device", hold_out.device},
          {"curve_of_these_rows", points},
          {"odd_rows_by_curve_of_even", to_json(hold_out.first_by_second)},
          {"even_rows_by_curve_of_odd", to_json(hold_out.second_by_first)}};
}

std::string conclusion_of(const std::vector<Compared>& rows, const std::vector<HoldOut>& holds) {
  const Compared* worst = nullptr;
  std::string far, unmet, missing;
  const auto list = [](std::string& words, const std::string& id, const std::string& why) {
    words += fmt::format("{}{} ({})", words.empty() ? "" : ", ", id, why);
  };
  const auto ratio = [](const std::optional<double>& logarithm) { return fmt::format("{:.2f}", std::exp(*logarithm)); };
  for (const Compared& compared : rows) {
    if (!compared.log_ratio) {
      list(missing, compared.row.id, compared.reason);
      continue;
    }
    if (worst == nullptr || std::abs(*compared.log_ratio) > std::abs(*worst->log_ratio)) {
      worst = &compared;
    }
    if (compared.far_off()) {
      list(far, compared.row.id, ratio(compared.log_ratio));
    }
    if (compared.not_met_at_nominal_links()) {
      list(unmet, compared.row.id, ratio(compared.log_ratio_at_nominal));
    }
  }
  std::string words;
  if (worst == nullptr) {
    words = "No row has both a prediction and a measurement.";
  } else {
    const Errors errors = errors_of(rows);
    words = fmt::format(
        "{} of {} rows compared: the median error (the larger of predicted and measured over the smaller, less one) is "
        "{}, the largest {} ({}, predicted over measured {}).",
        errors.rows, rows.size(), percent(errors.median), percent(errors.largest), worst->row.id,
        ratio(worst->log_ratio));
    words += far.empty() ? fmt::format(" No error is above {}.", percent_of(kFarOff))
                         : fmt::format(" Errors above {}: {}.", percent_of(kFarOff), far);
  }
  if (!unmet.empty()) {
    words += fmt::format(
        " Not met at the links' nominal rates (predicted too fast by an error above {}, with more than {} of the step "
        "waiting for data-parallel traffic): {}; the network reached less than its nominal rate, and its efficiency in "
        "the cluster file comes from such rows.",
        percent_of(kFarBelow), percent_of(kWaitsForNetwork), unmet);
  }
  for (const HoldOut& hold : holds) {
    words += fmt::format(
        " {}: with the curve of every second row alone, the other rows' median error is {} and {}, the largest {} and "
        "{}.",
        hold.device, percent(hold.first_by_second.median), percent(hold.second_by_first.median),
        percent(hold.first_by_second.largest), percent(hold.second_by_first.largest));
  }
  if (!missing.empty()) {
    words += fmt::format(" Not compared: {}.", missing);
  }
  return words;
}

}  // namespace

Figure published_figure(const PaperOptions& options) {
  if (options.published.empty()) {
    throw UsageError("figure published: there are no measurements to compare with");
  }
  Figure figure{.name = "published", .data = {}, .rows = {}};
  std::vector<Compared> rows;
  ordered_json far_off = ordered_json::array();
  for (const PublishedRow& row : options.published) {
    rows.push_back(compare(row, options.published_clusters));
    figure.rows.push_back(row_of(rows.back()));
    if (rows.back().far_off()) {
      far_off.push_back(row.id);
    }
  }
  const std::vector<HoldOut> holds = hold_outs(options);
  ordered_json assumptions = ordered_json::array(
      {"Predicted: closed forms of the layers at the cluster file's efficiencies (one curve a device type, one number "
       "a link tier, none a row), plus the head's product with the vocabulary, the reduction of the embedding's "
       "gradient and the optimizer's update at the rate of the memory. No latency; biases, norms and data loading left "
       "out; gradients reduced in 16 bits as soon as they are complete.",
       "Measured: as the sources state it; some are derived there from FLOP rates (see measured_kind).",
       "Links: tensor groups inside a node; data-parallel groups and pipeline neighbours over the network unless they "
       "fit into a node, every GPU with a port of its own."});
  ordered_json hold_out = ordered_json::array();
  for (const HoldOut& hold : holds) {
    hold_out.push_back(to_json(hold));
  }
  figure.data = {{"schema_version", 1},
                 {"figure", "published"},
                 {"title", "Published step times against the closed forms"},
                 {"assumptions", assumptions},
                 {"conclusion", conclusion_of(rows, holds)},
                 {"measurements", options.published_file},
                 {"summary", to_json(errors_of(rows))},
                 {fmt::format("more_than_{:.0f}_percent_off", 100 * kFarOff), far_off},
                 {"hold_out", hold_out},
                 {"rows", figure.rows}};
  return figure;
}

}  // namespace lamina::analysis
