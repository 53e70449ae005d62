// A found plan in the words of systems that others run: Megatron-LM flags and DeepSpeed configuration.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "impl/analysis/forms.h"

namespace lamina::analysis {

enum class TargetSystem : std::uint8_t { megatron, deepspeed };
TargetSystem target_system_named(std::string_view name);  // "megatron" or "deepspeed"; throws UsageError

struct Emitted {
  std::string text;                // flags, one a line, or a JSON document
  std::vector<std::string> notes;  // what the system cannot express, and what stands in its place
};

// What the system cannot do is replaced by its nearest method and said in the notes: no system has the modular pipeline
// (nearest: interleaved 1F1B with one layer a chunk) or layered accumulation (nearest: its own depth-first order).
Emitted emit(TargetSystem system, const StepPlan& plan, const ModelShape& model);

// Notes as comment lines in front of the text, for stdout.
std::string to_text(const Emitted& emitted);

}  // namespace lamina::analysis
