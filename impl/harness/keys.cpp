#include "impl/harness/keys.h"

#include <algorithm>
#include <cmath>
#include <regex>

#include "impl/base/error.h"
#include "impl/base/nearest.h"
#include "impl/harness/links.h"

namespace lamina {
namespace {

constexpr double kManySizes = 1e9;
constexpr double kManySequences = 1e12;
constexpr double kManyRanks = 1e6;
constexpr double kManySteps = 1e6;                   // a result holds some numbers of every step
constexpr double kLargestSeed = 9007199254740992.0;  // 2^53: every JSON reader keeps it exactly
constexpr std::string_view kRunName = "^[A-Za-z0-9][A-Za-z0-9 ._+-]{0,99}$";

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names;
  for (const LinkPreset& preset : link_presets()) {
    names.push_back(preset.name);
  }
  return names;
}

// In the order in which people write a scenario; a parent stands before its children.
std::vector<Key> make_keys() {
  using enum KeyType;
  const Key::Condition adamw{"name", {"adamw"}};
  const Key::Condition fp16{"compute", {"fp16"}};
  const Key::Condition runs{"executor", {"train", "simulate"}};
  const Key::Condition trains{"executor", {"train"}};
  const Key::Condition on_cluster{"executor", {"simulate", "search"}};
  const Key::Condition searches{"executor", {"search"}};
  const Key::Condition ratio{
      "metric", {"step_time_s", "tokens_per_s", "exposed_communication_s", "peak_memory_bytes", "traffic_bytes"}};
  const Key::Condition bounded{"metric",
                               {"step_time_s", "tokens_per_s", "exposed_communication_s", "peak_memory_bytes",
                                "traffic_bytes", "step_time_over_closed_form"}};
  const Key::Condition series{"metric", {"loss", "gradient_norm"}};
  return {
      {.path = "", .type = object, .documentation = "An experiment: runs of one model that differ in how it is split"},
      {.path = "schema_version",
       .type = integer,
       .documentation = "Version of this format",
       .required = true,
       .minimum = 1,
       .maximum = 1},
      {.path = "name",
       .type = text,
       .documentation = "Names the experiment and its folder under out/",
       .required = true,
       .pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"},
      {.path = "purpose",
       .type = text,
       .documentation = "What the experiment is to show, in one sentence",
       .default_json = R"("")"},
      {.path = "executor",
       .type = text,
       .documentation = "train: real compute and communication; simulate: the same schedules on a described cluster; "
                        "search: the fastest plans of a cluster (`lamina plan`)",
       .required = true,
       .choices = {"train", "simulate", "search"}},
      {.path = "cluster",
       .type = text,
       .documentation = "A cluster file (clusters/*.json): devices, links, node size",
       .required = true,
       .pattern = ".",
       .only_when = on_cluster},
      {.path = "search",
       .type = object,
       .documentation = "Limits and choices of the plan search",
       .default_json = "{}",
       .only_when = searches},
      {.path = "search.max_gpus",
       .type = integer,
       .documentation = "Devices that a plan may use",
       .unit = "devices",
       .default_json = "100000",
       .minimum = 1,
       .maximum = 1e6},
      {.path = "search.memory_bytes",
       .type = number,
       .documentation = "Memory of a device that a plan may use; missing: all that the cluster's device has",
       .unit = "bytes",
       .minimum = 0,
       .maximum = 1e18,
       .above_minimum = true},
      {.path = "search.batch_law",
       .type = text,
       .documentation = "The critical batch for the model's size (impl/analysis/batch_law.h)",
       .default_json = R"("gpt3")",
       .choices = {"gpt3", "kaplan"}},
      {.path = "search.step_rule",
       .type = text,
       .documentation = "Steps below the critical batch: for the same tokens, or for the same loss",
       .default_json = R"("same_tokens")",
       .choices = {"same_tokens", "same_loss"}},
      {.path = "search.precision",
       .type = text,
       .documentation = "Whose peak rate of the device counts",
       .default_json = R"("fp16")",
       .choices = {"fp16", "bf16", "tf32", "fp32", "fp64"}},
      {.path = "search.rates",
       .type = text,
       .documentation = "reached: the cluster's rates times its efficiencies; nominal: the data sheets'",
       .default_json = R"("reached")",
       .choices = {"reached", "nominal"}},
      {.path = "search.state_storage",
       .type = text,
       .documentation = "Where parameters, gradients and optimizer state live",
       .default_json = R"("device")",
       .choices = {"device", "host", "disk"}},
      {.path = "search.checkpoint_storage",
       .type = text,
       .documentation = "Where activation checkpoints live",
       .default_json = R"("device")",
       .choices = {"device", "host", "disk"}},
      {.path = "search.keep_best",
       .type = integer,
       .documentation = "Plans shown for each family",
       .unit = "plans",
       .default_json = "5",
       .minimum = 1,
       .maximum = 1000},

      {.path = "model", .type = object, .documentation = "The GPT", .required = true},
      {.path = "model.layers",
       .type = integer,
       .documentation = "Transformer layers",
       .required = true,
       .minimum = 1,
       .maximum = kManySizes},
      {.path = "model.hidden",
       .type = integer,
       .documentation = "Width of the residual stream",
       .required = true,
       .minimum = 1,
       .maximum = kManySizes},
      {.path = "model.heads",
       .type = integer,
       .documentation = "Attention heads; they divide `hidden`",
       .required = true,
       .minimum = 1,
       .maximum = kManySizes},
      {.path = "model.sequence",
       .type = integer,
       .documentation = "Length of a sample",
       .unit = "tokens",
       .required = true,
       .minimum = 1,
       .maximum = kManySizes},
      {.path = "model.vocabulary",
       .type = integer,
       .documentation = "Different tokens (256 for text read as bytes)",
       .required = true,
       .minimum = 1,
       .maximum = kManySizes},

      {.path = "data",
       .type = object,
       .documentation = "Where tokens come from",
       .required = true,
       .only_when = runs,
       .exactly_one_of = {"text_file", "token_file", "json_file", "synthetic"}},
      {.path = "data.text_file", .type = text, .documentation = "A text, each byte a token", .pattern = "."},
      {.path = "data.token_file",
       .type = text,
       .documentation = "Little-endian 16-bit tokens (nanoGPT's .bin)",
       .pattern = "."},
      {.path = "data.json_file",
       .type = text,
       .documentation = R"({"tokens": [[...]], "targets": [[...]]}; target -1 is not counted)",
       .pattern = "."},
      {.path = "data.synthetic", .type = object, .documentation = "Random tokens"},
      {.path = "data.synthetic.seed",
       .type = integer,
       .documentation = "Seed of the random tokens",
       .default_json = "1",
       .minimum = 0,
       .maximum = kLargestSeed},

      {.path = "batch", .type = object, .documentation = "Sequences of a step", .required = true, .only_when = runs},
      {.path = "batch.global",
       .type = integer,
       .documentation = "Sequences a step, over all ranks: a multiple of `micro` times parallel.data",
       .unit = "sequences",
       .required = true,
       .minimum = 1,
       .maximum = kManySequences},
      {.path = "batch.micro",
       .type = integer,
       .documentation = "Sequences a micro-batch",
       .unit = "sequences",
       .required = true,
       .minimum = 1,
       .maximum = kManySequences},

      {.path = "optimizer", .type = object, .documentation = "The optimizer", .required = true, .only_when = runs},
      {.path = "optimizer.name",
       .type = text,
       .documentation = "Kind of optimizer",
       .required = true,
       .choices = {"sgd", "adamw"}},
      {.path = "optimizer.learning_rate",
       .type = number,
       .documentation = "Learning rate",
       .required = true,
       .minimum = 0,
       .maximum = 1e6},
      {.path = "optimizer.beta1",
       .type = number,
       .documentation = "Decay of the first moment",
       .default_json = "0.9",
       .minimum = 0,
       .maximum = 0.999999999,
       .only_when = adamw},
      {.path = "optimizer.beta2",
       .type = number,
       .documentation = "Decay of the second moment",
       .default_json = "0.95",
       .minimum = 0,
       .maximum = 0.999999999,
       .only_when = adamw},
      {.path = "optimizer.epsilon",
       .type = number,
       .documentation = "Added to the root of the second moment",
       .default_json = "1e-8",
       .minimum = 0,
       .maximum = 1,
       .above_minimum = true,
       .only_when = adamw},
      {.path = "optimizer.weight_decay",
       .type = number,
       .documentation = "Decoupled decay, on tensors of two or more dimensions",
       .default_json = "0.0",
       .minimum = 0,
       .maximum = 1e6},
      {.path = "optimizer.clip_norm",
       .type = number,
       .documentation = "Global norm that gradients are clipped to; 0: not clipped",
       .default_json = "0.0",
       .minimum = 0,
       .maximum = 1e9},

      {.path = "precision",
       .type = object,
       .documentation = "Real types. All arithmetic of 16-bit types is in fp32, and gradients, moments and the "
                        "optimizer's own copy of the weights are kept in it",
       .default_json = "{}"},
      {.path = "precision.compute",
       .type = text,
       .documentation = "Weights and activations",
       .default_json = R"("fp32")",
       .choices = {"fp64", "fp32", "bf16", "fp16"}},
      {.path = "precision.wire",
       .type = text,
       .documentation = "Weights and activations between ranks: the same as `compute`, as it is when missing",
       .choices = {"fp64", "fp32", "bf16", "fp16"}},
      {.path = "precision.reduce",
       .type = text,
       .documentation =
           "Gradients between ranks, summed in fp32 in any case: the same as `compute`, or fp32 where that "
           "has 16 bits; missing: the wider of these",
       .choices = {"fp64", "fp32", "bf16", "fp16"}},
      {.path = "precision.loss_scale",
       .type = number,
       .documentation = "What the loss is multiplied by at first, best a power of two. A step whose gradients overflow "
                        "on any rank is skipped by all and halves it",
       .default_json = "65536.0",
       .minimum = 0,
       .maximum = 1e18,
       .above_minimum = true,
       .only_when = fp16},
      {.path = "precision.growth_interval",
       .type = integer,
       .documentation = "After so many steps without overflow the loss scale doubles",
       .unit = "steps",
       .default_json = "2000",
       .minimum = 1,
       .maximum = kManySizes,
       .only_when = fp16},

      {.path = "steps", .type = object, .documentation = "Length of a run", .required = true, .only_when = runs},
      {.path = "steps.warmup",
       .type = integer,
       .documentation = "Steps before measurement begins",
       .unit = "steps",
       .default_json = "1",
       .minimum = 0,
       .maximum = kManySteps},
      {.path = "steps.measured",
       .type = integer,
       .documentation = "Steps measured",
       .unit = "steps",
       .required = true,
       .minimum = 1,
       .maximum = kManySteps},

      {.path = "seed",
       .type = integer,
       .documentation = "Seed of the weights and of the samples drawn",
       .default_json = "1",
       .minimum = 0,
       .maximum = kLargestSeed},

      {.path = "transport",
       .type = object,
       .documentation = "How ranks talk",
       .default_json = "{}",
       .only_when = trains},
      {.path = "transport.kind",
       .type = text,
       .documentation = "threads: ranks are threads of one process; mpi: processes, which an MPI launcher starts "
                        "(`mpirun -n 2 lamina run …`)",
       .default_json = R"("threads")",
       .choices = {"threads", "mpi"}},
      {.path = "transport.collectives",
       .type = text,
       .documentation = "Who sums gradients and gathers parameters, with transport.kind mpi. ring: this program, by "
                        "rings of messages, whose bytes are counted as they are sent; library: MPI (MPI_Iallreduce and "
                        "its like), where the ring's bytes are counted whatever MPI sends. 16-bit sums are for rings",
       .default_json = R"("ring")",
       .choices = {"ring", "library"}},
      {.path = "transport.link",
       .type = object,
       .documentation = "The emulated link of every rank into an ideal switch, for threads alone; missing: as fast as "
                        "memory allows",
       .exactly_one_of = {"bandwidth_bits_per_s", "preset", "all_reduce_share_of_compute"}},
      {.path = "transport.link.bandwidth_bits_per_s",
       .type = number,
       .documentation = "Each direction",
       .unit = "bit/s",
       .minimum = 0,
       .maximum = 1e18,
       .above_minimum = true},
      {.path = "transport.link.preset",
       .type = text,
       .documentation = "A link by name (`lamina info` lists them)",
       .choices = preset_names()},
      {.path = "transport.link.all_reduce_share_of_compute",
       .type = number,
       .documentation = "The bandwidth at which all-reducing the whole gradient once takes this share of the compute "
                        "time of a step, found by a calibration on the machine at hand",
       .minimum = 0,
       .maximum = 1e6,
       .above_minimum = true},
      {.path = "transport.link.latency_s",
       .type = number,
       .documentation = "From a message's last bit leaving to its arrival; missing: the preset's, else 0",
       .unit = "s",
       .minimum = 0,
       .maximum = 10},

      {.path = "initial_weights",
       .type = text,
       .documentation = "A safetensors file with nanoGPT's names; missing: drawn from the seed",
       .pattern = "."},
      {.path = "dump",
       .type = object,
       .documentation = "Whole tensors, written after one step",
       .at_least_one_of = {"gradients", "weights"}},
      {.path = "dump.step",
       .type = integer,
       .documentation = "Counted from 0, warm-up included",
       .unit = "step",
       .required = true,
       .minimum = 0,
       .maximum = kManySteps},
      {.path = "dump.gradients",
       .type = text,
       .documentation = "A safetensors file; `{run}` in it becomes the run's name",
       .pattern = "."},
      {.path = "dump.weights",
       .type = text,
       .documentation = "A safetensors file; `{run}` in it becomes the run's name",
       .pattern = "."},

      {.path = "disturbances",
       .type = list,
       .documentation = "Trouble made on purpose, to see what one slow or failing rank does",
       .default_json = "[]"},
      {.path = "disturbances[].kind",
       .type = text,
       .documentation = "What the rank does to itself. sleep: it is late; fail: it throws; out_of_memory: it asks for "
                        "more than there is; exit, kill, stop: its process exits with code 0, is killed or stopped "
                        "(with transport.kind threads that process has all ranks in it)",
       .required = true,
       .choices = {"sleep", "fail", "out_of_memory", "exit", "kill", "stop"}},
      {.path = "disturbances[].rank",
       .type = integer,
       .documentation = "The rank concerned",
       .required = true,
       .minimum = 0,
       .maximum = kManyRanks},
      {.path = "disturbances[].step",
       .type = integer,
       .documentation = "Counted from 0, warm-up included; missing: every step",
       .unit = "step",
       .minimum = 0,
       .maximum = kManySteps},
      {.path = "disturbances[].sleep_s",
       .type = number,
       .documentation = "How long",
       .unit = "s",
       .required = true,
       .minimum = 0,
       .maximum = 3600,
       .above_minimum = true,
       .only_when = Key::Condition{"kind", {"sleep"}}},

      {.path = "runs",
       .type = list,
       .documentation = "What is compared",
       .required = true,
       .minimum = 1,
       .only_when = runs},
      {.path = "runs[].name",
       .type = text,
       .documentation = "Names the run; no two are the same",
       .required = true,
       .pattern = kRunName},
      {.path = "runs[].method",
       .type = text,
       .documentation = "Who owns a layer and in which order it computes (`lamina info` lists them)",
       .required = true},
      {.path = "runs[].parallel",
       .type = object,
       .documentation = "Ranks; their product is the number of ranks",
       .default_json = "{}"},
      {.path = "runs[].parallel.data",
       .type = integer,
       .documentation = "Data-parallel ranks",
       .unit = "ranks",
       .default_json = "1",
       .minimum = 1,
       .maximum = kManyRanks},
      {.path = "runs[].parallel.pipeline",
       .type = integer,
       .documentation = "Pipeline ranks",
       .unit = "ranks",
       .default_json = "1",
       .minimum = 1,
       .maximum = kManyRanks},
      {.path = "runs[].parallel.tensor",
       .type = integer,
       .documentation = "Tensor-parallel ranks",
       .unit = "ranks",
       .default_json = "1",
       .minimum = 1,
       .maximum = kManyRanks},
      {.path = "runs[].zero_stage",
       .type = integer,
       .documentation = "What data-parallel ranks share out: 1 optimizer state, 2 gradients too, 3 parameters too",
       .default_json = "0",
       .minimum = 0,
       .maximum = 3},
      {.path = "runs[].recompute",
       .type = text,
       .documentation = "What backward computes again",
       .default_json = R"("none")",
       .choices = {"none", "selective", "full"}},
      {.path = "runs[].groups",
       .type = integer,
       .documentation = "Hybrid order: groups of micro-batches, each run layered; missing: the method's",
       .minimum = 1,
       .maximum = kManySequences},
      {.path = "runs[].chunks",
       .type = integer,
       .documentation = "Interleaved pipelines: chunks of layers a rank; missing: the method's",
       .minimum = 1,
       .maximum = kManySizes},
      {.path = "runs[].prefetch_layers",
       .type = integer,
       .documentation = "How many units ahead of use a gather may start; missing: 1",
       .unit = "layers",
       .minimum = 0,
       .maximum = kManySizes},
      {.path = "runs[].resident_layers",
       .type = integer,
       .documentation = "Gathered layers that stay in memory; missing: 2",
       .unit = "layers",
       .minimum = 1,
       .maximum = kManySizes},
      {.path = "runs[].keep_full_gradient",
       .type = boolean,
       .documentation = "ZeRO-2 and 3: keep the whole gradient and reduce it once a step",
       .default_json = "false"},

      {.path = "sweep",
       .type = sweep,
       .documentation = "Keys and lists of values: every combination runs all runs, e.g. "
                        R"({"transport.link.bandwidth_bits_per_s": [1e8, 1e9]})"},

      {.path = "expect",
       .type = list,
       .documentation = "What must come out; exit code 1 when it does not",
       .default_json = "[]"},
      {.path = "expect[].metric",
       .type = text,
       .documentation = "What is compared",
       .required = true,
       .choices = {"step_time_s", "tokens_per_s", "exposed_communication_s", "peak_memory_bytes", "traffic_bytes",
                   "step_time_over_closed_form", "loss", "gradient_norm"}},
      {.path = "expect[].of", .type = text, .documentation = "A run", .required = true},
      {.path = "expect[].over",
       .type = text,
       .documentation = "The run it is divided by: medians, or maxima over ranks",
       .required = true,
       .only_when = ratio},
      {.path = "expect[].at_least",
       .type = number,
       .documentation = "Smallest ratio",
       .minimum = 0,
       .maximum = 1e9,
       .only_when = bounded},
      {.path = "expect[].at_most",
       .type = number,
       .documentation = "Largest ratio",
       .minimum = 0,
       .maximum = 1e9,
       .only_when = bounded},
      {.path = "expect[].equal_to",
       .type = text,
       .documentation = "The run whose values must be the same at each step",
       .required = true,
       .only_when = series},
      {.path = "expect[].within",
       .type = number,
       .documentation = "Largest relative difference",
       .required = true,
       .minimum = 0,
       .maximum = 1,
       .only_when = series},
  };
}

// The table as a tree: what may stand below a key.
struct Node {
  const Key* key = nullptr;
  std::string_view name;
  std::vector<Node> children;  // of an object, or of the objects in a list
};

void insert(Node& parent, std::string_view rest, const Key& key) {
  const std::size_t end = rest.find('.');
  std::string_view name = rest.substr(0, end);
  if (name.ends_with("[]")) {
    name.remove_suffix(2);
  }
  const auto known = std::find_if(parent.children.begin(), parent.children.end(),
                                  [&](const Node& child) { return child.name == name; });
  if (end == std::string_view::npos) {
    LAMINA_CHECK(known == parent.children.end(), "key {} stands twice in the table", key.path);
    parent.children.push_back({&key, name, {}});
    return;
  }
  LAMINA_CHECK(known != parent.children.end(), "key {} stands before its parent in the table", key.path);
  insert(*known, rest.substr(end + 1), key);
}

Node make_tree() {
  Node root;
  for (const Key& key : scenario_keys()) {
    if (key.path.empty()) {
      root.key = &key;
    } else {
      insert(root, key.path, key);
    }
  }
  return root;
}

const Node& key_tree() {
  static const Node tree = make_tree();
  return tree;
}

const Node* child_named(const Node& parent, std::string_view name) {
  for (const Node& child : parent.children) {
    if (child.name == name) {
      return &child;
    }
  }
  return nullptr;
}

std::string joined(const std::vector<std::string_view>& words, std::string_view last_link) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    text += i == 0 ? "" : (i + 1 == words.size() ? fmt::format(" {} ", last_link) : ", ");
    text += words[i];
  }
  return text;
}

