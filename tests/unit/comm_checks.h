// What every transport must do: checks that each rank runs with its own Transport. They throw Error with both values
// when something is wrong. Inputs are unique per rank and element, so that a message gone to the wrong place shows.
#pragma once

#include <span>
#include <string_view>

#include "impl/comm/communicator.h"

namespace lamina {

struct CommCheck {
  std::string_view name;
  void (*run)(Transport& transport);  // called on all ranks, each time with a transport whose ledger counts from 0
};

std::span<const CommCheck> comm_checks();
std::span<const CommCheck> library_checks();  // of a transport that has library collectives

}  // namespace lamina
