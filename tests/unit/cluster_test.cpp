// Cluster files: the shipped ones read, bad ones get one line that names the place.
#include "impl/analysis/cluster_file.h"

#include <gtest/gtest.h>

#include <cmath>

#include "json_refusals.h"

namespace lamina::analysis {
namespace {

const std::filesystem::path folder = std::filesystem::path(LAMINA_TEST_DATA_DIR) / ".." / "scenarios" / "clusters";

Json shipped() { return read_strict_json((folder / "a100-80gb-infiniband.json").string()); }

TEST(ClusterFiles, AllRead) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const Cluster cluster = read_cluster(entry.path());
    EXPECT_EQ(cluster.name + ".json", entry.path().filename().string());
    EXPECT_GT(nominal_bytes_per_s(cluster.node), nominal_bytes_per_s(cluster.network)) << cluster.name;
    ++count;
  }
  EXPECT_GE(count, 4);
}

// "… 312 TFLOP/s dense": the rate that a source states is the one that stands beside it.
TEST(ClusterFiles, PeakRatesAreThoseOfTheirSources) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    for (const auto& [precision, rate] : read_cluster(entry.path()).device.peak_flops_per_s) {
      const std::size_t unit = rate.source.find(" TFLOP/s");
      ASSERT_NE(unit, std::string::npos) << rate.source;
      const std::size_t number = rate.source.rfind(' ', unit - 1) + 1;
      EXPECT_DOUBLE_EQ(std::stod(rate.source.substr(number, unit - number)) * 1e12, rate.value)
          << entry.path() << " " << precision << ": " << rate.source;
    }
  }
}

TEST(ClusterFiles, ThePapersTwo) {
  const PaperClusters clusters = read_paper_clusters(folder);
  EXPECT_DOUBLE_EQ(clusters.infiniband.device.peak_flops_per_s.at("fp16").value, 312e12);
  EXPECT_DOUBLE_EQ(clusters.infiniband.device.memory_bytes.value, 80e9);
  EXPECT_DOUBLE_EQ(nominal_bytes_per_s(clusters.infiniband.node), 300e9);
  EXPECT_DOUBLE_EQ(nominal_bytes_per_s(clusters.infiniband.network), 25e9);
  EXPECT_DOUBLE_EQ(nominal_bytes_per_s(clusters.ethernet.network), 3.125e9);
  EXPECT_EQ(clusters.ethernet.node_size.value, 16);
  EXPECT_LT(reached_bytes_per_s(clusters.ethernet.network), 3.125e9);
}

TEST(Efficiency, LinearInTheLogarithm) {
  Device device;
  EXPECT_EQ(share_of_peak(device, 1000), 1);
  device.efficiency = {{100, 0.2}, {10000, 0.6}};
  EXPECT_DOUBLE_EQ(share_of_peak(device, 10), 0.2);
  EXPECT_DOUBLE_EQ(share_of_peak(device, 1000), 0.4);
  EXPECT_DOUBLE_EQ(share_of_peak(device, 1e9), 0.6);
}

void expect_refusal(const Json& document, const std::string& part) {
  expect_one_line([&] { cluster_from_json(document, "c.json"); }, "c.json", part);
}

TEST(ClusterRefusals, Keys) {
  auto document = shipped();
  document["links"]["netwrok"] = 1;
  expect_refusal(document, "c.json.links: unknown key 'netwrok' (the nearest known is 'network')");
  document = shipped();
  document["device"].erase("memory_bytes");
  expect_refusal(document, "c.json.device: key 'memory_bytes' is missing");
  document = shipped();
  document["device"]["memory_bytes"].erase("source");
  expect_refusal(document, "'source' is missing");
  document = shipped();
  document["device"]["memory_bytes"]["source"] = "";
  expect_refusal(document, "not empty");
  expect_refusal(Json::array(), "must be an object");
  expect_refusal(Json(), "must be an object");
}

TEST(ClusterRefusals, Numbers) {
  const auto with = [](const char* pointer, const Json& value) {
    auto document = shipped();
    document[Json::json_pointer(pointer)] = value;
    return document;
  };
  const char* bandwidth = "/links/network/bandwidth_bits_per_s/value";
  expect_refusal(with(bandwidth, 0), "c.json.links.network.bandwidth_bits_per_s.value: is 0");
  expect_refusal(with(bandwidth, -1), "is -1");
  expect_refusal(with(bandwidth, "25e9"), "must be a number");
  expect_refusal(with(bandwidth, nullptr), "is null");
  expect_refusal(with(bandwidth, std::nan("")), "must be a number");
  expect_refusal(with(bandwidth, 1e300), "at most");
  expect_refusal(with("/device/memory_bytes/value", -80e9), "memory_bytes.value");
  expect_refusal(with("/links/node/efficiency/value", 1.5), "efficiency.value: is 1.5");
  expect_refusal(with("/links/node/efficiency/value", 0), "efficiency.value: is 0");
  expect_refusal(with("/node_size/value", 2.5), "whole number");
  expect_refusal(with("/node_size/value", 0), "node_size.value");
  expect_refusal(with("/schema_version", 2), "reads version 1");
  expect_refusal(with("/device/efficiency/points/1/hidden", 1), "must ascend");
  expect_refusal(with("/device/efficiency/points", 3), "must be an array");
}

TEST(ClusterRefusals, Files) {
  expect_strict_reading([](const std::filesystem::path& file) { read_cluster(file); });
}

}  // namespace
}  // namespace lamina::analysis