// What would be accepted, for messages: "a whole number from 1 to 1000000000".
std::string accepted(const Key& key) {
  const auto range = [&] {
    std::string text;
    if (std::isfinite(key.minimum)) {
      text += fmt::format(" {} {}", key.above_minimum ? "above" : "from", key.minimum);
    }
    if (std::isfinite(key.maximum)) {
      text += fmt::format(" to {}", key.maximum);
    }
    return text;
  };
  switch (key.type) {
    case KeyType::object:
      return "an object";
    case KeyType::list:
      return "a list";
    case KeyType::integer:
      return "a whole number" + range();
    case KeyType::number:
      return "a number" + range();
    case KeyType::text:
      if (!key.choices.empty()) {
        return joined(key.choices, "or");
      }
      return key.pattern.empty() || key.pattern == "." ? "a text" : fmt::format("a text like {}", key.pattern);
    case KeyType::boolean:
      return "true or false";
    case KeyType::sweep:
      return "an object of keys with lists of values";
  }
  return "?";
}

bool is_accepted(const Key& key, const Json& value) {
  const auto in_range = [&](double number) {
    return number <= key.maximum && (key.above_minimum ? number > key.minimum : number >= key.minimum);
  };
  switch (key.type) {
    case KeyType::object:
    case KeyType::sweep:
      return value.is_object();
    case KeyType::list:
      return value.is_array();
    case KeyType::integer:
      return value.is_number_integer() && in_range(value.get<double>());
    case KeyType::number:
      return value.is_number() && in_range(value.get<double>());
    case KeyType::text: {
      if (!value.is_string()) {
        return false;
      }
      const auto& text = value.get_ref<const std::string&>();
      const bool printable =
          std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; });
      const bool chosen = key.choices.empty() || std::count(key.choices.begin(), key.choices.end(), text) > 0;
      return printable && chosen &&
             (key.pattern.empty() || std::regex_search(text, std::regex(key.pattern.begin(), key.pattern.end())));
    }
    case KeyType::boolean:
      return value.is_boolean();
  }
  return false;
}

