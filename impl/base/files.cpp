#include "impl/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "impl/base/error.h"

namespace lamina {
namespace {

// An open temporary file, gone with the object unless it was given its name.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& beside) : path_(beside + ".XXXXXX") {
    descriptor_ = mkstemp(path_.data());
    if (descriptor_ < 0) {
      fail("be created");
    }
    if (fchmod(descriptor_, 0644) != 0) {  // mkstemp's own is for one user only
      const int reason = errno;
      drop();
      errno = reason;
      fail("be made readable");
    }
  }
  ~TemporaryFile() { drop(); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(std::string_view content) {
    while (!content.empty()) {
      const ssize_t written = ::write(descriptor_, content.data(), content.size());
      if (written < 0 && errno == EINTR) {
        continue;
      }
      if (written < 0) {
        fail("be written");
      }
      content.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  void reach_the_disk() {
    if (fsync(descriptor_) != 0) {
      fail("be written to the disk");
    }
  }

  void name(const std::string& path, Existing existing) {
    if (existing == Existing::refuse) {
      // A link, unlike a rename, fails when the name is taken.
      if (link(path_.c_str(), path.c_str()) != 0) {
        if (errno == EEXIST) {
          throw UsageError(fmt::format("{} exists; --force replaces it", path));
        }
        fail("be named");
      }
    } else if (rename(path_.c_str(), path.c_str()) != 0) {
      fail("be named");
    } else {
      path_.clear();
    }
    sync_folder(path);
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw Error(fmt::format("{} cannot {}: {}", path_, what, std::strerror(errno)));
  }

  // The name itself lives in the folder, which has to reach the disk too.
  static void sync_folder(const std::string& path) {
    const auto folder = std::filesystem::absolute(path).parent_path();
    const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY);
    if (descriptor >= 0) {
      fsync(descriptor);
      close(descriptor);
    }
  }

  void drop() {
    if (descriptor_ >= 0) {
      close(descriptor_);
      descriptor_ = -1;
    }
    if (!path_.empty()) {
      unlink(path_.c_str());
      path_.clear();
    }
  }

  std::string path_;
  int descriptor_ = -1;
};

}  // namespace

void write_whole_file(const std::string& path, std::string_view content, Existing existing) {
  write_whole_file(
      path, [&](const WritePiece& write) { write(content); }, existing);
}

void write_whole_file(const std::string& path, const std::function<void(const WritePiece&)>& produce,
                      Existing existing) {
  TemporaryFile file(path);
  produce([&](std::string_view piece) { file.write(piece); });
  file.reach_the_disk();
  file.name(path, existing);
}

bool written(std::FILE* stream, std::string_view text) {
  const bool taken = std::fwrite(text.data(), 1, text.size(), stream) == text.size();
  return std::fflush(stream) == 0 && taken;
}

void print(std::FILE* stream, std::string_view text) {
  if (!written(stream, text)) {
    throw Error("the output cannot be written");
  }
}

}  // namespace lamina
