// The shape of a GPT, the units it is made of, and how many parameters each holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lamina {

struct ModelShape {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t sequence = 0;
  std::int64_t vocabulary = 0;
  bool operator==(const ModelShape&) const = default;
};

// A unit is what is gathered, reduced and updated as a whole: the embedding, one transformer layer, or the head
// (final norm and output projection). Layers are numbered from 0; the embedding and the head are not layers and are
// never counted in a layer's number.
enum class UnitKind : std::uint8_t { embedding, layer, head };
struct Unit {
  UnitKind kind = UnitKind::layer;
  std::int32_t layer = 0;  // -1 for the embedding and the head
  bool operator==(const Unit&) const = default;
  auto operator<=>(const Unit&) const = default;
};
constexpr Unit embedding_unit() { return {UnitKind::embedding, -1}; }
constexpr Unit head_unit() { return {UnitKind::head, -1}; }
constexpr Unit layer_unit(std::int64_t layer) { return {UnitKind::layer, static_cast<std::int32_t>(layer)}; }
std::string name_of(Unit unit);  // "embedding", "layer 3", "head"

// One parameter tensor inside its unit's flat buffer. Names and [out, in] layout as in nanoGPT.
struct TensorLayout {
  std::string name;                 // "transformer.h.0.attn.c_attn.weight"
  std::vector<std::int64_t> shape;  // row-major
  std::int64_t offset = 0;          // elements from the start of the unit's buffer
  std::int64_t elements = 0;
  bool decays() const { return shape.size() >= 2; }  // weight decay applies to tensors of two or more dimensions
};

// The tensors of a unit in buffer order, without gaps.
//   embedding: wte [vocabulary, hidden], wpe [sequence, hidden]
//   layer: ln_1.weight, ln_1.bias, attn.c_attn.weight [3d, d], .bias, attn.c_proj.weight [d, d], .bias,
//          ln_2.weight, ln_2.bias, mlp.c_fc.weight [4d, d], .bias, mlp.c_proj.weight [d, 4d], .bias  (12d² + 13d)
//   head: ln_f.weight, ln_f.bias, lm_head.weight [vocabulary, hidden]
std::vector<TensorLayout> unit_layout(const ModelShape& shape, Unit unit);
std::int64_t unit_parameters(const ModelShape& shape, Unit unit);
std::int64_t model_parameters(const ModelShape& shape);
std::vector<Unit> all_units(const ModelShape& shape);  // embedding, layers in order, head

// Throws UsageError with one line when a size is below 1, heads do not divide hidden, or a product leaves 63 bits.
void validate(const ModelShape& shape);

}  // namespace lamina
