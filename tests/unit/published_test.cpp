// Published step times: how rows are read, what is predicted for them, how far that is from what was measured.
#include "impl/analysis/published.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>

#include "impl/analysis/cluster_file.h"
#include "impl/analysis/paper.h"
#include "json_refusals.h"

namespace lamina::analysis {
namespace {

const std::filesystem::path scenarios = std::filesystem::path(LAMINA_TEST_DATA_DIR) / ".." / "scenarios";

std::vector<PublishedRow> shipped(const char* name = "measurements.json") {
  return read_published(scenarios / "published" / name);
}
std::vector<Cluster> clusters() { return read_published_clusters(scenarios / "clusters"); }

PublishedRow row_named(const std::vector<PublishedRow>& rows, std::string_view id) {
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const PublishedRow& row) { return row.id == id; });
  if (found == rows.end()) {
    throw Error(fmt::format("no row {}", id));
  }
  return *found;
}

Json document(const char* name = "measurements.json") {
  return read_strict_json((scenarios / "published" / name).string());
}

// ---- Reading -------------------------------------------------------------------------------------------------------

TEST(PublishedFiles, AllRead) {
  EXPECT_EQ(shipped().size(), 15u);
  EXPECT_EQ(shipped("further.json").size(), 7u);
  for (const PublishedRow& row : shipped()) {
    EXPECT_TRUE(row.measured_s()) << row.id;
    EXPECT_FALSE(row.source.empty()) << row.id;
  }
}

void expect_refusal(const Json& document, const std::string& part) {
  expect_one_line([&] { published_from_json(document, "m.json"); }, "m.json", part);
}

Json with(const char* key, const Json& value) {
  auto changed = document();
  changed["rows"][1][key] = value;
  return changed;
}

TEST(PublishedRefusals, Keys) {
  auto misspelt = document();
  misspelt["row"] = 1;
  expect_refusal(misspelt, "m.json: unknown key 'row' (the nearest known is 'rows')");
  expect_refusal(with("id", "narayanan21-t1-1.7B"), "rows[1]: id 'narayanan21-t1-1.7B' stands twice");
  auto changed = document();
  changed["rows"][0].erase("id");
  expect_refusal(changed, "rows[0]: key 'id' is missing");
  expect_refusal(Json::object(), "key 'rows' is missing");
  expect_refusal({{"rows", Json::array()}}, "at least one row");
  expect_refusal({{"rows", 3}}, "must be an array");
  expect_refusal({{"rows", {3}}}, "rows[0]: must be an object");
  expect_refusal(Json::array(), "must be an object");
  expect_refusal(Json(), "must be an object");
}

TEST(PublishedRefusals, Values) {
  expect_refusal(with("layers", "24"), "rows[1].layers: is \"24\"; it must be a whole number");
  expect_refusal(with("layers", 4.5), "rows[1].layers: is 4.5");
  expect_refusal(with("layers", 0), "layers: is 0");
  expect_refusal(with("global_batch", -1), "global_batch: is -1");
  expect_refusal(with("gpus", 1e30), "gpus: is 1e+30");
  expect_refusal(with("zero", 4), "zero: is 4; it must be from 0 to 3");
  expect_refusal(with("zero", -1), "zero: is -1");
  expect_refusal(with("iteration_s", 0), "iteration_s: is 0");
  expect_refusal(with("iteration_s", "3.5"), "iteration_s");
  expect_refusal(with("recompute", 3), "recompute: is 3; it must be a text or null");
  expect_refusal(with("memory_gib", -3), "memory_gib: is -3");
  expect_refusal(with("seq_parallel", 1), "seq_parallel: is 1; it must be true, false or null");
  expect_refusal(with("mfu_pct", true), "mfu_pct");
  expect_refusal(with("note", 7), "note: is 7; it must be a text or null");
  expect_refusal(with("id", ""), "id: must be a text that is not empty");
}

TEST(PublishedRefusals, Files) {
  expect_strict_reading([](const std::filesystem::path& file) { read_published(file); });
}

// ---- Rows that cannot be predicted, and what is read into others ---------------------------------------------------

PublishedPrediction prediction_with(const char* id, const std::function<void(PublishedRow&)>& change) {
  PublishedRow row = row_named(shipped(), id);
  change(row);
  return predict_published(row, clusters());
}

