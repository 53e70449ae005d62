// Do all ranks run the same thing?
#pragma once

#include <string_view>

#include "impl/comm/communicator.h"

namespace lamina {

// Called by all ranks of the transport. Throws UsageError, on all ranks alike, naming the ranks whose hash of `name`
// ("scenario", "plan") is not rank 0's. At most 64 characters of hash.
void check_same_everywhere(Transport& transport, std::string_view name, std::string_view hash);

}  // namespace lamina
