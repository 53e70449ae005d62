// The paper's figures: shape, honesty of the numbers and words, files.
#include "impl/analysis/paper.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "impl/base/error.h"

namespace lamina::analysis {
namespace {

const std::filesystem::path clusters = std::filesystem::path(LAMINA_TEST_DATA_DIR) / ".." / "scenarios" / "clusters";

PaperOptions paper_options(std::int64_t family = 160) {
  PaperOptions options;
  options.clusters = read_paper_clusters(clusters);
  options.family = family;
  options.published = read_published(clusters / ".." / "published" / "measurements.json");
  options.published_clusters = read_published_clusters(clusters);
  options.published_file = "measurements.json";
  return options;
}

void expect_finite(const nlohmann::ordered_json& value, const std::string& path) {
  if (value.is_number_float()) {
    EXPECT_TRUE(std::isfinite(value.get<double>())) << path;
  } else if (value.is_structured()) {
    for (const auto& [key, child] : value.items()) {
      expect_finite(child, path + "/" + key);
    }
  }
}

const nlohmann::ordered_json& entry_at(const nlohmann::ordered_json& entries, std::int64_t gpus) {
  for (const auto& entry : entries) {
    if (entry.at("gpus_at_most") == gpus) {
      return entry;
    }
  }
  throw Error("no such entry");
}

TEST(Paper, EveryFigureSaysWhatItAssumesAndConcludes) {
  const PaperOptions options = paper_options(32);
  for (const std::string& name : paper_figure_names()) {
    if (name == "model-size") {
      continue;  // has a test of its own, with sizes of its own
    }
    const Figure figure = paper_figure(name, options);
    EXPECT_EQ(figure.name, name);
    EXPECT_EQ(figure.data.at("figure"), name);
    EXPECT_FALSE(figure.data.at("title").get<std::string>().empty()) << name;
    EXPECT_GE(figure.data.at("assumptions").size(), 2u) << name;
    EXPECT_GT(figure.data.at("conclusion").get<std::string>().size(), 40u) << name;
    EXPECT_FALSE(figure.rows.empty()) << name;
    expect_finite(figure.data, name);
    const std::string csv = to_csv(figure.rows);
    EXPECT_EQ(static_cast<std::size_t>(std::count(csv.begin(), csv.end(), '\n')), figure.rows.size() + 1) << name;
  }
  EXPECT_THROW(paper_figure("frontiers", options), UsageError);
}

TEST(Paper, FrontierShape) {
  const Figure figure = frontier_figure(paper_options());
  for (const char* link : {"infiniband", "ethernet"}) {
    const auto& entries = figure.data.at("links").at(link);
    for (const std::int64_t gpus : {1000, 5000, 10000, 20000, 40000, 100000}) {
      const auto& entry = entry_at(entries, gpus);
      const double improved = entry.at("improved_days").get<double>();
      EXPECT_DOUBLE_EQ(entry.at("ratio").get<double>(), entry.at("baseline_days").get<double>() / improved);
      EXPECT_DOUBLE_EQ(entry.at("ratio_interleaved").get<double>(),
                       entry.at("baseline_interleaved_days").get<double>() / improved);
      for (const char* family : {"baseline", "baseline_interleaved", "improved"}) {
        const auto& plan = entry.at(std::string(family) + "_plan");
        EXPECT_LE(plan.at("gpus").get<std::int64_t>(), gpus);
        EXPECT_LE(plan.at("memory").at("total_bytes").get<double>(), 80e9);
        EXPECT_DOUBLE_EQ(plan.at("training_days").get<double>(), entry.at(std::string(family) + "_days").get<double>());
      }
    }
    // Too few GPUs for the model: null, and no ratio.
    EXPECT_TRUE(entry_at(entries, 250).at("improved_days").is_null());
    EXPECT_TRUE(entry_at(entries, 250).at("ratio").is_null());
  }
  const double ratio = entry_at(figure.data.at("links").at("infiniband"), 40000).at("ratio").get<double>();
  EXPECT_NEAR(ratio, 1.8936, 1e-3);
  EXPECT_NE(figure.data.at("conclusion").get<std::string>().find("1.89 times faster than the baseline"),
            std::string::npos);
}

TEST(Paper, FrontierNamesWhereTheProposedMethodsLose) {
  const Figure figure = frontier_figure(paper_options(64));
  const auto& entry = entry_at(figure.data.at("links").at("ethernet"), 40000);
  ASSERT_LT(entry.at("ratio").get<double>(), 0.96);
  const auto conclusion = figure.data.at("conclusion").get<std::string>();
  EXPECT_NE(conclusion.find("they lose to the baseline at"), std::string::npos) << conclusion;
  EXPECT_NE(conclusion.find("times slower than the baseline"), std::string::npos) << conclusion;
}

TEST(Paper, HeadlineHasEveryStrategyAndVariant) {
  const Figure figure = headline_figure(paper_options());
  EXPECT_EQ(figure.rows.size(), 2u * 5 * 4);
  for (const auto& entry : figure.data.at("links").at("infiniband")) {
    EXPECT_NE(entry.at("plan").is_null(), entry.at("reason").is_null());
  }
  // A trillion parameters do not fit one GPU.
  EXPECT_TRUE(figure.data.at("links").at("infiniband").at(0).at("plan").is_null());
}

TEST(Paper, NetworkFigureMarksThresholds) {
  const Figure figure = network_figure(paper_options());
  double depth_first = 0;
  double layered = 0;
  for (const auto& method : figure.data.at("methods")) {
    double last = std::numeric_limits<double>::infinity();
    for (const auto& point : method.at("points")) {
      if (!point.at("step_time_s").is_null()) {
        EXPECT_LE(point.at("step_time_s").get<double>(), last * (1 + 1e-12)) << method.at("label");
        last = point.at("step_time_s").get<double>();
      }
    }
    if (method.at("label") == "depth-first, ZeRO-3") {
      depth_first = method.at("threshold_bits_per_s").get<double>();
      EXPECT_GT(method.at("closed_form_threshold_bits_per_s").get<double>(), depth_first);
    } else if (method.at("label") == "layered, ZeRO-3") {
      layered = method.at("threshold_bits_per_s").get<double>();
    }
  }
  EXPECT_NEAR(depth_first / layered, 8, 0.5);  // 8 micro-batches
}

TEST(Paper, TimelineOfThePipelines) {
  const Figure figure = timeline_figure(paper_options());
  std::map<std::string, double> ends;
  for (const auto& panel : figure.data.at("panels")) {
    ends[panel.at("panel").get<std::string>() + " " + panel.at("method").get<std::string>()] =
        panel.at("end").get<double>();
  }
  EXPECT_DOUBLE_EQ(ends.at("without partition depth-first"), 75);
  EXPECT_DOUBLE_EQ(ends.at("without partition layered"), 69);
  EXPECT_DOUBLE_EQ(ends.at("pipeline GPipe"), 73.5);
  EXPECT_DOUBLE_EQ(ends.at("pipeline modular"), 61.5);
}

TEST(PaperFiles, WrittenWhole) {
  const auto directory = std::filesystem::temp_directory_path() / "lamina_paper_test" / "deep";
  std::filesystem::remove_all(directory.parent_path());
  const std::string text = paper_command("timeline", directory, paper_options());
  EXPECT_NE(text.find("# timeline"), std::string::npos);
  std::ifstream json(directory / "timeline.json");
  EXPECT_EQ(nlohmann::json::parse(json).at("figure"), "timeline");
  std::ifstream csv(directory / "timeline.csv");
  std::string header;
  std::getline(csv, header);
  EXPECT_EQ(header, "panel,method,rank,lane,work,layer,micro_batch,start,end");
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) {
    ++files;
  }
  EXPECT_EQ(files, 2);  // nothing half written is left
  std::filesystem::remove_all(directory.parent_path());
  EXPECT_THROW(paper_command("timeline", "/dev/null/paper", paper_options()), UsageError);
  EXPECT_THROW(paper_command("nonesuch", directory, paper_options()), UsageError);
  std::filesystem::remove_all(directory.parent_path());
}

TEST(Csv, QuotesAndNulls) {
  EXPECT_EQ(to_csv({{{"a", "x, \"y\""}, {"b", nullptr}, {"c", 1.5}}}), "a,b,c\n\"x, \"\"y\"\"\",,1.5\n");
  EXPECT_EQ(to_csv({{{"a", nullptr}, {"b", 2}}}), "a,b\n,2\n");
  EXPECT_EQ(to_csv({}), "");
}

}  // namespace
}  // namespace lamina::analysis