TEST(PublishedReasons, SayWhatIsMissingOrNotCovered) {
  const auto expect_reason = [](const char* id, const std::function<void(PublishedRow&)>& change,
                                const std::string& part) {
    const PublishedPrediction prediction = prediction_with(id, change);
    EXPECT_NE(prediction.reason.find(part), std::string::npos) << prediction.reason << "; expected " << part;
  };
  const char* plain = "narayanan21-t1-39B";
  const char* interleaved = "narayanan21-t1-530B";
  expect_reason(
      plain, [](auto& row) { row.hidden = {}; }, "'hidden' is not stated");
  expect_reason(
      plain, [](auto& row) { row.micro_batch = {}; }, "'micro_batch' is not stated");
  expect_reason(
      plain, [](auto& row) { row.recompute = ""; }, "'recompute' is not stated");
  expect_reason(
      plain, [](auto& row) { row.ffn = 22016; }, "the feed-forward size is 22016");
  expect_reason(
      plain, [](auto& row) { row.heads = 60; }, "does not divide model.hidden");
  expect_reason(
      plain, [](auto& row) { row.gpu = "TPUv4", row.cluster = ""; }, "no cluster file describes the GPU 'TPUv4'");
  expect_reason(
      plain, [](auto& row) { row.gpu = ""; }, "'gpu' is not stated");
  expect_reason(
      plain, [](auto& row) { row.gpus = 500; }, "tp·pp·dp is 512, but the row has 500 GPUs");
  expect_reason(
      plain, [](auto& row) { row.global_batch = 1500; }, "not a multiple of dp·micro_batch, 128");
  expect_reason(
      plain, [](auto& row) { row.node_gpus = 4; }, "the tensor group of 8 leaves its node of 4 GPUs");
  expect_reason(
      plain, [](auto& row) { row.schedule = "zb-h1"; }, "the schedule 'zb-h1' has no closed form here");
  expect_reason(
      plain, [](auto& row) { row.schedule = ""; }, "'schedule' is not stated");
  expect_reason(
      plain, [](auto& row) { row.precision = "fp8"; }, "no peak rate for precision 'fp8'");
  expect_reason(
      plain, [](auto& row) { row.layers = 1; }, "1 layers on 2 pipeline ranks");
  expect_reason(
      interleaved, [](auto& row) { row.interleave = 2; }, "do not make 2 equal chunks");
  expect_reason(
      interleaved, [](auto& row) { row.zero_stage = 3; }, "no form for ZeRO in an interleaved pipeline");
  expect_reason(
      interleaved, [](auto& row) { row.global_batch = 2511; }, "last interleaved group is shorter");
}

TEST(PublishedReasons, ARowWithAnUnknownKeyIsNotPredictedAndCostsTheOthersNothing) {
  const std::vector<PublishedRow> rows = published_from_json(with("hiden", 3), "m.json");
  EXPECT_EQ(predict_published(rows[1], clusters()).reason, "unknown key 'hiden' (the nearest known is 'hidden')");
  EXPECT_EQ(log_ratios(rows, clusters()).size(), 14u);
}

// The order that a row is predicted with, or why it is not.
std::string order_with(const char* id, const std::string& schedule, std::optional<std::int64_t> chunks) {
  const PublishedPrediction prediction = prediction_with(id, [&](auto& row) {
    row.schedule = schedule;
    row.interleave = chunks;
  });
  return prediction.reason.empty() ? std::string(name_of(prediction.plan.order)) : prediction.reason;
}

