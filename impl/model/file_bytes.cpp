#include "impl/model/file_bytes.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "impl/base/error.h"

namespace lamina {

std::vector<unsigned char> read_file(const std::string& path, const std::string& what) {
  const auto refuse = [&](int reason) {
    throw UsageError(fmt::format("{} {}: {}", what, path, std::strerror(reason)));
  };
  const auto close = [](std::FILE* file) { std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(path.c_str(), "rb"), close);
  if (!file) {
    refuse(errno);
  }
  std::vector<unsigned char> bytes;
  constexpr std::size_t kStep = std::size_t{1} << 20;
  std::size_t got = kStep;
  while (got == kStep) {
    const std::size_t before = bytes.size();
    bytes.resize(before + kStep);
    got = std::fread(bytes.data() + before, 1, kStep, file.get());
    bytes.resize(before + got);
  }
  if (std::ferror(file.get()) != 0) {
    refuse(errno);
  }
  return bytes;
}

}  // namespace lamina
