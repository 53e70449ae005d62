// Run under an MPI launcher: the checks that every transport must pass, by real processes. Arguments: the number of
// ranks that must have been launched, the largest piece a message is cut into, and whether sends are rendezvous (0, 1),
// and what the network must be ("any": whatever the library takes).
#include <cstdio>
#include <cstdlib>

#include "impl/comm/agreement.h"
#include "impl/comm/mpi.h"
#include "tests/unit/comm_checks.h"

namespace lamina {
namespace {

void check_agreement(Transport& transport) {
  check_same_everywhere(transport, "scenario", "0123456789abcdef");
  if (transport.size() < 2) {
    return;
  }
  const int other = transport.size() - 1;
  std::string said;
  try {
    check_same_everywhere(transport, "scenario", transport.rank() == other ? "bad" : "good");
  } catch (const UsageError& error) {
    said = error.what();
  }
  const auto expected =
      fmt::format("the ranks were started with different scenarios: rank {} has bad, rank 0 has good", other);
  LAMINA_CHECK(said == expected, "said '{}', expected '{}'", said, expected);
}

int run(int ranks, std::int64_t most_piece_bytes, bool rendezvous, std::string_view network) {
  MpiOptions options;
  options.most_piece_bytes = most_piece_bytes;
  options.rendezvous = rendezvous;
  const auto transport = make_mpi_transport(options);
  try {
    LAMINA_CHECK(transport->size() == ranks, "{} ranks, expected {}", transport->size(), ranks);
    LAMINA_CHECK(network == "any" || transport->network().text() == network, "the network is {}, expected {}",
                 transport->network().text(), network);
    LAMINA_CHECK(transport->network().ranks_on_this_host == ranks, "{} ranks on this host, expected {}",
                 transport->network().ranks_on_this_host, ranks);
    LAMINA_CHECK(mpi_library_version().find("MPI") != std::string::npos, "the library calls itself '{}'",
                 mpi_library_version());
    transport->set_deadline(std::chrono::seconds(60));
    for (const auto checks : {comm_checks(), library_checks()}) {
      for (const CommCheck& check : checks) {
        transport->ledger().reset();
        try {
          check.run(*transport);
        } catch (const Error& error) {
          throw Error(fmt::format("{}: {}", check.name, error.what()));
        }
      }
    }
    check_agreement(*transport);
  } catch (const std::exception& error) {
    transport->abort(error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace lamina

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: mpi_checks RANKS MOST_PIECE_BYTES RENDEZVOUS NETWORK\n");
    return EXIT_FAILURE;
  }
  try {
    return lamina::run(std::atoi(argv[1]), std::atoll(argv[2]), std::atoi(argv[3]) != 0, argv[4]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
}
