// The search against plain enumeration, against values of an independent program, and its manners.
#include "impl/analysis/search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "impl/analysis/cluster_file.h"
#include "impl/analysis/emit.h"
#include "impl/analysis/plan_report.h"
#include "impl/base/error.h"

namespace lamina::analysis {
namespace {

const std::filesystem::path clusters = std::filesystem::path(LAMINA_TEST_DATA_DIR) / ".." / "scenarios" / "clusters";

constexpr double infiniband = 25e9;
constexpr double ethernet = 3.125e9;

SearchOptions options_for(std::int64_t family, double network_bytes_per_s) {
  SearchOptions options;
  options.setting.model = family_model(family);
  options.setting.rates = {
      .flops_per_s = 312e12, .tensor_bytes_per_s = 300e9, .network_bytes_per_s = network_bytes_per_s};
  options.setting.critical_batch_tokens =
      critical_batch_tokens(BatchLaw::gpt3, total_parameters(options.setting.model));
  return options;
}

double days_at(const SearchResult& result, const char* track, std::int64_t devices) {
  const auto candidate = result.track(track).at_most(devices);
  return candidate ? candidate->training_s / seconds_per_day : std::numeric_limits<double>::infinity();
}

// Recorded from a brute force that tries every plan of the space. It shares the closed forms with this program (the
// same formulas, the same reading of what they leave open) and nothing of the search: what agrees here is the search
// and how the forms are put together. The forms themselves are held by forms_test, forms_timeline_test and the
// exactness tests.
struct Anchor {
  std::int64_t family;
  double network;
  std::int64_t devices;
  double baseline;
  double interleaved;
  double improved;
};

class Anchors : public testing::TestWithParam<Anchor> {};

TEST_P(Anchors, AgreeWithABruteForce) {
  const Anchor& anchor = GetParam();
  const SearchResult result = search(options_for(anchor.family, anchor.network));
  EXPECT_NEAR(days_at(result, "baseline", anchor.devices) / anchor.baseline, 1, 1e-4);
  EXPECT_NEAR(days_at(result, "baseline_interleaved", anchor.devices) / anchor.interleaved, 1, 1e-4);
  EXPECT_NEAR(days_at(result, "improved", anchor.devices) / anchor.improved, 1, 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Frontier, Anchors,
                         testing::Values(Anchor{160, infiniband, 1000, 250.92046, 250.92046, 240.38772},
                                         Anchor{160, infiniband, 20000, 20.70726, 15.08771, 13.75002},
                                         Anchor{160, infiniband, 40000, 13.97223, 8.06712, 7.37870},
                                         Anchor{160, ethernet, 1000, 287.68024, 267.43480, 246.84562},
                                         Anchor{160, ethernet, 40000, 15.64264, 10.07391, 10.07391},
                                         Anchor{160, ethernet, 100000, 11.43760, 10.07391, 10.07391},
                                         Anchor{100, infiniband, 5000, 3.90664, 2.60126, 2.38210},
                                         Anchor{100, ethernet, 20000, 3.15526, 3.15526, 3.38930}));

// Every plan of the space, one by one, with the forms alone.
void each_plan(const SearchOptions& options, const std::function<void(const StepPlan&, double training_s)>& visit) {
  const Setting& setting = options.setting;
  const ModelShape& model = setting.model;
  const auto critical = static_cast<std::int64_t>(std::floor(setting.critical_batch()));
  const auto consider = [&](const StepPlan& plan) {
    const Stages stages = stages_of(model.layers, plan.pipeline);
    const LayerTimes times = layer_times(model, plan, setting.rates, setting.wire);
    StepPlan on_two = plan;
    on_two.data = std::max<std::int64_t>(2, plan.data);
    if (plan.devices() > options.limits.devices || not_covered(on_two, stages, times) ||
        memory_of(plan, model, setting.wire).total() > options.limits.memory_bytes) {
      return;
    }
    const double share = static_cast<double>(plan.batch()) / setting.critical_batch();
    visit(plan, training_steps(setting.step_rule, share) * step_time(plan, stages, times).total_s);
  };
  for (const std::int64_t tensor : options.space.tensor) {
    for (std::int64_t pipeline = 1; pipeline <= model.layers; ++pipeline) {
      if (model.heads % tensor != 0 || model.layers % pipeline != 0) {
        continue;
      }
      for (const std::int64_t b : options.space.micro_batch) {
        for (std::int64_t data = 1; data * b <= critical; ++data) {
          for (std::int64_t m = 1; data * b * m <= critical; ++m) {
            for (const int stage : options.space.zero_stage) {
              StepPlan plan{.data = data,
                            .pipeline = pipeline,
                            .tensor = tensor,
                            .micro_batch = b,
                            .micro_batches = m,
                            .zero_stage = stage};
              const auto with = [&](Order order, std::int64_t chunks) {
                plan.order = order;
                plan.chunks = chunks;
                consider(plan);
              };
              if (pipeline == 1) {
                with(Order::depth_first, 1);
                with(Order::layered, 1);
                continue;
              }
              with(Order::gpipe, 1);
              with(Order::one_forward_one_backward, 1);
              if (m >= pipeline) {
                with(Order::modular, 1);
              }
              for (std::int64_t chunks = 2; chunks <= model.layers / pipeline; ++chunks) {
                if (model.layers / pipeline % chunks == 0 && m % pipeline == 0) {
                  with(Order::interleaved, chunks);
                }
              }
            }
          }
        }
      }
    }
  }
}

void expect_same_as_enumeration(SearchOptions options) {
  const SearchResult result = search(options);
  const std::vector<std::int64_t> limits{1, 2, 3, 7, 16, 33, 64, 100, 250, 512, 1000, 4000};
  for (const TrackResult& track : result.tracks) {
    std::vector<double> best(limits.size(), std::numeric_limits<double>::infinity());
    each_plan(options, [&](const StepPlan& plan, double training_s) {
      if (std::find(track.track.orders.begin(), track.track.orders.end(), plan.order) == track.track.orders.end()) {
        return;
      }
      for (std::size_t i = 0; i < limits.size(); ++i) {
        if (plan.devices() <= limits[i]) {
          best[i] = std::min(best[i], training_s);
        }
      }
    });
    for (std::size_t i = 0; i < limits.size(); ++i) {
      const auto found = track.at_most(limits[i]);
      EXPECT_EQ(found.has_value(), std::isfinite(best[i])) << track.track.name << " " << limits[i];
      if (found) {
        EXPECT_NEAR(found->training_s / best[i], 1, 1e-11) << track.track.name << " " << limits[i];
      }
    }
  }
}

SearchOptions small_space(double network, StepRule rule, double memory_bytes) {
  SearchOptions options = options_for(12, network);
  options.setting.critical_batch_tokens = 60.5 * static_cast<double>(options.setting.model.sequence);
  options.setting.step_rule = rule;
  options.limits.memory_bytes = memory_bytes;
  options.limits.devices = 4000;
  options.space.micro_batch = {1, 2, 8};
  return options;
}

TEST(Search, EqualsEnumeration) {
  for (const double network : {2e8, 3e9, 1e12}) {
    for (const StepRule rule : {StepRule::same_tokens, StepRule::same_loss}) {
      for (const double memory : {1e6, 8e6, 1.3e7, 2e7, 1e9}) {
        expect_same_as_enumeration(small_space(network, rule, memory));
      }
    }
  }
}

TEST(Search, EqualsEnumerationWithAllZeroStages) {
  SearchOptions options = small_space(1e9, StepRule::same_tokens, 5e6);
  options.space.zero_stage = {0, 1, 2, 3};
  expect_same_as_enumeration(options);
}

TEST(Search, LeavingOutDominatedPlansChangesNothing) {
  for (const StepRule rule : {StepRule::same_tokens, StepRule::same_loss}) {
    SearchOptions options = options_for(32, ethernet);
    options.setting.step_rule = rule;
    options.tracks = strategy_tracks();
    const SearchResult pruned = search(options);
    options.prune = false;
    const SearchResult whole = search(options);
    EXPECT_GT(pruned.counts.dominated, 0);
    EXPECT_EQ(whole.counts.dominated, 0);
    EXPECT_EQ(pruned.counts.evaluated + pruned.counts.dominated, whole.counts.evaluated);
    EXPECT_EQ(pruned.counts.memory, whole.counts.memory);
    for (std::size_t i = 0; i < whole.tracks.size(); ++i) {
      ASSERT_EQ(pruned.tracks[i].frontier.size(), whole.tracks[i].frontier.size()) << whole.tracks[i].track.name;
      for (std::size_t j = 0; j < whole.tracks[i].frontier.size(); ++j) {
        EXPECT_NEAR(pruned.tracks[i].frontier[j].training_s / whole.tracks[i].frontier[j].training_s, 1, 1e-11);
      }
      ASSERT_EQ(pruned.tracks[i].best.size(), whole.tracks[i].best.size());
      for (std::size_t j = 0; j < whole.tracks[i].best.size(); ++j) {
        EXPECT_NEAR(pruned.tracks[i].best[j].training_s / whole.tracks[i].best[j].training_s, 1, 1e-11);
      }
    }
  }
}

TEST(Search, FrontierFallsAndBestAreOfDifferentKinds) {
  const SearchResult result = search(options_for(64, infiniband));
  for (const TrackResult& track : result.tracks) {
    ASSERT_FALSE(track.frontier.empty());
    for (std::size_t i = 1; i < track.frontier.size(); ++i) {
      EXPECT_GT(track.frontier[i].plan.devices(), track.frontier[i - 1].plan.devices());
      EXPECT_LT(track.frontier[i].training_s, track.frontier[i - 1].training_s);
    }
    ASSERT_EQ(track.best.size(), 5u);
    EXPECT_NEAR(track.best.front().training_s / track.frontier.back().training_s, 1, 1e-11);
    for (std::size_t i = 1; i < track.best.size(); ++i) {
      EXPECT_LE(track.best[i - 1].training_s, track.best[i].training_s);
      EXPECT_FALSE(track.best[i].plan == track.best[i - 1].plan);
    }
  }
}

TEST(Search, EveryPlanKeepsTheRules) {
  const SearchOptions options = options_for(160, ethernet);
  const SearchResult result = search(options);
  for (const TrackResult& track : result.tracks) {
    for (const Candidate& candidate : track.frontier) {
      const StepPlan& plan = candidate.plan;
      EXPECT_LE(static_cast<double>(plan.batch()), options.setting.critical_batch());
      EXPECT_LE(memory_of(plan, options.setting.model, {}).total(), 80e9);
      EXPECT_EQ(160 % plan.pipeline, 0);
      EXPECT_EQ(160 % plan.tensor, 0);
      EXPECT_TRUE(plan.order != Order::modular || plan.micro_batches >= plan.pipeline);
      EXPECT_TRUE(plan.order != Order::interleaved || plan.micro_batches % plan.pipeline == 0);
      EXPECT_DOUBLE_EQ(cost_of(plan, options.setting).training_s, candidate.training_s);
    }
  }
}

TEST(Search, RefusalsAreCounted) {
  SearchOptions options = options_for(160, infiniband);
  options.limits.memory_bytes = 1e9;
  SearchResult result = search(options);
  EXPECT_TRUE(result.track("improved").frontier.empty());
  EXPECT_EQ(result.counts.evaluated, 0);
  EXPECT_GT(result.counts.memory, 1'000'000);
  try {
    fastest_plan(result, options);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("for memory"), std::string::npos);
  }
  options = options_for(100, infiniband);  // 100 heads: tensor degrees 8 and 16 do not divide them
  options.limits.node_size = 2;
  result = search(options);
  EXPECT_EQ(result.counts.network, 5);  // tensor degree 4 on nodes of 2, once a micro-batch size
  // 2 tensor degrees x 5 micro-batches for the heads; 91 of 100 pipeline degrees x 2 tensor degrees x 5 micro-batches.
  EXPECT_EQ(result.counts.divisibility, 10 + 91 * 10);
}

TEST(Search, StopsWhenAsked) {
  SearchOptions options = options_for(160, infiniband);
  std::stop_source source;
  options.stop = source.get_token();
  int calls = 0;
  double last = 0;
  options.progress = [&](double done, const Counts&) {
    EXPECT_GE(done, last);
    EXPECT_LE(done, 1);
    last = done;
    if (++calls == 3) {
      source.request_stop();
    }
  };
  const SearchResult result = search(options);
  EXPECT_FALSE(result.complete);
  EXPECT_EQ(calls, 3);
  options.stop = {};
  options.progress = [&](double done, const Counts&) { last = done; };
  EXPECT_TRUE(search(options).complete);
  EXPECT_DOUBLE_EQ(last, 1);
}

TEST(Search, OffloadWidensWhatFitsAndNeedsBandwidth) {
  SearchOptions options = options_for(160, infiniband);
  options.limits.memory_bytes = 5.5e9;  // two layers' buffers take 3.9 GB at tensor degree 16
  EXPECT_FALSE(search(options).track("improved").at_most(100'000).has_value());
  options.setting.offload = {.state = Storage::host,
                             .checkpoints = Storage::host,
                             .rates = {.host_bytes_per_s = 31.5e9, .host_capacity_bytes = 256e9}};
  const SearchResult offloaded = search(options);
  const auto plan = offloaded.track("improved").at_most(100'000);
  ASSERT_TRUE(plan.has_value());
  const PlanCost cost = cost_of(plan->plan, options.setting);
  EXPECT_LE(cost.memory.total(), 5.5e9);
  EXPECT_GT(cost.offload.host_bytes_per_s, 0);
  EXPECT_LE(cost.offload.host_bytes_per_s, 31.5e9);
  options.setting.offload.rates.host_bytes_per_s = 1;
  const SearchResult starved = search(options);
  EXPECT_FALSE(starved.track("improved").at_most(100'000).has_value());
  EXPECT_GT(starved.counts.network, 0);
}

TEST(Offload, NeedByHand) {
  // X_2: 2 layers, hidden 4, sequence 32. Layered, m = 3, one rank: 384 parameters; a step of 10 s.
  Setting setting;
  setting.model = family_model(2);
  setting.offload = {.state = Storage::host, .checkpoints = Storage::disk, .rates = {}};
  const StepPlan plan{.order = Order::layered, .micro_batches = 3};
  LayerTimes times;
  times.forward_s = 2;
  const OffloadNeed on_host = offload_need(plan, setting, times, 10);
  EXPECT_DOUBLE_EQ(on_host.state_bytes, 16 * 384);
  EXPECT_DOUBLE_EQ(on_host.host_bytes_per_s, 4 * 384 / 10.0);
  EXPECT_DOUBLE_EQ(on_host.checkpoint_bytes, 6 * 256);
  EXPECT_DOUBLE_EQ(on_host.disk_bytes_per_s, 256 / 2.0);
  setting.offload.state = Storage::disk;
  EXPECT_DOUBLE_EQ(offload_need(plan, setting, times, 10).disk_bytes_per_s, 16 * 384 / 10.0 + 128);
}

TEST(Search, LargestSizes) {
  SearchOptions options = options_for(320, infiniband);
  options.limits.devices = 1'000'000;
  options.limits.memory_bytes = 640e9;
  options.space.micro_batch = {1, 16};
  options.keep_best = 1;
  const SearchResult result = search(options);
  const auto plan = result.track("improved").at_most(1'000'000);
  ASSERT_TRUE(plan.has_value());
  EXPECT_TRUE(std::isfinite(plan->training_s));
  EXPECT_GT(plan->training_s, 0);
  EXPECT_GE(result.counts.memory, 0);
  EXPECT_GE(result.counts.batch, 0);
}

void expect_refusal(const SearchOptions& options, const std::string& part) {
  try {
    search(options);
    FAIL() << "accepted; expected a refusal with '" << part << "'";
  } catch (const UsageError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(Search, BadInputGetsOneLine) {
  const SearchOptions good = options_for(16, infiniband);
  SearchOptions bad = good;
  bad.setting.rates.network_bytes_per_s = 0;
  expect_refusal(bad, "bandwidth between nodes is 0");
  bad = good;
  bad.limits.memory_bytes = -1;
  expect_refusal(bad, "memory_bytes is -1");
  bad = good;
  bad.setting.model.layers = INT64_MAX;
  expect_refusal(bad, "model.layers");
  bad = good;
  bad.limits.devices = 0;
  expect_refusal(bad, "max_gpus is 0");
  bad = good;
  bad.setting.critical_batch_tokens = 10;  // less than one sequence
  expect_refusal(bad, "no plan can use it");
  bad = good;
  bad.setting.critical_batch_tokens = std::nan("");
  expect_refusal(bad, "critical batch");
  bad = good;
  bad.space.tensor.clear();
  expect_refusal(bad, "search.tensor is empty");
  bad = good;
  bad.space.micro_batch = {0};
  expect_refusal(bad, "micro_batch holds 0");
  bad = good;
  bad.space.zero_stage = {4};
  expect_refusal(bad, "zero_stage holds 4");
  bad = good;
  bad.setting.offload.state = Storage::disk;
  expect_refusal(bad, "no disk link");
}

TEST(Rates, NominalAndReached) {
  const Cluster cluster = read_cluster(clusters / "a100-80gb-infiniband.json");
  const Rates nominal = rates_of(cluster, "fp16", 25600, RateKind::nominal);
  EXPECT_DOUBLE_EQ(nominal.flops_per_s, 312e12);
  EXPECT_DOUBLE_EQ(nominal.tensor_bytes_per_s, 300e9);
  EXPECT_DOUBLE_EQ(nominal.network_bytes_per_s, 25e9);
  const Rates reached = rates_of(cluster, "fp16", 12288, RateKind::reached);
  EXPECT_LT(reached.flops_per_s, 312e12);
  EXPECT_DOUBLE_EQ(reached.flops_per_s / reached.share_of_peak, 312e12);
  EXPECT_THROW(rates_of(cluster, "fp8", 4096, RateKind::nominal), UsageError);
}

TEST(Utilisation, NeverCountsRecomputedWorkAsTheModels) {
  const SearchOptions options = options_for(160, infiniband);
  const PlanCost cost =
      cost_of({.order = Order::layered, .data = 4, .tensor = 16, .micro_batches = 8}, options.setting);
  EXPECT_NEAR(cost.hardware_utilisation / cost.model_utilisation, 4.0 / 3, 1e-12);
  EXPECT_LT(cost.hardware_utilisation, 1);
}

TEST(PlanReport, TableAndJson) {
  const SearchOptions options = options_for(64, infiniband);
  const SearchResult result = search(options);
  const std::string table = plan_table(result, options);
  EXPECT_NE(table.find("modular_pipeline"), std::string::npos);
  EXPECT_NE(table.find("for memory"), std::string::npos);
  const auto document = plan_json(result, options);
  EXPECT_EQ(document.at("tracks").size(), 3u);
  EXPECT_EQ(document.at("tracks").at(2).at("name"), "improved");
  EXPECT_GT(document.at("tracks").at(2).at("best").at(0).at("training_days").get<double>(), 0);
  EXPECT_EQ(document.at("counts").at("evaluated"), result.counts.evaluated);
}

TEST(Emit, MegatronFlags) {
  const ModelShape model = family_model(160);
  const StepPlan plan{
      .order = Order::interleaved, .data = 120, .pipeline = 20, .tensor = 16, .micro_batches = 20, .chunks = 4};
  const std::string text = emit(TargetSystem::megatron, plan, model).text;
  for (const char* flag :
       {"--num-layers 160\n", "--hidden-size 25600\n", "--micro-batch-size 1\n", "--global-batch-size 2400\n",
        "--tensor-model-parallel-size 16\n", "--pipeline-model-parallel-size 20\n",
        "--num-layers-per-virtual-pipeline-stage 2\n", "--sequence-parallel\n", "--recompute-granularity full\n"}) {
    EXPECT_NE(text.find(flag), std::string::npos) << flag << " in\n" << text;
  }
  EXPECT_EQ(text.find("--use-distributed-optimizer"), std::string::npos);
}

TEST(Emit, SaysWhatASystemLacks) {
  const ModelShape model = family_model(160);
  const StepPlan plan{
      .order = Order::modular, .data = 60, .pipeline = 20, .tensor = 16, .micro_batches = 40, .zero_stage = 3};
  const Emitted emitted = emit(TargetSystem::megatron, plan, model);
  EXPECT_NE(emitted.text.find("--num-layers-per-virtual-pipeline-stage 1\n"), std::string::npos);
  EXPECT_NE(to_text(emitted).find("# Megatron-LM has no modular pipeline"), std::string::npos);
  StepPlan odd = plan;
  odd.micro_batches = 41;
  EXPECT_EQ(emit(TargetSystem::megatron, odd, model).text.find("virtual"), std::string::npos);
}

TEST(Emit, DeepspeedConfiguration) {
  const ModelShape model = family_model(64);
  const StepPlan plan{.order = Order::depth_first, .data = 8, .micro_batch = 2, .micro_batches = 3, .zero_stage = 3};
  const auto config = nlohmann::json::parse(emit(TargetSystem::deepspeed, plan, model).text);
  EXPECT_EQ(config.at("train_batch_size"), 48);
  EXPECT_EQ(config.at("train_micro_batch_size_per_gpu"), 2);
  EXPECT_EQ(config.at("gradient_accumulation_steps"), 3);
  EXPECT_EQ(config.at("zero_optimization").at("stage"), 3);
  EXPECT_EQ(config.at("zero_optimization").at("stage3_max_live_parameters"), 2 * 12 * 4096 * 4096);
  StepPlan piped = plan;
  piped.order = Order::gpipe;
  piped.pipeline = 4;
  const Emitted emitted = emit(TargetSystem::deepspeed, piped, model);
  EXPECT_EQ(nlohmann::json::parse(emitted.text).at("zero_optimization").at("stage"), 1);
  EXPECT_GE(emitted.notes.size(), 3u);
  EXPECT_THROW(target_system_named("horovod"), UsageError);
}

}  // namespace
}  // namespace lamina::analysis
