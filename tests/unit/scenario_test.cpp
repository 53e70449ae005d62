#include "impl/harness/scenario.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "impl/base/nearest.h"
#include "impl/harness/keys.h"
#include "impl/harness/links.h"
#include "tests/unit/harness_fakes.h"

namespace lamina {
namespace {

using fakes::refusal;
using fakes::small_scenario;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// One line, naming the file and what the test asks for.
auto one_line_with(const std::string& words) {
  return AllOf(HasSubstr("scenario.json"), HasSubstr(words), Not(HasSubstr("\n")));
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), with);
}

// ---- bad input ---------------------------------------------------------------------------------------------------

struct BadText {
  const char* name;
  const char* what;  // in the small scenario, replaced
  const char* with;
  const char* message;  // a part of the refusal
};

class BadInput : public testing::TestWithParam<BadText> {};

TEST_P(BadInput, IsRefusedInOneLineNamingFileAndKey) {
  const BadText& bad = GetParam();
  const std::string text = replaced(small_scenario().dump(), bad.what, bad.with);
  EXPECT_THAT(refusal(text), one_line_with(bad.message));
}

INSTANTIATE_TEST_SUITE_P(
    Values, BadInput,
    testing::Values(
        BadText{"text_for_number", R"("layers":3)", R"("layers":"4")", R"(model.layers is "4")"},
        BadText{"fraction", R"("layers":3)", R"("layers":4.5)", "model.layers is 4.5"},
        BadText{"whole_written_as_fraction", R"("layers":3)", R"("layers":4.0)", "model.layers is 4.0"},
        BadText{"negative", R"("layers":3)", R"("layers":-1)", "model.layers is -1"},
        BadText{"zero", R"("micro":1)", R"("micro":0)", "batch.micro is 0"},
        BadText{"huge", R"("layers":3)", R"("layers":1e30)", "model.layers is 1e+30"},
        BadText{"beyond_64_bits", R"("layers":3)", R"("layers":18446744073709551617)", "model.layers is 1.8"},
        BadText{"huge_number", R"("learning_rate":0.1)", R"("learning_rate":1e30)", "optimizer.learning_rate is 1e+30"},
        BadText{"overflow", R"("learning_rate":0.1)", R"("learning_rate":1e999)", "optimizer.learning_rate"},
        BadText{"null", R"("layers":3)", R"("layers":null)", "model.layers is null"},
        BadText{"nan", R"("learning_rate":0.1)", R"("learning_rate":NaN)", "at optimizer.learning_rate"},
        BadText{"infinity", R"("learning_rate":0.1)", R"("learning_rate":Infinity)", "at optimizer.learning_rate"},
        BadText{"list_for_object", R"("data":2})", R"("data":[2]})", "runs[0].parallel.data is [2]"},
        BadText{"number_for_object", R"("batch":{"global":8,"micro":1})", R"("batch":8)", "batch is 8"},
        BadText{"boolean_for_number", R"("measured":3)", R"("measured":true)", "steps.measured is true"},
        BadText{"trailing_comma", R"("vocabulary":16})", R"("vocabulary":16,})", "line 1"},
        BadText{"trailing_comma_key", R"("vocabulary":16})", R"("vocabulary":16,})", "at model.vocabulary"},
        BadText{"comment", R"("name":"small")", R"(/* */ "name":"small")", "line 1"},
        BadText{"duplicate", R"("heads":2)", R"("heads":2,"heads":2)", "model.heads is given twice"},
        BadText{"duplicate_in_list", R"("name":"layered")", R"("name":"layered","name":"x")",
                "runs[1].name is given twice"},
        BadText{"unknown_at_top", R"("batch")", R"("bacth")", "bacth is not a known key; did you mean batch?"},
        BadText{"unknown_deep", R"("measured")", R"("mesured")",
                "steps.mesured is not a known key; did you mean steps.measured?"},
        BadText{"unknown_in_list", R"("method")", R"("methd")", "runs[0].methd is not a known key; did you mean runs"},
        BadText{"misplaced", R"("layers":3)", R"("layers":3,"micro":1)", "model.micro is not a known key"},
        BadText{"missing", R"("heads":2,)", "", "model.heads is missing"},
        BadText{"missing_object", R"("steps":{"warmup":1,"measured":3},)", "", "steps is missing"},
        BadText{"wrong_version", R"("schema_version":1)", R"("schema_version":2)", "schema_version is 2"},
        BadText{"unknown_executor", R"("executor":"train")", R"("executor":"replay")", R"(executor is "replay")"},
        BadText{"cluster_without_simulation", R"("runs")", R"("cluster":"c.json","runs")",
                R"(cluster is only for executor simulate or search; here it is "train")"},
        BadText{"simulation_without_cluster", R"("executor":"train")", R"("executor":"simulate")",
                "cluster is missing"},
        BadText{"unknown_optimizer", R"("name":"sgd")", R"("name":"adam")", R"(optimizer.name is "adam")"},
        BadText{"key_of_another_optimizer", R"("learning_rate":0.1)", R"("learning_rate":0.1,"beta1":0.9)",
                "optimizer.beta1 is only for name adamw"},
        BadText{"two_data_sources", R"("synthetic":{"seed":1})", R"("synthetic":{"seed":1},"text_file":"t")",
                "data holds text_file and synthetic; it must hold exactly one"},
        BadText{"no_data_source", R"("synthetic":{"seed":1})", "", "data holds none"},
        BadText{"no_runs", R"("runs":[)", R"("runs":[],"purpose":[)", "runs is empty"},
        BadText{"run_twice", R"("name":"layered")", R"("name":"depth-first")", "runs[1].name is depth-first"},
        BadText{"run_name_with_slash", R"("name":"layered")", R"("name":"../x")", "runs[1].name is"},
        BadText{"heads_do_not_divide", R"("heads":2)", R"("heads":3)", "model.heads is 3"},
        BadText{"zero_measured", R"("measured":3)", R"("measured":0)", "steps.measured is 0"},
        BadText{"negative_warmup", R"("warmup":1)", R"("warmup":-1)", "steps.warmup is -1"},
        BadText{"control_character", R"("name":"small")", "\"name\":\"sm\nall\"", "at name"},
        BadText{"escaped_control_character", R"("name":"small")", R"("name":"sm\u0000all")", "name is"},
        BadText{"broken_utf8", R"("name":"small")", "\"name\":\"sm\xff\"", "at name"},
        BadText{"missing_file", R"("synthetic":{"seed":1})", R"("text_file":"none.txt")", "none.txt"},
        BadText{"wire_differs", R"("runs")", R"("precision":{"compute":"fp64","wire":"fp32"},"runs")",
                "they must be the same"},
        BadText{"wide_wire_of_narrow_weights", R"("runs")", R"("precision":{"compute":"bf16","wire":"fp32"},"runs")",
                "precision.wire is fp32 and precision.compute bf16; they must be the same"},
        BadText{"reduce_in_the_other_16_bits", R"("runs")", R"("precision":{"compute":"bf16","reduce":"fp16"},"runs")",
                "precision.reduce is fp16 and precision.compute bf16; gradients travel in fp32, or in 16 bits"},
        BadText{"reduce_narrower_than_weights", R"("runs")", R"("precision":{"compute":"fp32","reduce":"bf16"},"runs")",
                "gradients travel in fp32"},
        BadText{"reduce_wider_than_gradients", R"("runs")", R"("precision":{"compute":"fp16","reduce":"fp64"},"runs")",
                "gradients travel in fp32"},
        BadText{"scale_of_another_type", R"("runs")", R"("precision":{"compute":"bf16","loss_scale":8},"runs")",
                "precision.loss_scale is only for compute fp16"},
        BadText{"scale_of_nothing", R"("runs")", R"("precision":{"compute":"fp16","loss_scale":0},"runs")",
                "precision.loss_scale is 0; it must be a number above 0"},
        BadText{"unknown_type", R"("runs")", R"("precision":{"compute":"fp8"},"runs")",
                R"(precision.compute is "fp8"; it must be fp64, fp32, bf16 or fp16)"},
        BadText{"link_of_two_kinds", R"("runs")",
                R"("transport":{"link":{"preset":"ethernet-1g","bandwidth_bits_per_s":1e9}},"runs")",
                "transport.link holds bandwidth_bits_per_s and preset"},
        BadText{"latency_alone", R"("runs")", R"("transport":{"link":{"latency_s":1}},"runs")",
                "transport.link holds none"},
        BadText{"zero_bandwidth", R"("runs")", R"("transport":{"link":{"bandwidth_bits_per_s":0}},"runs")",
                "transport.link.bandwidth_bits_per_s is 0; it must be a number above 0"},
        BadText{"unknown_transport", R"("runs")", R"("transport":{"kind":"smoke"},"runs")",
                R"(transport.kind is "smoke")"},
        BadText{"emulated_link_between_processes", R"("runs")",
                R"("transport":{"kind":"mpi","link":{"preset":"ethernet-1g"}},"runs")",
                "transport.link is for transport.kind threads"},
        BadText{"library_between_threads", R"("runs")", R"("transport":{"collectives":"library"},"runs")",
                "transport.collectives library is for transport.kind mpi: between threads there is no library"},
        BadText{"library_of_16_bits", R"("runs")",
                R"("precision":{"compute":"bf16","reduce":"bf16"},)"
                R"("transport":{"kind":"mpi","collectives":"library"},"runs")",
                "transport.collectives is library and precision.reduce bf16"},
        BadText{"swept_transport", R"("runs")", R"("sweep":{"transport.kind":["threads","mpi"]},"runs")",
                "run the scenario once for each transport"},
        BadText{"dump_after_the_end", R"("runs")", R"("dump":{"step":4,"weights":"{run}.s"},"runs")", "dump.step is 4"},
        BadText{"dump_of_nothing", R"("runs")", R"("dump":{"step":1},"runs")", "at least one of gradients and weights"},
        BadText{"dump_of_two_runs", R"("runs")", R"("dump":{"step":1,"weights":"w.s"},"runs")", "put {run} into"},
        BadText{"expect_unknown_run", R"("runs")",
                R"("expect":[{"metric":"step_time_s","of":"layred","over":"layered","at_least":1}],"runs")",
                "expect[0].of is layred; no run is named so; did you mean layered?"},
        BadText{"expect_without_bound", R"("runs")",
                R"("expect":[{"metric":"step_time_s","of":"layered","over":"layered"}],"runs")", "at_least, at_most"},
        BadText{"expect_ratio_of_losses", R"("runs")",
                R"("expect":[{"metric":"loss","of":"layered","over":"layered","at_least":1}],"runs")",
                "expect[0].over is only for metric"},
        BadText{"disturbance_of_no_rank", R"("runs")", R"("disturbances":[{"kind":"fail","rank":2}],"runs")",
                "disturbances[0].rank is 2"},
        BadText{"sleep_without_length", R"("runs")", R"("disturbances":[{"kind":"sleep","rank":1}],"runs")",
                "disturbances[0].sleep_s is missing"},
        BadText{"sweep_unknown", R"("runs")", R"("sweep":{"model.layer":[1]},"runs")", "did you mean model.layers?"},
        BadText{"sweep_of_object", R"("runs")", R"("sweep":{"model":[1]},"runs")", "sweep.model cannot be swept"},
        BadText{"sweep_without_values", R"("runs")", R"("sweep":{"seed":[]},"runs")", "sweep.seed is []"},
        BadText{"sweep_same_value", R"("runs")", R"("sweep":{"seed":[1,1]},"runs")", "sweep.seed holds a value twice"},
        BadText{"sweep_null", R"("runs")", R"("sweep":{"seed":[1,null]},"runs")", "sweep.seed holds null"},
        BadText{"sweep_bad_value", R"("runs")", R"("sweep":{"seed":[1,-1]},"runs")", "seed is -1"}),
    [](const auto& chosen) { return chosen.param.name; });

