// The middle of samples.
#pragma once

#include <span>

namespace lamina {

// Of at least one sample. The mean of the middle two where their number is even.
double median(std::span<const double> samples);

}  // namespace lamina
