#include <cstdio>

#include "impl/harness/command_line.h"

int main(int count, char** words) {
  return lamina::run_command_line({words + 1, words + count}, lamina::real_backend(), stdout, stderr);
}
