#include "impl/harness/links.h"

#include <array>
#include <vector>

#include "impl/base/error.h"
#include "impl/base/nearest.h"

namespace lamina {
namespace {

// Bandwidth: the nominal rate of the standard or the vendor's data sheet, one direction. Latency: this project's
// choice of a typical value for a small message through one switch (TCP on Ethernet up to 25 Gb/s, remote direct
// memory access above and on InfiniBand, a copy kernel on NVLink); measure your own where it matters.
constexpr std::array<LinkPreset, 10> kPresets{{
    {"ethernet-1g", 1e9, 5e-5, "IEEE 802.3ab, 1 Gb/s"},
    {"ethernet-10g", 1e10, 3e-5, "IEEE 802.3ae, 10 Gb/s"},
    {"ethernet-25g", 2.5e10, 2e-5, "IEEE 802.3by, 25 Gb/s"},
    {"ethernet-100g", 1e11, 5e-6, "IEEE 802.3bj, 100 Gb/s"},
    {"ethernet-400g", 4e11, 5e-6, "IEEE 802.3bs, 400 Gb/s"},
    {"infiniband-hdr", 2e11, 2e-6, "InfiniBand HDR, 4 lanes of 50 Gb/s"},
    {"infiniband-ndr", 4e11, 2e-6, "InfiniBand NDR, 4 lanes of 100 Gb/s"},
    {"pcie-4-x16", 2.52e11, 2e-6, "PCI Express 4.0, 16 lanes of 16 GT/s with 128b/130b coding"},
    {"nvlink-a100", 2.4e12, 2e-6, "NVIDIA A100 data sheet: 600 GB/s NVLink, both directions together"},
    {"nvlink-h100", 3.6e12, 2e-6, "NVIDIA H100 data sheet: 900 GB/s NVLink, both directions together"},
}};

}  // namespace

std::span<const LinkPreset> link_presets() { return kPresets; }

const LinkPreset& link_preset(std::string_view name) {
  std::vector<std::string_view> names;
  for (const LinkPreset& preset : kPresets) {
    if (preset.name == name) {
      return preset;
    }
    names.push_back(preset.name);
  }
  throw UsageError(fmt::format("no link preset is named {}; did you mean {}?", name, nearest_name(name, names)));
}

}  // namespace lamina