TEST(BadFile, EmptyBlankMarkedMissingOrNoObject) {
  EXPECT_THAT(refusal(""), one_line_with("is empty"));
  EXPECT_THAT(refusal(" \n\t"), one_line_with("is empty"));
  EXPECT_THAT(refusal("\xef\xbb\xbf" + small_scenario().dump()), one_line_with("byte-order mark"));
  EXPECT_THAT(refusal("[]"), one_line_with("the document is []"));
  EXPECT_THAT(refusal("null"), one_line_with("the document is null"));
  EXPECT_THAT(refusal(small_scenario().dump() + "{}"), one_line_with("line 1"));
  EXPECT_THAT(refusal(small_scenario().dump() + std::string(1, '\0')), one_line_with("NUL"));
  EXPECT_THAT(refusal(std::string(100000, '[')), one_line_with("nested deeper"));
  EXPECT_THROW(read_scenario("no/such/scenario.json", {}), UsageError);
  EXPECT_THROW(read_scenario(".", {}), UsageError);
}

TEST(BadFile, EveryRequiredKeyIsAskedFor) {
  const Json document = small_scenario();
  for (const Key& key : scenario_keys()) {
    if (!key.required || key.only_when || key.path.find('[') != std::string_view::npos || key.path.find("dump") == 0) {
      continue;
    }
    Json without = document;
    const std::size_t dot = key.path.find('.');
    if (dot == std::string_view::npos) {
      without.erase(std::string(key.path));
    } else {
      without[std::string(key.path.substr(0, dot))].erase(std::string(key.path.substr(dot + 1)));
    }
    EXPECT_THAT(refusal(without.dump()), one_line_with(std::string(key.path) + " is missing"));
  }
}

