// What a person sees while an experiment runs: the table on stdout, progress and warnings on stderr.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>

#include "impl/base/strict_json.h"
#include "impl/harness/prepare.h"
#include "impl/harness/result.h"

namespace lamina {

// Every resolved parameter as a line: "# model.layers: 8", and "# run layered: layered_accumulation, …" for each plan.
std::string header_lines(const Json& result);

// The table's heading, and a run's row: step time (median, spread), tokens/s, exposed communication, bytes sent and
// peak memory (the most of any rank), the last loss; or its status and reason. Units are decimal (1 MB = 10^6 bytes).
// Names take name_width characters, or more where they are longer.
std::string table_heading(std::size_t name_width);
std::string table_row(const Json& run, std::size_t name_width);

// Writes to two streams (stdout and stderr in the program); what cannot be written does not stop it. On a terminal
// progress is one line that is written over; elsewhere a line now and then.
class Reporter {
 public:
  Reporter(std::FILE* table, std::FILE* progress);
  ~Reporter();
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

  void begin(const Json& result);
  void calibrated(const ResolvedLink& link);
  void run_begins(const std::string& name, std::size_t index, std::size_t runs);
  void step_ended(std::int64_t step, std::int64_t steps, const StepRecord& record);
  void run_ended(const Json& run);
  void expectation(const Json& entry);
  void warn(const std::string& message);
  void note(const std::string& message);           // progress in words: "calibrating the link"
  bool table_lost() const { return table_lost_; }  // some of the table could not be written

 private:
  void progress(const std::string& line, bool important);
  void clear_line();
  void table(const std::string& text);

  std::FILE* table_;
  std::FILE* progress_;
  bool live_ = false;       // progress_ is a terminal
  bool line_open_ = false;  // a live line stands there
  bool heading_printed_ = false;
  bool table_lost_ = false;
  std::size_t name_width_ = 0;
  std::string run_;  // "[1/2] layered"
  std::chrono::steady_clock::time_point last_line_;
};

}  // namespace lamina
