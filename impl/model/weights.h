// Initial weights and safetensors files.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "impl/plan/model_shape.h"

namespace lamina {

// GPT-2's initialisation: normal(0, 0.02) for matrices and embeddings, residual projections (c_proj.weight) with
// 0.02/sqrt(2·layers), ones for norm weights, zeros for biases. Each value depends on (seed, tensor name, index).
// Writes elements [begin, end) of the unit to `out`; padding beyond the layout becomes 0.
template <class Real>
void initialize_range(const ModelShape& shape, Unit unit, std::int64_t seed, std::int64_t begin, std::int64_t end,
                      Real* out);

// A tensor read from or to be written to a safetensors file. Values are held in double; `type` is the stored one.
struct NamedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<double> values;
};
// Reads F64, F32, F16 and BF16 tensors. Throws UsageError with file and reason (missing, truncated, header not JSON,
// offsets that overlap or leave the file, unknown type).
std::map<std::string, NamedTensor> read_safetensors(const std::string& path);
// stored_bytes 8 writes F64, 4 writes F32. Written to a temporary file and renamed.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors, int stored_bytes);

// A unit's flat buffer (without padding) from named tensors; throws UsageError naming a missing tensor or a shape
// that differs. And back.
std::vector<double> unit_from_tensors(const ModelShape& shape, Unit unit,
                                      const std::map<std::string, NamedTensor>& tensors);
std::vector<NamedTensor> tensors_from_unit(const ModelShape& shape, Unit unit, std::span<const double> values);

}  // namespace lamina