// Every number is refused when it is written as a text, as null, and as 1e30.
TEST(BadFile, EveryNumberHasATypeAndARange) {
  Json document = small_scenario();
  document["optimizer"] = {{"name", "adamw"}, {"learning_rate", 0.1}};
  document["transport"] = {{"link", {{"bandwidth_bits_per_s", 1e9}, {"latency_s", 0}}}};
  document["disturbances"] = Json::parse(R"([{"kind": "sleep", "rank": 0, "step": 0, "sleep_s": 0.1}])");
  document["dump"] = {{"step", 0}, {"weights", "{run}"}};
  document["precision"] = {{"compute", "fp16"}};
  int tried = 0;
  for (const Key& key : scenario_keys()) {
    const bool elsewhere = key.path.starts_with("expect") || key.path.starts_with("search") ||
                           key.path.ends_with("all_reduce_share_of_compute");
    if ((key.type != KeyType::integer && key.type != KeyType::number) || elsewhere) {
      continue;
    }
    ++tried;
    for (const char* value : {"\"4\"", "1e30", "-1", "[]"}) {
      const std::string message = refusal(document.dump(), {std::string(key.path) + "=" + value});
      EXPECT_THAT(message, one_line_with(" is ")) << key.path << " = " << value;
    }
  }
  EXPECT_EQ(tried, 34);
}