TEST(PublishedReasons, NamesAsSourcesWriteThem) {
  const char* id = "narayanan21-t1-530B";  // 105 layers on 35 ranks
  EXPECT_EQ(order_with(id, "1F1B", 1), "1f1b");
  EXPECT_EQ(order_with(id, "1F1B", {}), "1f1b");
  EXPECT_EQ(order_with(id, "1f1b", 3), "interleaved_1f1b");
  EXPECT_EQ(order_with(id, "interleaved 1F1B", 3), "interleaved_1f1b");
  EXPECT_EQ(order_with(id, "interleaved-1f1b", 1), "1f1b");
  EXPECT_EQ(order_with(id, "GPipe", 1), "gpipe");
  EXPECT_EQ(order_with(id, "GPipe", {}), "gpipe");
  EXPECT_EQ(order_with(id, "breadth-first", 3), "modular_pipeline");
  EXPECT_EQ(order_with(id, "modular", {}), "modular_pipeline");
  for (const char* gpu : {"A100-40GB-SXM", "NVIDIA A100 SXM4", "a100"}) {
    EXPECT_EQ(prediction_with(id, [&](auto& row) { row.gpu = gpu; }).cluster, "a100-80gb-infiniband") << gpu;
  }
}

TEST(PublishedReasons, InterleavingThatDoesNotFitTheScheduleIsRefused) {
  const char* id = "narayanan21-t1-530B";
  for (const char* schedule : {"interleaved-1f1b", "interleaved", "1f1b interleaved", "breadth-first"}) {
    EXPECT_EQ(order_with(id, schedule, {}), "'interleave' is not stated") << schedule;
  }
  EXPECT_EQ(order_with(id, "gpipe", 3), "'interleave' is 3, and GPipe has one stage a rank");
  EXPECT_EQ(order_with(id, "breadth-first", 1),
            "'interleave' is 1, and 'breadth-first' has a form for a layer a chunk");
  EXPECT_EQ(order_with(id, "modular", 2), "'interleave' is 2, and 'modular' has a form for a layer a chunk");
}

// One stage: what is known of pipelines is depth-first there, and nothing else is read as that.
TEST(PublishedReasons, SchedulesOfOneStage) {
  const char* id = "narayanan21-t1-1.7B";  // 24 layers
  for (const char* schedule : {"", "none", "1F1B", "1f1b (as printed)", "GPipe", "interleaved", "interleaved-1f1b"}) {
    EXPECT_EQ(order_with(id, schedule, {}), "data_parallel") << schedule;
    EXPECT_EQ(order_with(id, schedule, 2), "data_parallel") << schedule;
  }
  for (const char* schedule : {"layered", "breadth-first", "Breadth-first gradient accumulation"}) {
    EXPECT_EQ(order_with(id, schedule, {}), "layered_accumulation") << schedule;
    EXPECT_EQ(order_with(id, schedule, 24), "layered_accumulation") << schedule;
    EXPECT_NE(order_with(id, schedule, 4).find("has a form for a layer a chunk"), std::string::npos) << schedule;
  }
  for (const char* schedule : {"zb-h1", "modular", "chimera", "unknown"}) {
    EXPECT_EQ(order_with(id, schedule, {}), fmt::format("the schedule '{}' has no closed form here", schedule));
  }
  // Layered reduces behind all micro-batches of a layer, so that it is no slower.
  const auto step = [&](const char* schedule) {
    return prediction_with(id,
                           [&](auto& row) {
                             row.schedule = schedule;
                             row.micro_batch = 2;  // eight of them, each too short to hide a reduction behind
                             row.zero_stage = 2;
                           })
        .step.total_s;
  };
  EXPECT_LT(step("layered"), step("1f1b"));
}

TEST(PublishedReasons, WhatIsReadIntoARowIsNoted) {
  EXPECT_TRUE(prediction_with("korthikanti22-t5-175B-full", [](auto&) {}).notes.empty());
  const auto expect_note = [](const std::function<void(PublishedRow&)>& change, const std::string& note) {
    const PublishedPrediction prediction = prediction_with("korthikanti22-t5-175B-full", change);
    EXPECT_EQ(prediction.reason, "") << note;
    EXPECT_EQ(prediction.notes, std::vector<std::string>{note});
  };
  expect_note([](auto& row) { row.zero_stage = {}; }, "zero is not stated: read as 0");
  expect_note([](auto& row) { row.sequence_parallel = {}; }, "seq_parallel is not stated: read as false");
  expect_note([](auto& row) { row.precision = ""; }, "precision is not stated: read as fp16");
  expect_note([](auto& row) { row.node_gpus = {}; }, "node_gpus is not stated: read as 16, of a100-80gb-infiniband");
  expect_note([](auto& row) { row.verified = false; }, "the row is marked as not verified");
  const PublishedPrediction unstated =
      predict_published(row_named(shipped(), "narayanan21-t2-ptd-175B-768"), clusters());
  EXPECT_EQ(unstated.notes, (std::vector<std::string>{"interleave is not stated: read as none",
                                                      "seq_parallel is not stated: read as false"}));
  EXPECT_EQ(unstated.plan.order, Order::one_forward_one_backward);
  // ZeRO-1 splits the update and moves the same bytes.
  const auto stage = [](int zero) {
    return prediction_with("narayanan21-t1-530B", [&](auto& row) { row.zero_stage = zero; });
  };
  EXPECT_EQ(stage(1).notes.size(), stage(0).notes.size() + 1);
  EXPECT_DOUBLE_EQ(stage(1).step.total_s, stage(0).step.total_s);
  EXPECT_DOUBLE_EQ(stage(1).ends.update_s, stage(0).ends.update_s / 9);
}

