// Dynamic scaling of the loss, for gradients that fp16 would lose below its range or not hold above it.
#pragma once

#include <cmath>
#include <cstdint>

#include "impl/base/real.h"

namespace lamina {

// Every rank has one, and all go alike, because all they go by is the gradient norm, which is the same everywhere.
class LossScale {
 public:
  explicit LossScale(const Precision& precision)
      : scales_(precision.scales_loss()),
        growth_interval_(precision.growth_interval),
        value_(scales_ ? precision.loss_scale : 1.0) {}

  double value() const { return value_; }  // of the step under way

  // Whether the step must not update anything. The norm sums every rank's squares, so that one rank's overflow makes it
  // infinite or NaN on all of them: the decision is common without a message of its own.
  bool overflowed(double gradient_norm) const { return scales_ && !std::isfinite(gradient_norm); }

  void end_step(double gradient_norm) {
    if (!scales_) {
      return;
    }
    if (overflowed(gradient_norm)) {
      value_ /= 2;
      good_steps_ = 0;
    } else if (++good_steps_ == growth_interval_) {
      value_ *= 2;
      good_steps_ = 0;
    }
  }

 private:
  bool scales_;
  std::int64_t growth_interval_;
  double value_;
  std::int64_t good_steps_ = 0;  // since the last change
};

}  // namespace lamina
