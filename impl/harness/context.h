// Where and with what a result was made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "impl/harness/strict_json.h"
#include "impl/model/transformer.h"

namespace lamina {

std::string version_text();  // "0.1.0 (1a2b3c4d5e6f, with local changes)"

std::vector<int> usable_cores();  // that this process may run on

// Threads that each of `ranks` ranks of this process computes with: the cores shared out, at least one.
int threads_per_rank(std::int64_t ranks);

double load_average();  // of the last minute

std::string utc_now();  // "2026-01-01T00:00:00Z"

// The result's `context`: build, host, BLAS, ranks, and those environment variables that change how a program of this
// kind runs (a list of names; the rest of the environment is nobody's business).
Json describe_context(std::int64_t ranks, const std::string& network, const BlasInfo& blas);

}  // namespace lamina
