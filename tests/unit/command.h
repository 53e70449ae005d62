// The program's command line inside a test.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "impl/harness/command_line.h"

namespace lamina {

struct Ended {
  int code = 0;
  std::string output;
  std::string errors;
};

// All that a temporary file holds; closes it.
inline std::string drain(std::FILE* file) {
  std::string text;
  std::rewind(file);
  for (int c = 0; (c = std::fgetc(file)) != EOF;) {
    text += static_cast<char>(c);
  }
  std::fclose(file);
  return text;
}

inline Ended run_command(const std::vector<std::string>& arguments, const Backend& backend) {
  std::FILE* output = std::tmpfile();
  std::FILE* errors = std::tmpfile();
  Ended ended;
  ended.code = run_command_line(arguments, backend, output, errors);
  ended.output = drain(output);
  ended.errors = drain(errors);
  return ended;
}

// One line that says whose it is.
inline void expect_complaint(const Ended& ended, int code, const std::string& words) {
  EXPECT_EQ(ended.code, code) << ended.output;
  EXPECT_THAT(ended.errors, testing::AllOf(testing::StartsWith("lamina: "), testing::HasSubstr(words)));
  EXPECT_EQ(std::count(ended.errors.begin(), ended.errors.end(), '\n'), 1) << ended.errors;
  EXPECT_THAT(ended.output, testing::IsEmpty());
}

}  // namespace lamina
