#include "impl/base/error.h"

#include <string_view>

namespace lamina::detail {

void throw_check_failed(const char* expression, const char* file, int line, const std::string& message) {
  std::string_view place = file;
  for (const std::string_view top : {"/impl/", "/baselines/", "/bench/", "/tests/"}) {
    if (const auto at = place.rfind(top); at != std::string_view::npos) {
      place.remove_prefix(at + 1);
      break;
    }
  }
  throw Error(fmt::format("{} ({} is false, {}:{})", message, expression, place, line));
}

}  // namespace lamina::detail
