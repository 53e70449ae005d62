// The two methods of the paper (arXiv 2106.02679) and their common hybrid order.
#pragma once

#include "impl/schedule/build.h"

namespace lamina {

extern const Method layered_accumulation;
extern const Method modular_pipeline;

}  // namespace lamina
