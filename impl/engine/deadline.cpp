#include "impl/engine/deadline.h"

#include <algorithm>

#include "impl/comm/communicator.h"

namespace lamina {
namespace {

// Messages of an op that one rank has to await one after the other. A collective goes around the ring at most twice,
// and again for each workspace of chunks that its part fills.
double messages_of(const Op& op, const Plan& plan) {
  if (op.kind == OpKind::send) {
    return 1;
  }
  if (is_control(op.kind)) {
    return static_cast<double>(plan.parallel.ranks());
  }
  if (!is_collective(op.kind)) {
    return 0;
  }
  constexpr double kWidest = 8;  // bytes
  const auto ranks = static_cast<double>(plan.parallel.data);
  const double part = kWidest * static_cast<double>(op.elements) / ranks;
  return 2 * ranks * (1 + part / (static_cast<double>(Communicator::kWorkspaceBytes) / 2));
}

double seconds_on_link(const TrainRequest& request) {
  const Plan& plan = request.schedule.plan;
  double seconds = 0;
  if (request.link.latency_s > 0) {
    double messages = 0;
    for (const Program& program : request.schedule.programs) {
      for (const Op& op : program.ops) {
        messages += messages_of(op, plan);
      }
    }
    seconds += messages * request.link.latency_s;
  }
  if (request.link.bandwidth_bits_per_s > 0) {
    const double visits = static_cast<double>(3 * plan.micro_batches);
    const auto bits = 8.0 * static_cast<double>(bytes_of(request.precision.wide()));
    seconds += visits * static_cast<double>(model_parameters(plan.model)) * bits / request.link.bandwidth_bits_per_s;
  }
  return seconds;
}

}  // namespace

std::chrono::duration<double> longest_wait(const TrainRequest& request) {
  constexpr double kSlowestFlops = 5e8;
  const Plan& plan = request.schedule.plan;
  const auto parameters = static_cast<double>(model_parameters(plan.model));
  const auto tokens = static_cast<double>(plan.micro_batches * plan.micro_batch_size * plan.model.sequence);
  double seconds = 8.0 * parameters * tokens / kSlowestFlops + seconds_on_link(request);
  for (const Disturbance& disturbance : request.disturbances) {
    seconds += disturbance.sleep_s;
  }
  return std::chrono::duration<double>(std::max(10.0, 20.0 * seconds));
}

}  // namespace lamina