// ---- good input --------------------------------------------------------------------------------------------------

TEST(GoodScenario, IsReadWithDefaults) {
  const Scenario scenario = fakes::read(small_scenario());
  ASSERT_EQ(scenario.settings.size(), 1);
  const Setting& setting = scenario.settings[0];
  EXPECT_EQ(scenario.name, "small");
  EXPECT_EQ(setting.model, (ModelShape{3, 4, 2, 8, 16}));
  EXPECT_EQ(setting.batch.global, 8);
  EXPECT_EQ(setting.precision.compute, RealType::fp32);
  EXPECT_EQ(setting.precision.reduce, RealType::fp32);
  EXPECT_EQ(setting.seed, 1);
  EXPECT_EQ(setting.transport, "threads");
  EXPECT_EQ(setting.collectives, CollectiveBackend::ring);
  EXPECT_EQ(setting.link.link.bandwidth_bits_per_s, 0);
  EXPECT_FALSE(setting.link.all_reduce_share_of_compute);
  EXPECT_EQ(setting.optimizer.kind, OptimizerConfig::Kind::sgd);
  EXPECT_EQ(setting.optimizer.clip_norm, 0);
  ASSERT_EQ(setting.runs.size(), 2);
  EXPECT_EQ(setting.runs[1].plan.method, "layered_accumulation");
  EXPECT_EQ(setting.runs[1].plan.parallel, (Parallel{2, 1, 1}));
  EXPECT_FALSE(setting.runs[1].plan.groups);
  EXPECT_FALSE(setting.runs[1].plan.keep_full_gradient);
  EXPECT_EQ(scenario.document["runs"][0]["parallel"]["tensor"], 1);
}

