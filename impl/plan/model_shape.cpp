#include "impl/plan/model_shape.h"

#include "impl/base/error.h"

namespace lamina {

std::string name_of(Unit unit) {
  switch (unit.kind) {
    case UnitKind::embedding:
      return "embedding";
    case UnitKind::layer:
      return fmt::format("layer {}", unit.layer);
    case UnitKind::head:
      return "head";
  }
  return "?";
}

std::vector<TensorLayout> unit_layout(const ModelShape& shape, Unit unit) {
  std::vector<TensorLayout> tensors;
  std::int64_t offset = 0;
  const auto add = [&](std::string name, std::vector<std::int64_t> dimensions) {
    std::int64_t elements = 1;
    for (const std::int64_t dimension : dimensions) {
      elements *= dimension;
    }
    tensors.push_back({std::move(name), std::move(dimensions), offset, elements});
    offset += elements;
  };
  const std::int64_t d = shape.hidden;
  switch (unit.kind) {
    case UnitKind::embedding:
      add("transformer.wte.weight", {shape.vocabulary, d});
      add("transformer.wpe.weight", {shape.sequence, d});
      break;
    case UnitKind::layer: {
      const std::string prefix = fmt::format("transformer.h.{}.", unit.layer);
      add(prefix + "ln_1.weight", {d});
      add(prefix + "ln_1.bias", {d});
      add(prefix + "attn.c_attn.weight", {3 * d, d});
      add(prefix + "attn.c_attn.bias", {3 * d});
      add(prefix + "attn.c_proj.weight", {d, d});
      add(prefix + "attn.c_proj.bias", {d});
      add(prefix + "ln_2.weight", {d});
      add(prefix + "ln_2.bias", {d});
      add(prefix + "mlp.c_fc.weight", {4 * d, d});
      add(prefix + "mlp.c_fc.bias", {4 * d});
      add(prefix + "mlp.c_proj.weight", {d, 4 * d});
      add(prefix + "mlp.c_proj.bias", {d});
      break;
    }
    case UnitKind::head:
      add("transformer.ln_f.weight", {d});
      add("transformer.ln_f.bias", {d});
      add("lm_head.weight", {shape.vocabulary, d});
      break;
  }
  return tensors;
}

std::int64_t unit_parameters(const ModelShape& shape, Unit unit) {
  const std::int64_t d = shape.hidden;
  switch (unit.kind) {
    case UnitKind::embedding:
      return (shape.vocabulary + shape.sequence) * d;
    case UnitKind::layer:
      return 12 * d * d + 13 * d;
    case UnitKind::head:
      return (shape.vocabulary + 2) * d;
  }
  return 0;
}

std::int64_t model_parameters(const ModelShape& shape) {
  return unit_parameters(shape, embedding_unit()) + shape.layers * unit_parameters(shape, layer_unit(0)) +
         unit_parameters(shape, head_unit());
}

std::vector<Unit> all_units(const ModelShape& shape) {
  std::vector<Unit> units{embedding_unit()};
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    units.push_back(layer_unit(layer));
  }
  units.push_back(head_unit());
  return units;
}

void validate(const ModelShape& shape) {
  const auto at_least_one = [](std::int64_t value, const char* key) {
    if (value < 1) {
      throw UsageError(fmt::format("model.{} is {}; it must be at least 1", key, value));
    }
  };
  at_least_one(shape.layers, "layers");
  at_least_one(shape.hidden, "hidden");
  at_least_one(shape.heads, "heads");
  at_least_one(shape.sequence, "sequence");
  at_least_one(shape.vocabulary, "vocabulary");
  if (shape.hidden % shape.heads != 0) {
    throw UsageError(
        fmt::format("model.heads is {}, which does not divide model.hidden {}", shape.heads, shape.hidden));
  }
  const auto wide = [](std::int64_t value) { return static_cast<long double>(value); };
  const long double parameters =
      wide(shape.layers) * (12 * wide(shape.hidden) * wide(shape.hidden) + 13 * wide(shape.hidden)) +
      (2 * wide(shape.vocabulary) + wide(shape.sequence) + 2) * wide(shape.hidden);
  if (parameters > 1e18L) {
    throw UsageError(
        fmt::format("model has {:.3g} parameters; at most 1e18 are supported", static_cast<double>(parameters)));
  }
}

}  // namespace lamina