// 16 GPUs fit into a node of the cluster file and not into one of 8: the link that they cross is not known.
TEST(PublishedReasons, ANodeThatIsNotStatedMayNotMatter) {
  const auto reason = [](const char* id, std::int64_t tensor, std::int64_t pipeline, std::int64_t data) {
    return prediction_with(id,
                           [&](auto& row) {
                             row.node_gpus = {};
                             row.tensor = tensor;
                             row.pipeline = pipeline;
                             row.data = data;
                             row.gpus = tensor * pipeline * data;
                           })
        .reason;
  };
  const char* id = "narayanan21-t1-39B";
  const auto unknown = [](int group) {
    return fmt::format("'node_gpus' is not stated, and a group of {} fits into a node of 16 but not of 8", group);
  };
  EXPECT_EQ(reason(id, 16, 2, 32), unknown(16));  // tensor group
  EXPECT_EQ(reason(id, 4, 8, 4), unknown(16));    // data-parallel group
  EXPECT_EQ(reason(id, 4, 3, 1), unknown(12));    // pipeline
  EXPECT_EQ(reason(id, 8, 2, 32), "");
  EXPECT_EQ(reason(id, 4, 2, 1), "");
}

TEST(PublishedReasons, TheClusterThatARowNames) {
  const char* id = "narayanan21-t1-530B";
  const auto on = [&](const char* gpu, const char* cluster) {
    return prediction_with(id, [&](auto& row) {
      row.gpu = gpu;
      row.cluster = cluster;
    });
  };
  EXPECT_EQ(on("H100-SXM5-80GB", "").cluster, "h100-80gb");
  EXPECT_EQ(on("Tesla V100-SXM3-32GB", "").cluster, "v100-32gb");
  const PublishedPrediction ethernet = on("A100", "a100-80gb-ethernet-25g");
  EXPECT_EQ(ethernet.cluster, "a100-80gb-ethernet-25g");
  EXPECT_GT(ethernet.total_s, on("A100", "a100-80gb-infiniband").total_s);
  // Not named: the one with the fastest network, and that is said.
  const PublishedPrediction fastest = on("A100", "");
  EXPECT_EQ(fastest.cluster, "a100-80gb-infiniband");
  EXPECT_EQ(
      fastest.notes.front(),
      "cluster is not stated: read as a100-80gb-infiniband, of the 2 with this GPU the one with the fastest network");
  EXPECT_EQ(on("H100", "a100-80gb-infiniband").reason,
            "no cluster file named 'a100-80gb-infiniband' describes the GPU 'H100'");
  EXPECT_EQ(on("A100", "selene").reason, "no cluster file named 'selene' describes the GPU 'A100'");
}

TEST(PublishedFiles, EveryClusterFileOfTheFolderIsRead) {
  const std::filesystem::path folder = "clusters_of_a_test";
  std::filesystem::create_directories(folder);
  std::vector<std::string> names;
  for (const char* name : {"c", "a", "b"}) {
    Json cluster = read_strict_json((scenarios / "clusters" / "h100-80gb.json").string());
    cluster["name"] = name;
    std::ofstream(folder / (std::string(name) + ".json")) << cluster;
  }
  std::ofstream(folder / "README.md") << "no cluster";
  for (const Cluster& cluster : read_published_clusters(folder)) {
    names.push_back(cluster.name);
  }
  std::filesystem::remove_all(folder);
  EXPECT_EQ(names, (std::vector<std::string>{"a", "b", "c"}));
}