TEST(GoodScenario, SixteenBitsReduceInFp32UnlessAskedOtherwise) {
  const auto precision = [](const std::string& type, const std::vector<std::string>& set) {
    std::vector<std::string> all{"precision.compute=" + type};
    all.insert(all.end(), set.begin(), set.end());
    return fakes::read(small_scenario(), all).settings.at(0).precision;
  };
  EXPECT_EQ(precision("bf16", {}).compute, RealType::bf16);
  EXPECT_EQ(precision("bf16", {}).reduce, RealType::fp32);
  EXPECT_EQ(precision("bf16", {"precision.wire=bf16", "precision.reduce=bf16"}).reduce, RealType::bf16);
  EXPECT_EQ(precision("fp16", {}).loss_scale, 65536);
  EXPECT_EQ(precision("fp16", {}).growth_interval, 2000);
  const Precision set =
      precision("fp16", {"precision.reduce=fp16", "precision.loss_scale=0.5", "precision.growth_interval=3"});
  EXPECT_EQ(set.reduce, RealType::fp16);
  EXPECT_EQ(set.loss_scale, 0.5);
  EXPECT_EQ(set.growth_interval, 3);
}

TEST(GoodScenario, EveryKeyArrives) {
  const std::string folder = fakes::folder();
  fakes::write_file(folder + "/t.bin", "ab");
  fakes::write_file(folder + "/w.safetensors", "");
  fakes::write_file(folder + "/s.json", R"({
    "schema_version": 1, "name": "full", "purpose": "p", "executor": "train",
    "model": {"layers": 3, "hidden": 4, "heads": 2, "sequence": 8, "vocabulary": 16},
    "data": {"token_file": "t.bin"},
    "batch": {"global": 8, "micro": 2},
    "optimizer": {"name": "adamw", "learning_rate": 0.5, "beta1": 0.25, "beta2": 0.75, "epsilon": 1e-3,
                  "weight_decay": 0.125, "clip_norm": 2},
    "precision": {"compute": "fp64", "wire": "fp64"},
    "steps": {"warmup": 2, "measured": 4}, "seed": 9,
    "transport": {"kind": "threads", "link": {"all_reduce_share_of_compute": 0.65, "latency_s": 1e-3}},
    "initial_weights": "w.safetensors",
    "dump": {"step": 5, "gradients": "{run}.g", "weights": "/tmp/{run}.w"},
    "disturbances": [{"kind": "sleep", "rank": 1, "step": 2, "sleep_s": 0.1}, {"kind": "fail", "rank": 0}],
    "runs": [{"name": "r", "method": "m", "parallel": {"data": 2, "pipeline": 3, "tensor": 4}, "zero_stage": 2,
              "recompute": "selective", "groups": 5, "chunks": 6, "prefetch_layers": 7, "resident_layers": 8,
              "keep_full_gradient": true}],
    "expect": [{"metric": "tokens_per_s", "of": "r", "over": "r", "at_least": 0.5, "at_most": 2},
               {"metric": "loss", "of": "r", "equal_to": "r", "within": 1e-5}]
  })");
  const Scenario scenario = read_scenario(folder + "/s.json", {});
  const Setting& setting = scenario.settings.at(0);
  EXPECT_EQ(setting.data.kind, DataConfig::Kind::token_file);
  EXPECT_EQ(setting.data.path, folder + "/t.bin");
  EXPECT_EQ(setting.initial_weights, folder + "/w.safetensors");
  EXPECT_EQ(setting.batch.micro, 2);
  EXPECT_EQ(setting.optimizer.beta1, 0.25);
  EXPECT_EQ(setting.optimizer.beta2, 0.75);
  EXPECT_EQ(setting.optimizer.epsilon, 1e-3);
  EXPECT_EQ(setting.optimizer.weight_decay, 0.125);
  EXPECT_EQ(setting.optimizer.clip_norm, 2);
  EXPECT_EQ(setting.precision.compute, RealType::fp64);
  EXPECT_EQ(setting.precision.reduce, RealType::fp64);
  EXPECT_EQ(setting.warmup_steps, 2);
  EXPECT_EQ(setting.measured_steps, 4);
  EXPECT_EQ(setting.seed, 9);
  EXPECT_EQ(setting.link.all_reduce_share_of_compute, 0.65);
  EXPECT_EQ(setting.link.link.latency_s, 1e-3);
  EXPECT_EQ(dump_of(setting, "r")->gradients, folder + "/r.g");
  EXPECT_EQ(dump_of(setting, "r")->weights, "/tmp/r.w");
  EXPECT_EQ(setting.dump->step, 5);
  EXPECT_EQ(setting.disturbances[0].kind, Disturbance::Kind::sleep);
  EXPECT_EQ(setting.disturbances[0].sleep_s, 0.1);
  EXPECT_EQ(setting.disturbances[0].step, 2);
  EXPECT_EQ(setting.disturbances[1].kind, Disturbance::Kind::fail);
  EXPECT_EQ(setting.disturbances[1].step, -1);
  PlanRequest plan;
  plan.method = "m";
  plan.parallel = {2, 3, 4};
  plan.zero_stage = 2;
  plan.recompute = Recompute::selective;
  plan.groups = 5;
  plan.chunks = 6;
  plan.prefetch_layers = 7;
  plan.resident_layers = 8;
  plan.keep_full_gradient = true;
  EXPECT_EQ(setting.runs[0].plan, plan);
  EXPECT_EQ(scenario.expectations[0].at_least, 0.5);
  EXPECT_EQ(scenario.expectations[0].at_most, 2);
  EXPECT_EQ(scenario.expectations[1].within, 1e-5);
}