std::string below(const std::string& place, std::string_view name) {
  return place.empty() ? std::string(name) : fmt::format("{}.{}", place, name);
}

std::string_view last_name(const Key& key) { return key.path.substr(key.path.find_last_of('.') + 1); }

bool holds(const std::optional<Key::Condition>& condition, const Json& object) {
  if (!condition) {
    return true;
  }
  const auto sibling = object.find(std::string(condition->sibling));
  if (sibling == object.end() || !sibling->is_string()) {
    return false;
  }
  const auto& values = condition->values;
  return std::find(values.begin(), values.end(), sibling->get_ref<const std::string&>()) != values.end();
}

class Validator {
 public:
  explicit Validator(const std::string& name) : name_(name) {}

  void check(const Node& node, const Json& value, const std::string& place) const {
    const Key& key = *node.key;
    if (!is_accepted(key, value)) {
      fail(place.empty() ? "the document" : place, fmt::format("is {}; it must be {}", brief(value), accepted(key)));
    }
    if (key.type == KeyType::object) {
      check_object(node, value, place);
    } else if (key.type == KeyType::list) {
      if (static_cast<double>(value.size()) < key.minimum) {
        fail(place, "is empty; it must hold at least one");
      }
      for (std::size_t i = 0; i < value.size(); ++i) {
        const std::string at = fmt::format("{}[{}]", place, i);
        if (!value[i].is_object()) {
          fail(at, fmt::format("is {}; it must be an object", brief(value[i])));
        }
        check_object(node, value[i], at);
      }
    }
  }

