#include "impl/analysis/emit.h"

#include <nlohmann/json.hpp>

#include "impl/base/error.h"

namespace lamina::analysis {
namespace {

bool layered_order(const StepPlan& plan) { return plan.order == Order::layered || plan.order == Order::hybrid; }

void note_accumulation(Emitted& emitted, const StepPlan& plan, const char* system) {
  if (layered_order(plan) && plan.micro_batches > 1) {
    emitted.notes.push_back(fmt::format(
        "{} has no layered accumulation; its own order, depth-first, stands here: expect more traffic or less overlap",
        system));
  }
}

// Layers a virtual stage of Megatron's interleaved schedule, 0 for the plain 1F1B.
std::int64_t layers_each_virtual_stage(Emitted& emitted, const StepPlan& plan, std::int64_t layers) {
  const std::int64_t each = layers / plan.pipeline;
  if (plan.order == Order::interleaved) {
    return each / plan.chunks;
  }
  if (plan.order != Order::modular || each == 1) {
    return 0;
  }
  if (plan.micro_batches % plan.pipeline != 0 || layers % plan.pipeline != 0) {
    emitted.notes.push_back(fmt::format(
        "Megatron-LM has no modular pipeline, and its interleaved schedule needs micro-batches ({}) and layers ({}) in "
        "multiples of the pipeline ranks ({}); plain 1F1B stands here",
        plan.micro_batches, layers, plan.pipeline));
    return 0;
  }
  emitted.notes.emplace_back(
      "Megatron-LM has no modular pipeline; its interleaved schedule with one layer a chunk stands here: the bubble is "
      "the same, the overlap of gathers and reductions is not");
  return 1;
}

Emitted megatron(const StepPlan& plan, const ModelShape& model) {
  Emitted emitted;
  std::vector<std::string> lines;
  const auto value = [&](const char* flag, std::int64_t number) {
    lines.push_back(fmt::format("{} {}", flag, number));
  };
  const auto flag = [&](const char* name) { lines.emplace_back(name); };
  value("--num-layers", model.layers);
  value("--hidden-size", model.hidden);
  value("--num-attention-heads", model.heads);
  value("--seq-length", model.sequence);
  value("--max-position-embeddings", model.sequence);
  value("--micro-batch-size", plan.micro_batch);
  value("--global-batch-size", plan.batch());
  value("--tensor-model-parallel-size", plan.tensor);
  value("--pipeline-model-parallel-size", plan.pipeline);
  if (const std::int64_t each = layers_each_virtual_stage(emitted, plan, model.layers); each > 0) {
    value("--num-layers-per-virtual-pipeline-stage", each);
  }
  if (plan.order == Order::gpipe) {
    emitted.notes.emplace_back("Megatron-LM runs 1F1B where the plan says GPipe: the same time, less memory");
  }
  if (plan.sequence_parallel && plan.tensor > 1) {
    flag("--sequence-parallel");
  }
  if (plan.recompute == Recompute::full) {
    flag("--recompute-granularity full");
    flag("--recompute-method uniform");
    flag("--recompute-num-layers 1");
  } else if (plan.recompute == Recompute::selective) {
    flag("--recompute-granularity selective");
  }
  if (plan.zero_stage > 0) {
    flag("--use-distributed-optimizer");
    flag("--overlap-param-gather");
    if (plan.zero_stage > 1) {
      emitted.notes.push_back(fmt::format(
          "Megatron-LM's distributed optimizer is ZeRO-1; the plan's ZeRO-{} needs less memory", plan.zero_stage));
    }
  }
  if (plan.data > 1) {
    flag("--overlap-grad-reduce");
  }
  flag("--bf16");
  note_accumulation(emitted, plan, "Megatron-LM");
  emitted.notes.push_back(fmt::format("launch on {} GPUs: data-parallel size {} follows", plan.devices(), plan.data));
  emitted.text = fmt::format("{}\n", fmt::join(lines, "\n"));
  return emitted;
}

Emitted deepspeed(const StepPlan& plan, const ModelShape& model) {
  Emitted emitted;
  nlohmann::ordered_json config{{"train_batch_size", plan.batch()},
                                {"train_micro_batch_size_per_gpu", plan.micro_batch},
                                {"gradient_accumulation_steps", plan.micro_batches},
                                {"bf16", {{"enabled", true}}},
                                {"zero_optimization", {{"stage", plan.zero_stage}, {"overlap_comm", true}}}};
  if (plan.zero_stage == 3) {
    // Two gathered layers, as the plan's memory counts them.
    const auto layer = static_cast<std::int64_t>(layer_parameters(model)) / plan.tensor;
    config["zero_optimization"]["stage3_max_live_parameters"] = 2 * layer;
    config["zero_optimization"]["stage3_prefetch_bucket_size"] = layer;
  }
  if (plan.recompute != Recompute::none) {
    config["activation_checkpointing"] = {{"partition_activations", plan.sequence_parallel && plan.tensor > 1}};
  }
  if (plan.pipeline > 1) {
    emitted.notes.push_back(fmt::format("build the model as a PipelineModule with num_stages={}", plan.pipeline));
    if (plan.zero_stage > 1) {
      config["zero_optimization"]["stage"] = 1;
      config["zero_optimization"].erase("stage3_max_live_parameters");
      config["zero_optimization"].erase("stage3_prefetch_bucket_size");
      emitted.notes.push_back(fmt::format(
          "DeepSpeed's pipelines take ZeRO up to 1; the plan's ZeRO-{} needs less memory", plan.zero_stage));
    }
    if (plan.order != Order::one_forward_one_backward) {
      emitted.notes.push_back(fmt::format("DeepSpeed runs 1F1B where the plan says {}", name_of(plan.order)));
    }
  }
  if (plan.tensor > 1) {
    emitted.notes.push_back(fmt::format("give a model-parallel unit (mpu) of {} ranks", plan.tensor));
  }
  note_accumulation(emitted, plan, "DeepSpeed");
  emitted.notes.push_back(fmt::format("launch on {} GPUs: data-parallel size {} follows", plan.devices(), plan.data));
  emitted.text = config.dump(2) + "\n";
  return emitted;
}

}  // namespace

TargetSystem target_system_named(std::string_view name) {
  if (name == "megatron") {
    return TargetSystem::megatron;
  }
  if (name == "deepspeed") {
    return TargetSystem::deepspeed;
  }
  throw UsageError(fmt::format("system '{}' is not known; it is megatron or deepspeed", name));
}

Emitted emit(TargetSystem system, const StepPlan& plan, const ModelShape& model) {
  return system == TargetSystem::megatron ? megatron(plan, model) : deepspeed(plan, model);
}

std::string to_text(const Emitted& emitted) {
  std::string text;
  for (const std::string& note : emitted.notes) {
    text += fmt::format("# {}\n", note);
  }
  return text + emitted.text;
}

}  // namespace lamina::analysis
