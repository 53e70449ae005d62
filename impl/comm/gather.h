// Texts (or bytes packed as such) of any length, to and from a group's first member: for what is said once beside the
// training, never for a step's data.
#pragma once

#include <string>
#include <vector>

#include "impl/comm/communicator.h"

namespace lamina {

// Every member's text, by its rank, on rank 0; nothing elsewhere.
std::vector<std::string> gather_on_first(Communicator& group, const std::string& mine);

// Rank 0's text, everywhere; the others' argument is not looked at.
std::string spread_from_first(Communicator& group, const std::string& text);

// All ranks of a transport as one group.
std::unique_ptr<Communicator> group_of_all(Transport& transport);

}  // namespace lamina