 private:
  [[noreturn]] void fail(std::string_view place, const std::string& reason) const {
    throw UsageError(fmt::format("{}: {} {}", name_, place, reason));
  }

  void check_object(const Node& node, const Json& object, const std::string& place) const {
    for (const auto& [name, value] : object.items()) {
      const Node* child = child_named(node, name);
      if (child == nullptr) {
        fail_unknown(node, name, place);
      }
      check_place_of(*child->key, object, below(place, name));
      check(*child, value, below(place, name));
    }
    for (const Node& child : node.children) {
      const Key& key = *child.key;
      if (key.required && holds(key.only_when, object) && !object.contains(std::string(child.name))) {
        fail(below(place, child.name), fmt::format("is missing; it must be {}", accepted(key)));
      }
    }
    // An object in a list has no key of its own: the rules of groups are for objects alone.
    if (node.key->type == KeyType::object) {
      check_groups(*node.key, object, place);
    }
  }

  [[noreturn]] void fail_unknown(const Node& node, const std::string& name, const std::string& place) const {
    std::vector<std::string_view> names;
    for (const Node& child : node.children) {
      names.push_back(child.name);
    }
    std::string shown = brief(Json(name));
    shown = shown.substr(1, shown.size() - 2);  // escaped, without its quotation marks
    fail(below(place, shown),
         fmt::format("is not a known key; did you mean {}?", below(place, nearest_name(name, names))));
  }

