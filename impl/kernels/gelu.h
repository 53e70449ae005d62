// Bias and GELU (tanh form, arXiv 1606.08415): gelu(z) = z/2 · (1 + tanh(u)), u = sqrt(2/pi) · (z + 0.044715 z³).
// Since (1 + tanh(u)) / 2 = 1 / (1 + e^(-2u)), one exponential serves it, without cancellation for negative z.
#pragma once

#include "impl/kernels/team.h"

namespace lamina::kernels {

// gate = 1 / (1 + e^(-2u)) for u as above, and 1 - gate without cancellation where the gate is nearly 1.
template <class A, int W>
struct GeluGate {
  Pack<A, W> gate;
  Pack<A, W> complement;
};
template <class A, int W>
LAMINA_DEVICE GeluGate<A, W> gelu_gate(const Pack<A, W>& z) {
  constexpr A kMinusTwoRoot = A(-1.5957691216057307);  // -2 · sqrt(2/pi)
  const Pack<A, W> e = exponential(z * (z * z * A(0.044715) + A(1)) * kMinusTwoRoot);
  const Pack<A, W> gate = A(1) / (e + A(1));
  return {gate, select_less(e, A(1), e * gate, A(1) - gate)};
}

// output = gelu(input + bias); the input keeps its place for backward.
template <class Real>
struct BiasGeluForward {
  using Arithmetic = Real;
  std::int64_t columns;
  const Real* input;  // [rows, columns]
  const Real* bias;   // [columns]
  Real* output;       // [rows, columns]

  template <int V, class Team>
  LAMINA_DEVICE void run(Team& team, std::int64_t row) const {
    using A = Arithmetic;
    const std::int64_t start = row * columns;
    team.template each_pack<V>(columns, [&](auto at) {
      const auto z = load<A>(at, input + start) + load<A>(at, bias);
      store(at, output + start, z * gelu_gate(z).gate);
    });
  }
};

// Turns the gradient of the output into that of input + bias, in place, and writes the forward output again (the
// same exponential gives both). gelu' = p + z · p · (1 - p) · 2u', p the gate.
template <class Real>
struct BiasGeluBackward {
  using Arithmetic = Real;
  std::int64_t columns;
  const Real* input;
  const Real* bias;
  Real* gradient;
  Real* output;

  template <int V, class Team>
  LAMINA_DEVICE void run(Team& team, std::int64_t row) const {
    using A = Arithmetic;
    constexpr A kTwoRoot = A(1.5957691216057307);
    const std::int64_t start = row * columns;
    team.template each_pack<V>(columns, [&](auto at) {
      const auto z = load<A>(at, input + start) + load<A>(at, bias);
      const auto [gate, complement] = gelu_gate(z);
      const auto value = z * gate;
      const auto slope = gate + value * complement * ((z * z * A(3 * 0.044715) + A(1)) * kTwoRoot);
      store(at, gradient + start, load<A>(at, gradient + start) * slope);
      store(at, output + start, value);
    });
  }
};

}  // namespace lamina::kernels
