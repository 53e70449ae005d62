// What a run's step should take by the closed forms, from its own measured ops and its link.
#pragma once

#include <optional>
#include <string>

#include "impl/base/real.h"
#include "impl/comm/threads.h"
#include "impl/harness/statistics.h"
#include "impl/schedule/schedule.h"
#include "impl/schedule/trace.h"

namespace lamina {

struct ClosedForm {
  std::optional<double> step_time_s;
  std::string reason;                    // why there is none
  double forward_s = 0, backward_s = 0;  // medians of a layer's passes, over all ranks and measured steps
};

// busy + bubble + boundary + exposed: the busiest rank's measured compute; what its layers would wait in the pipeline
// and for the network by impl/analysis/forms.h, with the measured medians of a layer's forward and backward pass and
// transfers timed by the link (bytes/β, and a latency for each round of a ring). The embedding's reduction comes last
// and its gather first: both are added whole. No form where the link's bandwidth is not known, where ZeRO-3 has other
// than two resident layers and a prefetch of one, and where analysis::not_covered says so.
ClosedForm closed_form_of(const Schedule& schedule, const Precision& precision, const EmulatedLink& link,
                          const Measurement& measurement, const Trace& trace, std::int64_t warmup_steps);

}  // namespace lamina