  // Whether the key may stand in this object, beside the keys that are there.
  void check_place_of(const Key& key, const Json& object, const std::string& place) const {
    // Where the sibling itself is missing, that is what is said.
    const std::string sibling(key.only_when ? key.only_when->sibling : "");
    if (key.only_when && object.contains(sibling) && !holds(key.only_when, object)) {
      fail(place, fmt::format("is only for {} {}; here it is {}", sibling, joined(key.only_when->values, "or"),
                              brief(object[sibling])));
    }
  }

  void check_groups(const Key& key, const Json& object, const std::string& place) const {
    const auto given = [&](const std::vector<std::string_view>& names) {
      std::vector<std::string_view> found;
      for (const std::string_view name : names) {
        if (object.contains(std::string(name))) {
          found.push_back(name);
        }
      }
      return found;
    };
    if (!key.exactly_one_of.empty()) {
      const auto found = given(key.exactly_one_of);
      if (found.size() != 1) {
        fail(place, fmt::format("holds {}; it must hold exactly one of {}",
                                found.empty() ? "none" : joined(found, "and"), joined(key.exactly_one_of, "and")));
      }
    }
    if (!key.at_least_one_of.empty() && given(key.at_least_one_of).empty()) {
      fail(place, fmt::format("must hold at least one of {}", joined(key.at_least_one_of, "and")));
    }
  }

