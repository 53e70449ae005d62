// Every method that a scenario can name.
#pragma once

#include <span>
#include <string_view>

#include "impl/schedule/build.h"

namespace lamina {

std::span<const Method* const> all_methods();
const Method& method_named(std::string_view name);  // throws UsageError with the nearest known name

}  // namespace lamina
