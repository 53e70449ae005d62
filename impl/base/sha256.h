// SHA-256 (FIPS 180-4), to name the data that a run read.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lamina {

// 64 lower-case hexadecimal digits.
std::string sha256(std::span<const unsigned char> bytes);
std::string sha256(std::string_view text);

}  // namespace lamina
