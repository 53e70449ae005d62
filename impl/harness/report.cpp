#include "impl/harness/report.h"

#include <unistd.h>

#include <algorithm>

#include "impl/base/error.h"
#include "impl/harness/expectations.h"

namespace lamina {
namespace {

void flatten(const Json& value, const std::string& place, std::string& lines) {
  const bool of_scalars = std::none_of(value.begin(), value.end(), [](const Json& one) { return one.is_structured(); });
  if (value.is_object() && !value.empty()) {
    for (const auto& [name, member] : value.items()) {
      flatten(member, place.empty() ? name : place + "." + name, lines);
    }
  } else if (value.is_array() && !of_scalars) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      flatten(value[i], fmt::format("{}[{}]", place, i), lines);
    }
  } else {
    lines += fmt::format("# {}: {}\n", place, value.is_string() ? value.get<std::string>() : value.dump());
  }
}

std::string cell(const Json& value, double scale, const char* format = "{:.1f}") {
  return value.is_null() ? "-" : fmt::format(fmt::runtime(format), value.get<double>() * scale);
}

std::string plan_line(const Json& run) {
  const Json& plan = run["plan"];
  const Json& parallel = plan["parallel"];
  return fmt::format(
      "# run {}: {}, {} data x {} pipeline x {} tensor ranks of {} threads, ZeRO-{}, {} micro-batches of {} in {} "
      "groups, recompute {}\n",
      run["name"].get<std::string>(), plan["method"].get<std::string>(), parallel["data"].get<std::int64_t>(),
      parallel["pipeline"].get<std::int64_t>(), parallel["tensor"].get<std::int64_t>(),
      run["threads_per_rank"].get<int>(), plan["zero_stage"].get<int>(), plan["micro_batches"].get<std::int64_t>(),
      plan["micro_batch_size"].get<std::int64_t>(), plan["groups"].get<std::int64_t>(),
      plan["recompute"].get<std::string>());
}

constexpr std::string_view kNames = "# run";
constexpr const char* kRow = "{:<{}} {:>9} {:>19} {:>11} {:>11} {:>11} {:>11} {:>10}\n";

}  // namespace

std::string header_lines(const Json& result) {
  std::string lines;
  for (const auto& [name, value] : result["scenario"].items()) {
    if (name != "runs" && name != "expect") {  // said as plans below, and as what came of them at the end
      flatten(value, name, lines);
    }
  }
  for (const Json& run : result["runs"]) {
    lines += plan_line(run);
  }
  return lines;
}

std::string table_heading(std::size_t name_width) {
  return fmt::format(fmt::runtime(kRow), kNames, name_width, "step ms", "low..high ms", "tokens/s", "exposed ms",
                     "sent MB", "memory MB", "loss");
}

std::string table_row(const Json& run, std::size_t name_width) {
  const std::string name = run["name"];
  if (run["status"] != "ok") {
    return fmt::format("{:<{}} {}: {}\n", name, name_width, run["status"].get<std::string>(),
                       run["reason"].get<std::string>());
  }
  const Json& metrics = run["metrics"];
  const Json& step = metrics["step_time_s"];
  const std::string spread = cell(step["low"], 1e3) + ".." + cell(step["high"], 1e3);
  std::string row = fmt::format(fmt::runtime(kRow), name, name_width, cell(step["median"], 1e3), spread,
                                cell(metrics["tokens_per_s"]["median"], 1, "{:.0f}"),
                                cell(metrics["exposed_communication_s"]["median"], 1e3),
                                fmt::format("{:.3f}", most_bytes_sent(metrics["traffic_bytes"]) / 1e6),
                                fmt::format("{:.3f}", most_bytes_held(metrics["peak_memory_bytes"]) / 1e6),
                                cell(metrics["loss"].back(), 1, "{:.5f}"));
  const auto skipped = metrics["skipped_steps"]["measured"].get<std::int64_t>();
  if (skipped > 0) {
    row +=
        fmt::format("# run {}: {} of {} measured steps skipped, their gradients overflowed; loss scale {} at the end\n",
                    name, skipped, step["samples"].size(), cell(metrics["loss_scale"].back(), 1, "{:g}"));
  }
  return row;
}

Reporter::Reporter(std::FILE* table, std::FILE* progress)
    : table_(table), progress_(progress), live_(isatty(fileno(progress)) == 1) {}

Reporter::~Reporter() { clear_line(); }

void Reporter::clear_line() {
  if (line_open_) {
    std::fputs("\r\033[K", progress_);
    std::fflush(progress_);
    line_open_ = false;
  }
}

void Reporter::table(const std::string& text) {
  clear_line();  // both may be the same terminal
  table_lost_ = !written(table_, text) || table_lost_;
}

void Reporter::progress(const std::string& line, bool important) {
  const auto now = std::chrono::steady_clock::now();
  if (live_) {
    std::fprintf(progress_, "\r\033[K%s", line.c_str());
    line_open_ = true;
  } else if (important || now - last_line_ >= std::chrono::seconds(10)) {
    std::fprintf(progress_, "%s\n", line.c_str());
    last_line_ = now;
  }
  std::fflush(progress_);
}

void Reporter::begin(const Json& result) {
  name_width_ = kNames.size();
  for (const Json& run : result["runs"]) {
    name_width_ = std::max(name_width_, run["name"].get<std::string>().size());
  }
  const Json& context = result["context"];
  const Json& build = context["build"];
  const std::string revision =
      build["revision"].is_null() ? "" : fmt::format(" revision {}", build["revision"].get<std::string>());
  table(fmt::format("# lamina {}{} on {}, {} cores\n", build["version"].get<std::string>(), revision,
                    context["host"]["cpu"].get<std::string>(), context["host"]["cores"].get<int>()) +
        header_lines(result) + "# time of the slowest rank; bytes: the most of any rank, 1 MB = 10^6 B\n");
}

void Reporter::calibrated(const ResolvedLink& link) {
  if (link.compute_time_s) {
    table(fmt::format("# link: {:.4g} Mbit/s (a step computes for {:.1f} ms)\n", link.link.bandwidth_bits_per_s / 1e6,
                      *link.compute_time_s * 1e3));
  }
}

void Reporter::run_begins(const std::string& name, std::size_t index, std::size_t runs) {
  run_ = fmt::format("[{}/{}] {}", index + 1, runs, name);
  progress(run_, true);
}

void Reporter::step_ended(std::int64_t step, std::int64_t steps, const StepRecord& record) {
  const double slowest = *std::max_element(record.rank_time_s.begin(), record.rank_time_s.end());
  const std::string loss = !record.has_loss              ? ""
                           : record.counted_targets == 0 ? "no target counted, "
                                                         : fmt::format("loss {:.4f}, ", record.loss);
  progress(fmt::format("{}: step {}/{}, {}{:.1f} ms", run_, step + 1, steps, loss, slowest * 1e3), false);
}

void Reporter::run_ended(const Json& run) {
  table((heading_printed_ ? "" : table_heading(name_width_)) + table_row(run, name_width_));
  heading_printed_ = true;
}

void Reporter::expectation(const Json& entry) { table("# " + describe_expectation(entry) + "\n"); }

void Reporter::warn(const std::string& message) {
  clear_line();
  std::fprintf(progress_, "warning: %s\n", message.c_str());
  std::fflush(progress_);
}

void Reporter::note(const std::string& message) { progress(message, true); }

}  // namespace lamina
