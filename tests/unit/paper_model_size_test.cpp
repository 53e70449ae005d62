#include <gtest/gtest.h>

#include <map>

#include "impl/analysis/paper.h"

namespace lamina::analysis {
namespace {

TEST(ModelSize, LongerWithSizeAndWithinMemory) {
  PaperOptions options;
  options.clusters = read_paper_clusters(std::filesystem::path(LAMINA_TEST_DATA_DIR) / ".." / "scenarios" / "clusters");
  const Figure figure = model_size_figure(options);
  std::map<std::string, double> last;
  double smallest = 1e30;
  double largest = 0;
  std::size_t plans = 0;
  for (const auto& row : figure.rows) {
    smallest = std::min(smallest, row.at("parameters").get<double>());
    largest = std::max(largest, row.at("parameters").get<double>());
    if (row.at("training_days").is_null()) {
      EXPECT_TRUE(row.at("memory_bytes").is_null());
      continue;
    }
    ++plans;
    EXPECT_LE(row.at("memory_bytes").get<double>(), 80e9);
    EXPECT_LE(row.at("gpus").get<std::int64_t>(), 1'000'000);
    const std::string series = row.at("link").get<std::string>() + row.at("strategy").get<std::string>() +
                               row.at("variant").get<std::string>();
    EXPECT_GT(row.at("training_days").get<double>(), last[series]) << series;
    last[series] = row.at("training_days").get<double>();
  }
  EXPECT_LT(smallest, 1e9);
  EXPECT_GT(largest, 1e14);
  EXPECT_GT(plans, 200u);
}

}  // namespace
}  // namespace lamina::analysis
