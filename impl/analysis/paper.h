// The paper's claims as data: each figure is a JSON document (assumptions and a conclusion in plain words inside) and
// a flat table for CSV. Claims, formulas and choices are in this folder's README.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "impl/analysis/cluster_file.h"
#include "impl/analysis/confirmation.h"
#include "impl/analysis/published.h"
#include "impl/analysis/search.h"

namespace lamina::analysis {

struct PaperOptions {
  PaperClusters clusters;
  std::int64_t family = 160;  // X_160, the trillion-parameter model
  BatchLaw batch_law = BatchLaw::gpt3;
  StepRule step_rule = StepRule::same_tokens;
  RateKind rates = RateKind::nominal;
  std::string precision = "fp16";
  std::int64_t max_gpus = 100'000;
  Confirm confirm;  // of the frontier's plans, beside the forms; empty: the forms alone
  // What figure `published` compares with, and where. It always takes the rates that are reached.
  std::vector<PublishedRow> published;
  std::vector<Cluster> published_clusters;
  std::string published_file;  // as it is named in the figure
};

struct Figure {
  std::string name;
  nlohmann::ordered_json data;               // figure, title, assumptions, conclusion and what the figure shows
  std::vector<nlohmann::ordered_json> rows;  // flat objects with equal keys, one CSV line each
};

// Shortest training per strategy and variant: plan, GPUs, utilisation, days, memory by kind.
Figure headline_figure(const PaperOptions& options);
// Shortest training time on at most so many GPUs, per family and link; by the forms and, with options.confirm, by the
// same plans' schedules.
Figure frontier_figure(const PaperOptions& options);
// Time, GPUs and memory per GPU of the fastest plan, 10⁹ to 10¹⁴ parameters, per strategy and variant.
Figure model_size_figure(const PaperOptions& options);
// Step time against the bandwidth between nodes, per method, with the bandwidth from which it no longer matters.
Figure network_figure(const PaperOptions& options);
// Memory per GPU by kind, per method, at one split.
Figure memory_figure(const PaperOptions& options);
// Both batch laws, both rules below the critical batch, and what the choice does to each claim.
Figure batch_law_figure(const PaperOptions& options);
// Depth-first against layered, without and with partition; GPipe against modular: when each operation runs.
Figure timeline_figure(const PaperOptions& options);
// Step times that others measured against what the forms predict for them; rows that cannot be predicted say why.
Figure published_figure(const PaperOptions& options);

// The names in the order in which they are made; paper_figure throws UsageError for another.
const std::vector<std::string>& paper_figure_names();
Figure paper_figure(std::string_view name, const PaperOptions& options);

// Makes one figure, or all of them when `name` is empty, and writes NAME.json and NAME.csv into `directory` (made when
// missing; each file is written aside and renamed). Returns the text for stdout: per figure its conclusion and files.
// `report` is told each figure's name before it is made. Throws UsageError when a file cannot be written.
std::string paper_command(std::string_view name, const std::filesystem::path& directory, const PaperOptions& options,
                          const std::function<void(std::string_view)>& report = {});

std::string to_csv(const std::vector<nlohmann::ordered_json>& rows);

}  // namespace lamina::analysis