  const std::string& name_;
};

// Adds defaults, and puts the keys into the table's order.
void fill_object(const Node& node, Json& object) {
  Json filled = Json::object();
  for (const Node& child : node.children) {
    const std::string name(child.name);
    const Key& key = *child.key;
    const bool given = object.contains(name);
    if (!given && (key.default_json.empty() || !holds(key.only_when, object))) {
      continue;
    }
    Json value = given ? object[name] : Json::parse(key.default_json);
    if (key.type == KeyType::object) {
      fill_object(child, value);
    } else if (key.type == KeyType::list) {
      for (Json& element : value) {
        fill_object(child, element);
      }
    }
    filled[name] = std::move(value);
  }
  object = std::move(filled);
}

Json names_as_json(const std::vector<std::string_view>& names) {
  Json list = Json::array();
  for (const std::string_view name : names) {
    list.push_back(std::string(name));
  }
  return list;
}

void add_range(Json& schema, const Key& key) {
  const auto bound = [&](double value) {
    return key.type == KeyType::integer ? Json(std::llround(value)) : Json(value);
  };
  if (std::isfinite(key.minimum)) {
    schema[key.above_minimum ? "exclusiveMinimum" : "minimum"] = bound(key.minimum);
  }
  if (std::isfinite(key.maximum)) {
    schema["maximum"] = bound(key.maximum);
  }
}