TEST(PublishedRows, OtherWaysToStateTime) {
  PublishedRow row = shipped().front();
  row.iteration_s = {};
  EXPECT_FALSE(row.measured_s());
  row.samples_per_s = 128;
  EXPECT_DOUBLE_EQ(row.measured_s().value(), 4);
  row.memory = 2;
  EXPECT_DOUBLE_EQ(row.measured_bytes().value(), 2.0 * 1024 * 1024 * 1024);
  row.memory_unit = "GB";
  EXPECT_DOUBLE_EQ(row.measured_bytes().value(), 2e9);
  row.memory_unit = "MiB";
  EXPECT_FALSE(row.measured_bytes());
  EXPECT_EQ(predict_published(row, clusters()).notes.back(), "memory in 'MiB' is not compared");
}

// A group inside a node uses the node's link.
TEST(PublishedRows, GroupsInsideANodeUseItsLink) {
  const auto data_parallel = [](std::int64_t node) {
    return prediction_with("narayanan21-t1-1.7B", [&](auto& row) {
      row.data = row.gpus = 8;
      row.global_batch = 128;
      row.node_gpus = node;
    });
  };
  const double ratio = data_parallel(4).ends.vocabulary_s / data_parallel(8).ends.vocabulary_s;
  EXPECT_NEAR(ratio, 300 * 0.8 / (25 * 0.625), 1e-9);
}

// ---- The ends, in numbers made by hand -----------------------------------------------------------------------------

constexpr ModelShape kTiny{.layers = 2, .hidden = 4, .heads = 1, .sequence = 3, .vocabulary = 5};

TEST(Ends, ByHand) {
  const Rates rates{.flops_per_s = 10, .tensor_bytes_per_s = 1, .network_bytes_per_s = 10};
  // 6 products of 2·3 tokens by 4 by 5: 720 FLOPs.
  EXPECT_DOUBLE_EQ(head_time(kTiny, 2, 1, rates), 72);
  EXPECT_DOUBLE_EQ(head_time(kTiny, 2, 4, rates), 18);
  // Adam in fp32: reads weight, gradient and two moments, writes weight and two moments.
  EXPECT_DOUBLE_EQ(update_bytes_per_parameter(2, 4), 28);
  EXPECT_DOUBLE_EQ(update_bytes_per_parameter(0, 8), 24);
  StepPlan plan{.data = 2, .micro_batch = 2, .micro_batches = 3};
  EndTimes ends = end_times(plan, kTiny, rates, {}, 1000);
  EXPECT_DOUBLE_EQ(ends.head_s, 216);
  EXPECT_DOUBLE_EQ(ends.vocabulary_s, 4);                      // 20 elements of 2 bytes, half of them, twice
  EXPECT_DOUBLE_EQ(ends.update_s, 28 * (2 * 192 + 20) / 1e3);  // two layers of 12·4·4 and one vocabulary matrix
  EXPECT_DOUBLE_EQ(ends.total_s(), 216 + 4 + 11.312);
  plan.zero_stage = 1;
  EXPECT_DOUBLE_EQ(end_times(plan, kTiny, rates, {}, 1000).update_s, 11.312 / 2);
}

// ---- Predictions ---------------------------------------------------------------------------------------------------

// One row from its sizes and the data sheets' numbers, with nothing of this program: GPT 1.7B on 32 GPUs, one stage,
// one micro-batch of 16 sequences, full recomputation.
TEST(PublishedPredictions, OneRowByHand) {
  const double share = 0.3945 + (0.6476 - 0.3945) * std::log(2304.0 / 1024) / std::log(32768.0 / 1024);
  const double flops_per_s = 312e12 * share;
  const double network = 200e9 / 8 * 0.625;
  const double tokens = 16 * 2048;
  const double d = 2304;
  // Four matrices of 12 d² in all, two products of queries and keys: 2 FLOPs an element; three more forwards backward.
  const double forward = (2 * 12 * d * d + 2 * 2 * 2048 * d) * tokens / flops_per_s;
  const double layers = 24 * 4 * forward;
  // The all-reduce of one layer in 16 bits, twice around a ring of 32, hides behind the next layer's backward pass; the
  // last one does not.
  const double all_reduce = 2 * 31.0 / 32 * 2 * 12 * d * d / network;
  ASSERT_LT(all_reduce, 3 * forward);
  const double head = 3 * 2 * tokens * d * 51200 / flops_per_s;
  const double vocabulary = 2 * 31.0 / 32 * 2 * d * 51200 / network;
  const double update = 28 * (24 * 12 * d * d + d * 51200) / 2039e9;
  const double total = predict_published(row_named(shipped(), "narayanan21-t1-1.7B"), clusters()).total_s;
  EXPECT_NEAR(total / (layers + all_reduce + head + vocabulary + update), 1, 1e-9);
}

