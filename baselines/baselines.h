// The ways people train today.
#pragma once

#include "impl/schedule/build.h"

namespace lamina {

extern const Method data_parallel;
extern const Method gpipe;
extern const Method one_f_one_b;
extern const Method interleaved_one_f_one_b;

}  // namespace lamina