Json schema_of_object(const Node& node);

Json schema_of(const Node& node) {
  const Key& key = *node.key;
  Json schema = Json::object();
  schema["description"] = std::string(key.documentation) + (key.unit.empty() ? "" : fmt::format(" [{}]", key.unit));
  switch (key.type) {
    case KeyType::object:
      schema.update(schema_of_object(node));
      break;
    case KeyType::list:
      schema["type"] = "array";
      if (key.minimum > 0) {
        schema["minItems"] = std::llround(key.minimum);
      }
      schema["items"] = schema_of_object(node);
      break;
    case KeyType::integer:
    case KeyType::number:
      schema["type"] = key.type == KeyType::integer ? "integer" : "number";
      add_range(schema, key);
      break;
    case KeyType::text:
      schema["type"] = "string";
      if (!key.choices.empty()) {
        schema["enum"] = names_as_json(key.choices);
      }
      if (!key.pattern.empty()) {
        schema["pattern"] = std::string(key.pattern);
      }
      break;
    case KeyType::boolean:
      schema["type"] = "boolean";
      break;
    case KeyType::sweep:
      schema["type"] = "object";
      schema["minProperties"] = 1;
      schema["additionalProperties"] = {{"type", "array"}, {"minItems", 1}};
      break;
  }
  if (!key.default_json.empty()) {
    schema["default"] = Json::parse(key.default_json);
  }
  return schema;
}