// Seconds that a separate plain program gave, which is not in this repository. It shares no code with this one. It
// shares the formulas of README.md, the cluster files' numbers and the reading of the rows: an error in those would
// stand in both. What agrees is that they are carried out as written.
TEST(PublishedPredictions, AgreeWithAPlainProgramOfTheSameFormulas) {
  const std::map<std::string, double> seconds{{"narayanan21-t1-1.7B", 3.482011},
                                              {"narayanan21-t1-7.5B", 3.806999},
                                              {"narayanan21-t1-39B", 14.675920},
                                              {"narayanan21-t1-145B", 24.858942},
                                              {"narayanan21-t1-530B", 53.773358},
                                              {"narayanan21-t2-zero3-175B-384", 71.846238},
                                              {"narayanan21-t2-zero3-175B-768", 66.857753},
                                              {"narayanan21-t2-zero3-175B-1536", 66.663617},
                                              {"narayanan21-t2-ptd-175B-384", 76.648495},
                                              {"narayanan21-t2-ptd-175B-768", 39.553124},
                                              {"narayanan21-t2-ptd-175B-1536", 21.005438},
                                              {"korthikanti22-t5-22B-full", 1.408123},
                                              {"korthikanti22-t5-22B-selective", 1.065983},
                                              {"korthikanti22-t5-175B-full", 19.047826},
                                              {"korthikanti22-t5-175B-selective", 14.354223}};
  for (const PublishedRow& row : shipped()) {
    const PublishedPrediction prediction = predict_published(row, clusters());
    EXPECT_EQ(prediction.reason, "") << row.id;
    EXPECT_NEAR(prediction.total_s / seconds.at(row.id), 1, 2e-6) << row.id;
  }
}

std::vector<double> sizes(const std::vector<double>& ratios) {
  std::vector<double> list;
  std::transform(ratios.begin(), ratios.end(), std::back_inserter(list), [](double ratio) { return std::abs(ratio); });
  std::sort(list.begin(), list.end());
  return list;
}