TEST(Overrides, SetByPathIndexNameOrAll) {
  const Scenario scenario =
      fakes::read(small_scenario(), {"seed=7", "runs[0].zero_stage=1", "runs[layered].groups=2",
                                     "runs[].parallel.data=4", "transport.link.preset=ethernet-10g", "name=renamed"});
  const Setting& setting = scenario.settings[0];
  EXPECT_EQ(scenario.name, "renamed");
  EXPECT_EQ(setting.seed, 7);
  EXPECT_EQ(setting.runs[0].plan.zero_stage, 1);
  EXPECT_EQ(setting.runs[1].plan.zero_stage, 0);
  EXPECT_EQ(setting.runs[1].plan.groups, 2);
  EXPECT_EQ(setting.runs[0].plan.parallel.data, 4);
  EXPECT_EQ(setting.runs[1].plan.parallel.data, 4);
  EXPECT_EQ(setting.link.link.bandwidth_bits_per_s, 1e10);
}

TEST(Overrides, AnAlternativeReplacesTheOthersAndNullTakesOut) {
  Json document = small_scenario();
  document["transport"] = {{"link", {{"all_reduce_share_of_compute", 0.5}}}};
  const Scenario scenario = fakes::read(document, {"transport.link.bandwidth_bits_per_s=5e8"});
  EXPECT_EQ(scenario.settings[0].link.link.bandwidth_bits_per_s, 5e8);
  EXPECT_FALSE(scenario.settings[0].link.all_reduce_share_of_compute);
  EXPECT_EQ(fakes::read(document, {"transport.link=null"}).settings[0].link.link.bandwidth_bits_per_s, 0);
  EXPECT_THAT(refusal(document.dump(), {"batch=null"}), one_line_with("batch is missing"));
}

TEST(Overrides, AreCheckedLikeTheFile) {
  const std::string text = small_scenario().dump();
  EXPECT_THAT(refusal(text, {"model.layers=4.5"}), one_line_with("model.layers is 4.5"));
  EXPECT_THAT(refusal(text, {"model.layer=4"}), HasSubstr("did you mean model.layers?"));
  EXPECT_THAT(refusal(text, {"runs[5].groups=4"}), HasSubstr("there is no runs[5]"));
  EXPECT_THAT(refusal(text, {"runs[0]name=x"}), HasSubstr("is not a known key"));
  EXPECT_THAT(refusal(text, {"seed"}), HasSubstr("path=value"));
  EXPECT_THAT(refusal(text, {"seed.x=1"}), HasSubstr("not a known key"));
}