// "exactly one of these": a branch for each, and oneOf refuses two.
Json required_one_of(const std::vector<std::string_view>& names) {
  Json branches = Json::array();
  for (const std::string_view name : names) {
    branches.push_back({{"required", Json::array({std::string(name)})}});
  }
  return branches;
}

// What holds only beside certain values of a sibling: with them required (where it is), without them forbidden.
Json conditional(const Key& key) {
  const Json name = std::string(last_name(key));
  const std::string sibling(key.only_when->sibling);
  Json rule;
  rule["if"]["properties"][sibling]["enum"] = names_as_json(key.only_when->values);
  rule["if"]["required"] = Json::array({sibling});
  if (key.required) {
    rule["then"]["required"] = Json::array({name});
  }
  rule["else"]["not"]["required"] = Json::array({name});
  return rule;
}

Json schema_of_object(const Node& node) {
  Json schema;
  schema["type"] = "object";
  schema["additionalProperties"] = false;
  Json required = Json::array();
  Json conditions = Json::array();
  schema["properties"] = Json::object();
  for (const Node& child : node.children) {
    schema["properties"][std::string(child.name)] = schema_of(child);
    if (child.key->only_when) {
      conditions.push_back(conditional(*child.key));
    } else if (child.key->required) {
      required.push_back(std::string(child.name));
    }
  }
  if (!required.empty()) {
    schema["required"] = required;
  }
  if (!conditions.empty()) {
    schema["allOf"] = conditions;
  }
  if (node.key->type == KeyType::object && !node.key->exactly_one_of.empty()) {
    schema["oneOf"] = required_one_of(node.key->exactly_one_of);
  }
  if (node.key->type == KeyType::object && !node.key->at_least_one_of.empty()) {
    schema["anyOf"] = required_one_of(node.key->at_least_one_of);
  }
  return schema;
}

std::string need_of(const Key& key) {
  std::string text = key.required ? "required" : key.default_json.empty() ? "optional" : std::string(key.default_json);
  if (key.only_when) {
    text += fmt::format(" ({} {})", key.only_when->sibling, joined(key.only_when->values, "or"));
  }
  return text;
}

}  // namespace

std::span<const Key> scenario_keys() {
  static const std::vector<Key> keys = make_keys();
  return keys;
}

const Key* find_key(std::string_view place) {
  const Node* node = &key_tree();
  while (!place.empty()) {
    const std::size_t end = place.find_first_of(".[");
    node = child_named(*node, place.substr(0, end));
    if (node == nullptr) {
      return nullptr;
    }
    place.remove_prefix(end == std::string_view::npos ? place.size() : end);
    if (place.starts_with('[')) {
      const std::size_t close = place.find(']');
      if (node->key->type != KeyType::list || close == std::string_view::npos) {
        return nullptr;
      }
      place.remove_prefix(close + 1);
      if (!place.empty() && !place.starts_with('.')) {
        return nullptr;
      }
    }
    if (place.starts_with('.')) {
      place.remove_prefix(1);
    }
  }
  return node->key;
}

void validate_keys(const Json& document, const std::string& name) { Validator(name).check(key_tree(), document, ""); }

void fill_defaults(Json& document) { fill_object(key_tree(), document); }

Json scenario_schema() {
  Json schema;
  schema["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  schema["title"] = "A lamina scenario";
  schema.update(schema_of(key_tree()));
  return schema;
}

std::string keys_as_markdown() {
  std::string table = "| key | type | unit | default | meaning |\n|---|---|---|---|---|\n";
  for (const Key& key : scenario_keys()) {
    if (!key.path.empty()) {
      table += fmt::format("| `{}` | {} | {} | {} | {} |\n", key.path, accepted(key), key.unit, need_of(key),
                           key.documentation);
    }
  }
  return table;
}

}  // namespace lamina