// All fifteen: half of them within 2 %, ZeRO-3 on 384 GPUs within 15 % (its forward pass waits for gathers longer than
// the form says), every other one within 6 %.
TEST(PublishedPredictions, OfTheRowsThatTheEfficienciesCameFrom) {
  const std::vector<PublishedRow> rows = shipped();
  const std::vector<double> ratios = log_ratios(rows, clusters());
  ASSERT_EQ(ratios.size(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double bound = rows[i].id == "narayanan21-t2-zero3-175B-384" ? 1.15 : 1.06;
    EXPECT_LE(std::abs(ratios[i]), std::log(bound)) << rows[i].id << " " << std::exp(ratios[i]);
  }
  EXPECT_LE(sizes(ratios)[7], std::log(1.02));
}

// Seven rows that nothing was fitted to: within a quarter, half of them within 16 %. Three need a micro-batch size that
// their source does not state.
TEST(PublishedPredictions, OfRowsThatTookNoPart) {
  const std::vector<double> ratios = sizes(log_ratios(shipped("further.json"), clusters()));
  ASSERT_EQ(ratios.size(), 7u);
  EXPECT_LE(ratios.back(), std::log(1.25));
  EXPECT_LE(ratios[3], std::log(1.16));
}

// Selective against full recomputation is FLOPs alone: 4 forwards a layer against 3 and the attention products.
TEST(PublishedPredictions, RecomputationComesOutByCountingFlops) {
  const std::vector<PublishedRow> rows = shipped();
  for (const std::string model : {"22B", "175B"}) {
    const PublishedRow& full = row_named(rows, "korthikanti22-t5-" + model + "-full");
    const PublishedRow& selective = row_named(rows, "korthikanti22-t5-" + model + "-selective");
    const double predicted =
        predict_published(full, clusters()).total_s / predict_published(selective, clusters()).total_s;
    EXPECT_NEAR(predicted / (*full.measured_s() / *selective.measured_s()), 1, 0.03) << model;
  }
}

// Parameters and optimizer, and activations, as figure 1 of Korthikanti et al. 2022 states them (GiB a GPU).
TEST(PublishedPredictions, MemoryAgreesWithKorthikanti) {
  constexpr double kGibibyte = 1024.0 * 1024 * 1024;
  struct Known {
    std::int64_t layers, hidden, heads, pipeline, chunks, micro_batch;
    double state, kept_all, kept_selective;
  };
  for (const Known& known : {Known{48, 6144, 64, 1, 1, 4, 45.5625, 59.25, 9.5625},
                             Known{96, 12288, 96, 8, 3, 1, 45.5625, 66.84375, 12.3515625},
                             Known{105, 20480, 128, 35, 3, 1, 31.640625, 114.0234375, 23.076171875},
                             Known{128, 25600, 160, 64, 1, 1, 32.958984375, 131.25, 26.5625}}) {
    const ModelShape model{known.layers, known.hidden, known.heads, 2048, 51200};
    WireBytes wire;
    wire.gradient = 4;
    StepPlan plan{.order = known.pipeline == 1 ? Order::depth_first
                           : known.chunks > 1  ? Order::interleaved
                                               : Order::one_forward_one_backward,
                  .pipeline = known.pipeline,
                  .tensor = 8,
                  .micro_batch = known.micro_batch,
                  .micro_batches = known.pipeline == 1 ? 1 : 8 * known.pipeline,
                  .chunks = known.chunks,
                  .recompute = Recompute::none,
                  .sequence_parallel = false};
    const MemoryBytes all = memory_of(plan, model, wire);
    EXPECT_NEAR((all.parameters + all.gradients + all.optimizer) / kGibibyte / known.state, 1, 1e-9) << known.hidden;
    EXPECT_NEAR(all.checkpoints / kGibibyte / known.kept_all, 1, 1e-9) << known.hidden;
    plan.recompute = Recompute::selective;
    plan.sequence_parallel = true;
    EXPECT_NEAR(memory_of(plan, model, wire).checkpoints / kGibibyte / known.kept_selective, 1, 1e-9) << known.hidden;
  }
}

// ---- How the efficiencies were found -------------------------------------------------------------------------------

TEST(Efficiencies, TheCurveIsTheOneThatTheRowsGive) {
  const auto curve = fitted_efficiency(shipped(), clusters(), "a100-80gb");
  ASSERT_TRUE(curve);
  for (const char* name : {"a100-80gb-infiniband", "a100-80gb-ethernet-25g", "h100-80gb", "v100-32gb"}) {
    const Cluster cluster = read_cluster(scenarios / "clusters" / (std::string(name) + ".json"));
    ASSERT_EQ(cluster.device.efficiency.size(), 2u) << name;
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(cluster.device.efficiency[i].hidden, (*curve)[i].hidden) << name;
      EXPECT_NEAR(cluster.device.efficiency[i].share_of_peak, (*curve)[i].share_of_peak, 2e-4) << name;
    }
  }
  EXPECT_FALSE(fitted_efficiency(shipped(), clusters(), "h100-80gb"));  // no rows
}

// A fit that finds what made the rows: measurements replaced by predictions of another curve.
TEST(Efficiencies, TheFitFindsTheCurveThatMadeTheRows) {
  const std::vector<EfficiencyPoint> made{{kCurveFrom, 0.3}, {kCurveTo, 0.8}};
  std::vector<PublishedRow> rows = shipped();
  for (PublishedRow& row : rows) {
    row.iteration_s = predict_published(row, with_efficiency(clusters(), "a100-80gb", made)).total_s;
  }
  const auto found = fitted_efficiency(rows, clusters(), "a100-80gb");
  ASSERT_TRUE(found);
  EXPECT_NEAR((*found)[0].share_of_peak, 0.3, 1e-3);
  EXPECT_NEAR((*found)[1].share_of_peak, 0.8, 1e-3);
}

