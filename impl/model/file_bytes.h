// Whole files in, as bytes.
#pragma once

#include <string>
#include <vector>

namespace lamina {

// Throws UsageError naming `what` ("initial weights"), the file and the system's reason.
std::vector<unsigned char> read_file(const std::string& path, const std::string& what);

}  // namespace lamina
