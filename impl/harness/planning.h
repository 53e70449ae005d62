// `lamina plan` and `lamina paper`: the functions of impl/analysis behind a scenario and a folder.
#pragma once

#include <cstdio>
#include <string>

#include "impl/analysis/search.h"
#include "impl/harness/runner.h"
#include "impl/harness/scenario.h"

namespace lamina {

// What a scenario with the executor `search` asks for. Throws UsageError.
analysis::SearchOptions search_options_of(const Setting& setting);

// What such a scenario resolves to, and within which limits is searched (`lamina check`). Throws UsageError.
Json describe_search(const Scenario& scenario);

struct PlanOptions {
  std::string emit;          // "megatron", "deepspeed"; empty: the table
  std::string out;           // folder of plan.json; empty: not written
  std::int64_t confirm = 3;  // so many of each list's best plans are simulated too
  bool force = false;
};

// Searches, confirms the best plans (confirm.h), prints the table (or the fastest plan for another system) and writes
// plan.json. An interrupt (Ctrl-C) ends the search with the best of what was seen, or what is left to simulate. Throws
// UsageError when no plan fits, with the counts of refusals.
ExitCode plan_command(const Scenario& scenario, const PlanOptions& options, std::FILE* output, std::FILE* errors);

struct PaperCommandOptions {
  std::string figure;        // empty: all
  std::string out;           // folder
  std::string clusters;      // folder of the paper's clusters; empty: the project's own
  std::string measurements;  // published step times for figure `published`; empty: the project's own
  std::string batch_law = "gpt3";
  std::string step_rule = "same_tokens";
  std::string rates = "nominal";
  std::int64_t family = 160;
  std::int64_t max_gpus = 100'000;
  bool pictures = true;  // PNG and PDF through plots/paper.py, besides JSON and CSV
  bool force = false;
};

ExitCode paper_figures_command(const PaperCommandOptions& options, std::FILE* output, std::FILE* errors);

}  // namespace lamina
