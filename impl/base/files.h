// Files that are either whole or not there, and streams that have taken everything.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

namespace lamina {

enum class Existing : std::uint8_t { refuse, replace };

// Writes to a temporary file beside `path`, forces it to the disk and gives it its name, so that a full disk or a
// killed process leaves what was there before. With Existing::refuse two processes cannot both succeed. Throws
// UsageError when the file exists and may not be replaced, Error with the system's reason when it cannot be written.
void write_whole_file(const std::string& path, std::string_view content, Existing existing);

// The same for content that comes piece by piece: `produce` hands each piece to the function that it is given.
using WritePiece = std::function<void(std::string_view)>;
void write_whole_file(const std::string& path, const std::function<void(const WritePiece&)>& produce,
                      Existing existing);

// Writes to a stream, all of it, now. False, or an Error, where something stayed behind (a full disk, a closed pipe).
bool written(std::FILE* stream, std::string_view text);
void print(std::FILE* stream, std::string_view text);

}  // namespace lamina