// Two gathers and a reduction of the layers' parameters in 16 bits, in the time of the rows that wait for the network.
TEST(Efficiencies, TheNetworksComesFromZeroThree) {
  const Cluster cluster = read_cluster(scenarios / "clusters" / "a100-80gb-infiniband.json");
  for (const char* id : {"narayanan21-t2-zero3-175B-768", "narayanan21-t2-zero3-175B-1536"}) {
    const PublishedRow row = row_named(shipped(), id);
    const double bytes = 3 * 2.0 * 12 * 12288 * 12288 * 96;
    EXPECT_NEAR(bytes / *row.measured_s() / nominal_bytes_per_s(cluster.network) / cluster.network.efficiency.value, 1,
                0.005);
    // At the nominal rate the bytes alone need less than two thirds of the time that was measured.
    EXPECT_LT(predict_published(row, clusters(), LinkRates::nominal).total_s / *row.measured_s(), 0.65) << id;
  }
}

// ---- The figure ----------------------------------------------------------------------------------------------------

PaperOptions figure_options() {
  PaperOptions options;
  options.published = shipped();
  options.published_clusters = clusters();
  options.published_file = "measurements.json";
  return options;
}

TEST(PublishedFigure, HasEveryRowAndSaysWhatIsNotMet) {
  PaperOptions options = figure_options();
  options.published[2].ffn = 22016;
  options.published[3].iteration_s = {};
  const Figure figure = published_figure(options);
  ASSERT_EQ(figure.rows.size(), options.published.size());
  EXPECT_TRUE(figure.rows[2].at("predicted_step_s").is_null());
  EXPECT_NE(figure.rows[2].at("reason").get<std::string>().find("22016"), std::string::npos);
  EXPECT_FALSE(figure.rows[3].at("predicted_step_s").is_null());
  EXPECT_EQ(figure.rows[3].at("reason"), "no measured step time");
  EXPECT_EQ(figure.data.at("summary").at("rows"), 13);
  EXPECT_EQ(figure.data.at("more_than_10_percent_off"), Json({"narayanan21-t2-zero3-175B-384"}));
  const auto words = figure.data.at("conclusion").get<std::string>();
  for (const char* part :
       {"13 of 15 rows compared", "Errors above 10 %: narayanan21-t2-zero3-175B-384 (0.88).",
        "Not met at the links' nominal rates (predicted too fast by an error above 20 %, with more than 10 % of the "
        "step",
        "narayanan21-t2-zero3-175B-1536 (0.63)", "Not compared: narayanan21-t1-39B", "every second row"}) {
    EXPECT_NE(words.find(part), std::string::npos) << part << " in " << words;
  }
  const auto& row = figure.rows[0];
  double parts = 0;
  for (const char* key :
       {"layers_s", "bubble_s", "boundary_s", "exposed_data_s", "head_s", "vocabulary_s", "update_s"}) {
    parts += row.at(key).get<double>();
  }
  EXPECT_NEAR(parts / row.at("predicted_step_s").get<double>(), 1, 1e-12);
}

TEST(PublishedFigure, HoldsOutHalfTheRows) {
  const Figure figure = published_figure(figure_options());
  ASSERT_EQ(figure.data.at("hold_out").size(), 1u);
  const auto& hold_out = figure.data.at("hold_out").at(0);
  for (const char* half : {"odd_rows_by_curve_of_even", "even_rows_by_curve_of_odd"}) {
    EXPECT_LE(hold_out.at(half).at("median_abs_log_ratio").get<double>(), std::log(1.03)) << half;
    EXPECT_LE(hold_out.at(half).at("largest_abs_log_ratio").get<double>(), std::log(1.15)) << half;
  }
}

TEST(PublishedFigure, NeedsMeasurements) {
  PaperOptions options = figure_options();
  options.published.clear();
  EXPECT_THROW(published_figure(options), UsageError);
}

}  // namespace
}  // namespace lamina::analysis
