// Errors. Inside the program everything throws; only main() ends the job.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace lamina {

// Something went wrong while running: a broken invariant, a failed system call, a dead peer. Exit code 3.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What the user asked for cannot be done: bad usage, a bad scenario, a plan that is not valid. The message is one
// line that names the key (or the option), the value and what would be accepted. Exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {
[[noreturn]] void throw_check_failed(const char* expression, const char* file, int line, const std::string& message);
}

}  // namespace lamina

// LAMINA_CHECK(condition, format, arguments…): throws Error with the expression, the place and the formatted message.
// Put both operands into the message: a check that fails must say with which values.
#define LAMINA_CHECK(condition, ...)                                                                    \
  do {                                                                                                  \
    if (!(condition)) [[unlikely]] {                                                                    \
      ::lamina::detail::throw_check_failed(#condition, __FILE__, __LINE__, ::fmt::format(__VA_ARGS__)); \
    }                                                                                                   \
  } while (false)
