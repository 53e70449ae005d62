// A schedule as text that reads back: golden files in tests, `lamina show --text`.
#pragma once

#include <string>
#include <string_view>

#include "impl/schedule/schedule.h"

namespace lamina {

std::string to_text(const Schedule& schedule);
Schedule schedule_from_text(std::string_view text);  // throws UsageError with the line number

}  // namespace lamina
