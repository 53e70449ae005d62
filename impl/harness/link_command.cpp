#include "impl/harness/link_command.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "impl/analysis/cluster_file.h"
#include "impl/base/error.h"
#include "impl/base/files.h"
#include "impl/comm/network_counters.h"
#include "impl/harness/calibrate.h"
#include "impl/harness/links.h"
#include "impl/harness/processes.h"

namespace lamina {
namespace {

// A measurement, and what its messages travelled by.
struct Measured {
  LinkMeasurement link;
  std::string transport;         // "threads", "mpi"
  std::vector<RankPlace> ranks;  // of processes
  std::vector<PortBytes> ports;  // what the network interfaces of rank 0's host counted meanwhile
};

void check_files(const LinkCommandOptions& options) {
  if (!options.cluster.empty()) {
    if (!options.force) {
      throw UsageError("--cluster changes the file's network link; say so with --force");
    }
    analysis::read_cluster(options.cluster);  // throws when it is none
  }
  if (options.json.empty()) {
    return;
  }
  const std::filesystem::path folder = std::filesystem::path(options.json).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder)) {
    throw UsageError(fmt::format("--json is {}: there is no folder {}", options.json, folder.string()));
  }
  if (!options.force && std::filesystem::exists(options.json)) {
    throw UsageError(fmt::format("{} exists; --force replaces it", options.json));
  }
}

// "mpi: ob1 (vader, tcp)"; where ranks differ, all that they say.
std::string network_words(const Measured& measured) {
  std::vector<std::string> networks;
  for (const RankPlace& rank : measured.ranks) {
    if (std::find(networks.begin(), networks.end(), rank.network) == networks.end()) {
      networks.push_back(rank.network);
    }
  }
  return networks.empty() ? measured.transport : fmt::format("{}", fmt::join(networks, " and "));
}

// "# transport mpi: ob1 (vader, tcp), 4 ranks: 2 on left, 2 on right, ring collectives"
std::string transport_words(const Measured& measured) {
  std::map<std::string, int> ranks_of_host;
  for (const RankPlace& rank : measured.ranks) {
    ++ranks_of_host[rank.host];
  }
  std::vector<std::string> hosts;
  for (const auto& [host, ranks] : ranks_of_host) {
    hosts.push_back(fmt::format("{} on {}", ranks, host));
  }
  return fmt::format("# transport {}, {} ranks{}{}, {} collectives\n", network_words(measured), measured.link.ranks,
                     hosts.empty() ? "" : ": ", fmt::join(hosts, ", "), name_of(measured.link.collectives));
}

std::string port_words(const Measured& measured) {
  std::vector<std::string> words;
  for (const PortBytes& port : measured.ports) {
    if (port.sent > 0) {
      words.push_back(fmt::format("{} {:.6g} MB", port.port, static_cast<double>(port.sent) / 1e6));
    }
  }
  return words.empty() ? "" : fmt::format("# sent by rank 0's host meanwhile: {}\n", fmt::join(words, ", "));
}

Json measured_json(const Measured& measured) {
  Json document;
  document["transport"] = measured.transport;
  document.update(link_json(measured.link));
  document["places"] = Json::array();
  for (const RankPlace& rank : measured.ranks) {
    document["places"].push_back({{"host", rank.host}, {"network", rank.network}});
  }
  document["ports"] = Json::array();
  for (const PortBytes& port : measured.ports) {
    document["ports"].push_back({{"port", port.port}, {"sent", port.sent}, {"received", port.received}});
  }
  return document;
}

int report(const Measured& measured, const LinkCommandOptions& options, std::FILE* output) {
  print(output, transport_words(measured) + port_words(measured) + link_table(measured.link));
  const Existing existing = options.force ? Existing::replace : Existing::refuse;
  if (!options.json.empty()) {
    write_whole_file(options.json, measured_json(measured).dump(2) + "\n", existing);
  }
  if (!options.cluster.empty()) {
    const Json document =
        cluster_with_link(options.cluster, measured.link,
                          fmt::format("measured by lamina link over {}, {}", network_words(measured), utc_now()));
    write_whole_file(options.cluster, document.dump(2) + "\n", existing);
  }
  const bool correct = std::all_of(measured.link.samples.begin(), measured.link.samples.end(),
                                   [](const LinkSample& sample) { return sample.correct; });
  return correct ? kFine : kFailed;
}

int over_threads(LinkCommandOptions options, std::FILE* output) {
  if (options.measure.collectives != CollectiveBackend::ring) {
    throw UsageError(
        "--collectives library is for processes (mpirun -n 2 lamina link …); between threads there is no library");
  }
  if (!options.preset.empty()) {
    const LinkPreset& preset = link_preset(options.preset);
    options.link = {preset.bandwidth_bits_per_s, preset.latency_s};
  }
  check_files(options);
  constexpr int kRanks = 2;
  const int ranks = options.ranks > 0 ? options.ranks : kRanks;
  return report(
      {.link = measure_threads(ranks, options.link, options.measure), .transport = "threads", .ranks = {}, .ports = {}},
      options, output);
}

// What the ranks must have been asked alike.
std::string text_of(const LinkCommandOptions& options, int launched) {
  if (!options.preset.empty() || options.link.bandwidth_bits_per_s > 0 || options.link.latency_s > 0) {
    throw UsageError(
        "--preset, --bandwidth-bits-per-s and --latency-s emulate a link between threads; over processes "
        "the link that is there is measured");
  }
  if (options.ranks > 0 && options.ranks != launched) {
    throw UsageError(fmt::format("--ranks is {}, but the launcher started {}", options.ranks, launched));
  }
  check_sizes(options.measure);
  return fmt::format("{} {} {} {} {} {} {}", version_text(), options.measure.least_bytes, options.measure.most_bytes,
                     options.measure.seconds_a_size, name_of(options.measure.collectives), options.json,
                     options.cluster);
}

int take_part(const LinkCommandOptions& options, const Backend& backend, MpiTransport& transport, std::FILE* output,
              std::FILE* errors) {
  agree(transport, backend, "option", errors, [&] { return backend.sha256(text_of(options, transport.size())); });
  agree_on_first(transport, [&] { check_files(options); });
  Measured measured{.link = {}, .transport = "mpi", .ranks = agree_on_placement(transport).processes, .ports = {}};
  const std::vector<PortBytes> before = network_counters();
  measured.link = measure_link(transport, options.measure);
  measured.ports = counted_between(before, network_counters());
  return transport.rank() == 0 ? report(measured, options, output) : kFine;
}

}  // namespace

int link_command(LinkCommandOptions options, const Backend& backend, std::FILE* output, std::FILE* errors) {
  if (launched_with_others()) {
    return over_processes(backend, errors, [&](MpiTransport& transport) {
      return take_part(options, backend, transport, output, errors);
    });
  }
  return over_threads(std::move(options), output);
}

}  // namespace lamina
