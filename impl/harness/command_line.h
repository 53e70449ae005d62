// The command line: `lamina run|check|show|info`.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "impl/harness/backend.h"

namespace lamina {

// Runs a command and returns the exit code (runner.h's ExitCode). Never throws: what went wrong is one line on
// `errors`. `arguments` comes without the program's name.
int run_command_line(const std::vector<std::string>& arguments, const Backend& backend, std::FILE* output,
                     std::FILE* errors);

}  // namespace lamina
