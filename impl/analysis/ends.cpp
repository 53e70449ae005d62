#include "impl/analysis/ends.h"

namespace lamina::analysis {

double head_time(const ModelShape& model, double micro_batch, double tensor, const Rates& rates) {
  const double tokens = micro_batch * static_cast<double>(model.sequence);
  return 6 * tokens * static_cast<double>(model.hidden) * static_cast<double>(model.vocabulary) /
         (tensor * rates.flops_per_s);
}

double update_bytes_per_parameter(double moments, double width) { return (3 + 2 * moments) * width; }

EndTimes end_times(const StepPlan& plan, const ModelShape& model, const Rates& rates, const WireBytes& wire,
                   double memory_bytes_per_s) {
  const double tensor = static_cast<double>(plan.tensor);
  const double data = static_cast<double>(plan.data);
  const double vocabulary = static_cast<double>(model.vocabulary) * static_cast<double>(model.hidden) / tensor;
  EndTimes times;
  times.head_s =
      static_cast<double>(plan.micro_batches) * head_time(model, static_cast<double>(plan.micro_batch), tensor, rates);
  const auto ring = [&](double width) {
    return ring_gather_time(padded_bytes(vocabulary, width, data), data, rates.network_bytes_per_s);
  };
  times.vocabulary_s = ring(wire.gradient) + ring(plan.zero_stage == 0 ? wire.gradient : wire.parameter);
  constexpr double kAdamMoments = 2;
  constexpr double kMasterWidth = 4;
  const double layers = layer_parameters(model) / tensor * stages_of(model.layers, plan.pipeline).layers_each;
  times.update_s = update_bytes_per_parameter(kAdamMoments, kMasterWidth) * (layers + vocabulary) /
                   (plan.zero_stage == 0 ? 1 : data) / memory_bytes_per_s;
  return times;
}

}  // namespace lamina::analysis
