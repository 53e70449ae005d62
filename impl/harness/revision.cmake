# Writes OUTPUT, a header with the revision that is being built; touches it only when it changed. Run by every build,
# so that a revision in a result is never that of an earlier configure. Without git the revision is unknown.
set(revision "")
set(dirty false)
# The prefix is empty at the top of a repository; sources unpacked inside another's say nothing about theirs.
execute_process(COMMAND git -C "${SOURCE}" rev-parse --show-prefix
  OUTPUT_VARIABLE prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(NOT failed AND prefix STREQUAL "")
  execute_process(COMMAND git -C "${SOURCE}" rev-parse --short=12 HEAD
    OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  execute_process(COMMAND git -C "${SOURCE}" --no-optional-locks status --porcelain --untracked-files=no
    OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    set(dirty true)
  endif()
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT [[
// The revision of the sources. Written by every build.
#pragma once

namespace lamina::build {

inline constexpr const char* kRevision = "@revision@";  // empty: not built from a repository
inline constexpr bool kDirty = @dirty@;                 // tracked files differed from it

}  // namespace lamina::build
]] @ONLY)