TEST(Sweep, MultipliesRuns) {
  Json document = small_scenario();
  document["sweep"] = Json::parse(R"({"transport.link.bandwidth_bits_per_s": [1e8, 1e9], "seed": [1, 2, 3]})");
  const Scenario scenario = fakes::read(document);
  ASSERT_EQ(scenario.settings.size(), 6);
  EXPECT_EQ(scenario.settings[0].link.link.bandwidth_bits_per_s, 1e8);
  EXPECT_EQ(scenario.settings[5].link.link.bandwidth_bits_per_s, 1e9);
  EXPECT_EQ(scenario.settings[1].seed, 2);
  EXPECT_EQ(full_name(scenario.settings[1].runs[1], scenario.settings[1]),
            "layered, bandwidth_bits_per_s=100000000, seed=2");
  EXPECT_EQ(scenario.document["sweep"]["seed"].size(), 3);
}

TEST(CanonicalText, DoesNotDependOnLayoutOrderOrWrittenOutDefaults) {
  const std::string folder = fakes::folder();
  Json document = small_scenario();
  const std::string first = canonical_text(read_scenario(fakes::write_file(folder + "/a.json", document.dump()), {}));
  Json reordered = Json::object();
  for (auto member = document.rbegin(); member != document.rend(); ++member) {
    reordered[member.key()] = member.value();
  }
  reordered["seed"] = 1;
  EXPECT_EQ(canonical_text(read_scenario(fakes::write_file(folder + "/b.json", reordered.dump(4)), {})), first);
  reordered["seed"] = 2;
  EXPECT_NE(canonical_text(read_scenario(fakes::write_file(folder + "/c.json", reordered.dump(4)), {})), first);
}

TEST(Links, PresetsAreFoundByName) {
  EXPECT_EQ(link_preset("infiniband-hdr").bandwidth_bits_per_s, 2e11);
  EXPECT_EQ(link_preset("nvlink-a100").bandwidth_bits_per_s, 300e9 * 8);
  for (const LinkPreset& preset : link_presets()) {
    EXPECT_GT(preset.bandwidth_bits_per_s, 0);
    EXPECT_GT(preset.latency_s, 0);
    EXPECT_FALSE(preset.source.empty());
  }
  EXPECT_THROW(link_preset("ethernet-2g"), UsageError);
}

TEST(NearestName, PrefersANameThatBeginsSo) {
  const std::vector<std::string_view> known{"gpipe", "layered_accumulation"};
  EXPECT_EQ(nearest_name("layered", known), "layered_accumulation");
}

TEST(NearestName, CountsSwapsAsOneEdit) {
  const std::vector<std::string_view> known{"batch", "match"};
  EXPECT_EQ(nearest_name("bacth", known), "batch");
  EXPECT_EQ(nearest_name("mtach", known), "match");
  EXPECT_EQ(nearest_name("x", {}), "");
}

// ---- what is printed for others ----------------------------------------------------------------------------------

TEST(Keys, ShippedSchemaIsWhatTheProgramPrints) {
  EXPECT_EQ(fakes::read_file(LAMINA_TEST_DATA_DIR "/../scenarios/scenario.schema.json"),
            scenario_schema().dump(2) + "\n")
      << "lamina check --schema > scenarios/scenario.schema.json";
}

TEST(Keys, ShippedTableIsWhatTheProgramPrints) {
  EXPECT_THAT(fakes::read_file(LAMINA_TEST_DATA_DIR "/../scenarios/README.md"), HasSubstr(keys_as_markdown()))
      << "put the output of lamina check --keys into scenarios/README.md";
}

TEST(Keys, EveryOneIsDocumentedAndFound) {
  for (const Key& key : scenario_keys()) {
    EXPECT_FALSE(key.documentation.empty()) << key.path;
    EXPECT_EQ(find_key(key.path), &key) << key.path;
    if (!key.default_json.empty()) {
      EXPECT_TRUE(Json::accept(key.default_json)) << key.path;
    }
  }
  EXPECT_EQ(find_key("runs[layered].groups"), find_key("runs[3].groups"));
  EXPECT_EQ(find_key("model.nothing"), nullptr);
  EXPECT_EQ(find_key("model[0]"), nullptr);
}

}  // namespace
}  // namespace lamina
