// Predicted against measured step times: a row for each published measurement, none left out.
#include <algorithm>
#include <cmath>

#include "impl/analysis/cost.h"
#include "impl/analysis/paper.h"
#include "impl/base/error.h"

namespace lamina::analysis {
namespace {

using nlohmann::ordered_json;

constexpr double kClose = 0.1;  // an error that still counts as met

template <class Value>
ordered_json or_null(const std::optional<Value>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json text_or_null(const std::string& words) {
  return words.empty() ? ordered_json(nullptr) : ordered_json(words);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

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

// ln(1.1) as "10 %": how far the larger of prediction and measurement is above the smaller.
std::string percent(double log_ratio) { return fmt::format("{:.1f} %", 100 * std::expm1(std::abs(log_ratio))); }

ordered_json row_of(const PublishedRow& row, const PublishedPrediction& prediction,
                    const PublishedPrediction& at_nominal_links) {
  const bool predicted = prediction.reason.empty();
  const auto measured = row.measured_s();
  const auto measured_bytes = row.measured_bytes();
  const auto of = [&](auto value) { return predicted ? ordered_json(value) : ordered_json(nullptr); };
  const auto over = [&](double value, const std::optional<double>& rival) {
    return predicted && rival ? ordered_json(value / *rival) : ordered_json(nullptr);
  };
  std::string notes;
  for (const std::string& note : prediction.notes) {
    notes += (notes.empty() ? "" : "; ") + note;
  }
  const std::string reason = predicted ? (measured ? "" : "no measured step time") : prediction.reason;
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
          {"ratio", over(prediction.total_s, measured)},
          {"ratio_at_nominal_links", over(at_nominal_links.total_s, measured)},
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
          {"memory_ratio", over(prediction.memory_bytes, measured_bytes)},
          {"reason", text_or_null(reason)},
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
  for (const Cluster& cluster : options.published_clusters) {
    std::vector<PublishedRow> halves[2];
    const std::vector<Cluster> own{cluster};
    std::size_t turn = 0;
    for (const PublishedRow& row : options.published) {
      if (!log_ratios({row}, own).empty()) {
        halves[turn++ % 2].push_back(row);
      }
    }
    const std::string& device = cluster.device.name;
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

std::string conclusion_of(const std::vector<ordered_json>& rows, const std::vector<HoldOut>& holds) {
  std::vector<double> ratios;
  const ordered_json* worst = nullptr;
  std::string far, unmet, missing;
  const auto list = [](std::string& words, const std::string& item) { words += (words.empty() ? "" : ", ") + item; };
  std::size_t without = 0;
  for (const ordered_json& row : rows) {
    if (row.at("ratio").is_null()) {
      ++without;
      list(missing, fmt::format("{} ({})", row.at("id").get<std::string>(), row.at("reason").get<std::string>()));
      continue;
    }
    const double ratio = std::log(row.at("ratio").get<double>());
    ratios.push_back(ratio);
    if (worst == nullptr || std::abs(ratio) > std::abs(std::log(worst->at("ratio").get<double>()))) {
      worst = &row;
    }
    const std::string item = fmt::format("{} ({:.2f})", row.at("id").get<std::string>(), row.at("ratio").get<double>());
    if (std::abs(ratio) > std::log1p(kClose)) {
      list(far, item);
    }
    const double nominal = row.at("ratio_at_nominal_links").get<double>();
    if (nominal < 1 / (1 + 2 * kClose) &&
        row.at("exposed_data_s").get<double>() > kClose * row.at("predicted_step_s").get<double>()) {
      list(unmet, fmt::format("{} ({:.2f})", row.at("id").get<std::string>(), nominal));
    }
  }
  std::string words;
  if (worst == nullptr) {
    words = "No row has both a prediction and a measurement.";
  } else {
    const Errors errors = errors_of(ratios);
    words = fmt::format(
        "{} of {} rows compared: the median error is {}, the largest {} ({}, predicted over measured "
        "{:.2f}).",
        errors.rows, rows.size(), percent(errors.median), percent(errors.largest), worst->at("id").get<std::string>(),
        worst->at("ratio").get<double>());
    words += far.empty() ? fmt::format(" No row is more than {:.0f} % off.", 100 * kClose)
                         : fmt::format(" More than {:.0f} % off: {}.", 100 * kClose, far);
  }
  if (!unmet.empty()) {
    words += fmt::format(
        " Not met at the links' nominal rates: {}; they wait for the network, which reached "
        "less than its nominal rate, and the network's efficiency in the cluster file comes from such rows.",
        unmet);
  }
  for (const HoldOut& hold : holds) {
    words += fmt::format(
        " {}: with the curve of every second row alone, the other rows' median error is {} and {}, the largest {} and "
        "{}.",
        hold.device, percent(hold.first_by_second.median), percent(hold.second_by_first.median),
        percent(hold.first_by_second.largest), percent(hold.second_by_first.largest));
  }
  if (without > 0) {
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
  for (const PublishedRow& row : options.published) {
    figure.rows.push_back(row_of(row, predict_published(row, options.published_clusters),
                                 predict_published(row, options.published_clusters, LinkRates::nominal)));
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
  std::vector<double> ratios;
  ordered_json not_met = ordered_json::array();
  for (const ordered_json& row : figure.rows) {
    if (!row.at("ratio").is_null()) {
      ratios.push_back(std::log(row.at("ratio").get<double>()));
      if (std::abs(ratios.back()) > std::log1p(kClose)) {
        not_met.push_back(row.at("id"));
      }
    }
  }
  ordered_json hold_out = ordered_json::array();
  for (const HoldOut& hold : holds) {
    hold_out.push_back(to_json(hold));
  }
  figure.data = {{"schema_version", 1},
                 {"figure", "published"},
                 {"title", "Published step times against the closed forms"},
                 {"assumptions", assumptions},
                 {"conclusion", conclusion_of(figure.rows, holds)},
                 {"measurements", options.published_file},
                 {"summary", to_json(errors_of(ratios))},
                 {"more_than_10_percent_off", not_met},
                 {"hold_out", hold_out},
                 {"rows", figure.rows}};
  return figure;
}

}  // namespace lamina::analysis
