#include "impl/model/weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "impl/base/error.h"
#include "impl/base/files.h"
#include "impl/base/strict_json.h"
#include "impl/model/counter_random.h"
#include "impl/model/file_bytes.h"

namespace lamina {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

template <class Real>
void initialize_range(const ModelShape& shape, Unit unit, std::int64_t seed, std::int64_t begin, std::int64_t end,
                      Real* out) {
  std::fill(out, out + (end - begin), Real(0));
  const double residual_deviation = 0.02 / std::sqrt(2.0 * static_cast<double>(shape.layers));
  for (const TensorLayout& tensor : unit_layout(shape, unit)) {
    const std::int64_t first = std::max(begin, tensor.offset);
    const std::int64_t last = std::min(end, tensor.offset + tensor.elements);
    if (first >= last || tensor.name.ends_with(".bias")) {
      continue;
    }
    Real* const values = out + (first - begin);
    if (tensor.shape.size() == 1) {
      std::fill_n(values, last - first, Real(1));
      continue;
    }
    const double deviation = tensor.name.ends_with("c_proj.weight") ? residual_deviation : 0.02;
    const std::uint64_t key = random_key(seed, tensor.name);
    for (std::int64_t i = first; i < last; ++i) {
      const auto index = static_cast<std::uint64_t>(i - tensor.offset);
      values[i - first] = static_cast<Real>(deviation * random_normal(key, index));
    }
  }
}

template void initialize_range(const ModelShape&, Unit, std::int64_t, std::int64_t, std::int64_t, float*);
template void initialize_range(const ModelShape&, Unit, std::int64_t, std::int64_t, std::int64_t, double*);

namespace {

// The format: 8 bytes header length, a JSON header {name: {"dtype", "shape", "data_offsets": [begin, end]}}, data.
constexpr std::size_t kLengthBytes = 8;

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw UsageError(fmt::format("weights {}: {}", path, reason));
}

double from_half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 0x1F;
  const int fraction = bits & 0x3FF;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 0x1F) {
    return fraction == 0 ? sign * HUGE_VAL : std::nan("");
  }
  return exponent == 0 ? sign * std::ldexp(fraction, -24) : sign * std::ldexp(1024 + fraction, exponent - 25);
}

double from_bfloat(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

template <class Stored, class Convert>
std::vector<double> values_of(std::span<const unsigned char> bytes, Convert convert) {
  std::vector<double> values(bytes.size() / sizeof(Stored));
  for (std::size_t i = 0; i < values.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    values[i] = convert(stored);
  }
  return values;
}

std::int64_t bytes_of_type(const std::string& type) {
  if (type == "F64") {
    return 8;
  }
  if (type == "F32") {
    return 4;
  }
  return type == "F16" || type == "BF16" ? 2 : 0;
}

std::vector<double> values_of_type(const std::string& type, std::span<const unsigned char> bytes) {
  if (type == "F64") {
    return values_of<double>(bytes, [](double value) { return value; });
  }
  if (type == "F32") {
    return values_of<float>(bytes, [](float value) { return static_cast<double>(value); });
  }
  return type == "F16" ? values_of<std::uint16_t>(bytes, from_half) : values_of<std::uint16_t>(bytes, from_bfloat);
}

Json parse_header(const std::string& path, std::span<const unsigned char> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  Json header = parse_strict_json(text, fmt::format("weights {}: its header", path));
  if (!header.is_object()) {
    refuse(path, "its header is not a JSON object");
  }
  return header;
}

struct StoredTensor {
  std::string type;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  // bytes from the start of the data
  std::int64_t end = 0;
};

std::vector<std::int64_t> sizes_of(const std::string& path, const std::string& name, const Json& entry,
                                   const char* key) {
  const auto found = entry.find(key);
  if (found == entry.end() || !found->is_array()) {
    refuse(path, fmt::format("tensor \"{}\" has no list \"{}\"", name, key));
  }
  std::vector<std::int64_t> sizes;
  for (const Json& value : *found) {
    constexpr std::int64_t kLargest = std::int64_t{1} << 62;
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kLargest) {
      refuse(path, fmt::format("tensor \"{}\": {} in \"{}\" is not a size", name, value.dump(), key));
    }
    sizes.push_back(value.get<std::int64_t>());
  }
  return sizes;
}

StoredTensor stored_tensor(const std::string& path, const std::string& name, const Json& entry,
                           std::int64_t data_bytes) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string()) {
    refuse(path, fmt::format("tensor \"{}\" has no \"dtype\"", name));
  }
  StoredTensor tensor{.type = entry["dtype"].get<std::string>(), .shape = sizes_of(path, name, entry, "shape")};
  std::int64_t bytes = bytes_of_type(tensor.type);
  if (bytes == 0) {
    refuse(path, fmt::format("tensor \"{}\" is of type \"{}\"; F64, F32, F16 and BF16 are read", name, tensor.type));
  }
  for (const std::int64_t size : tensor.shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) {
      refuse(path, fmt::format("tensor \"{}\" is larger than any file", name));
    }
  }
  const std::vector<std::int64_t> offsets = sizes_of(path, name, entry, "data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes) {
    refuse(path, fmt::format("tensor \"{}\": offsets [{}] leave the {} bytes of data", name, fmt::join(offsets, ", "),
                             data_bytes));
  }
  tensor.begin = offsets[0];
  tensor.end = offsets[1];
  if (tensor.end - tensor.begin != bytes) {
    refuse(path, fmt::format("tensor \"{}\" has {} bytes, its shape [{}] of {} needs {}", name,
                             tensor.end - tensor.begin, fmt::join(tensor.shape, ", "), tensor.type, bytes));
  }
  return tensor;
}

// Tensors must cover the data without a gap or an overlap, as the format asks.
void check_coverage(const std::string& path, const std::map<std::string, StoredTensor>& tensors,
                    std::int64_t data_bytes) {
  std::vector<std::pair<std::int64_t, std::string>> order;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.begin < tensor.end) {
      order.emplace_back(tensor.begin, name);
    }
  }
  std::sort(order.begin(), order.end());
  std::int64_t reached = 0;
  for (const auto& [begin, name] : order) {
    if (begin != reached) {
      refuse(path, fmt::format("tensor \"{}\" begins at byte {} of the data, {} byte {}", name, begin,
                               begin < reached ? "inside the tensor that ends at" : "after a gap from", reached));
    }
    reached = tensors.at(name).end;
  }
  if (reached != data_bytes) {
    refuse(path, fmt::format("{} bytes of data follow the last tensor", data_bytes - reached));
  }
}

}  // namespace

std::map<std::string, NamedTensor> read_safetensors(const std::string& path) {
  const std::vector<unsigned char> bytes = read_file(path, "weights");
  std::uint64_t header_bytes = 0;
  if (bytes.size() < kLengthBytes) {
    refuse(path, fmt::format("{} bytes are too short for a safetensors file", bytes.size()));
  }
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  if (header_bytes > bytes.size() - kLengthBytes) {
    refuse(path, fmt::format("truncated: a header of {} bytes in a file of {}", header_bytes, bytes.size()));
  }
  const std::span<const unsigned char> all(bytes);
  const Json header = parse_header(path, all.subspan(kLengthBytes, header_bytes));
  const std::span<const unsigned char> data = all.subspan(kLengthBytes + header_bytes);

  std::map<std::string, StoredTensor> stored;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      stored[name] = stored_tensor(path, name, entry, std::ssize(data));
    }
  }
  check_coverage(path, stored, std::ssize(data));
  std::map<std::string, NamedTensor> tensors;
  for (const auto& [name, tensor] : stored) {
    const auto place =
        data.subspan(static_cast<std::size_t>(tensor.begin), static_cast<std::size_t>(tensor.end - tensor.begin));
    tensors[name] = {.name = name, .shape = tensor.shape, .values = values_of_type(tensor.type, place)};
  }
  return tensors;
}

namespace {

std::string safetensors_header(const std::vector<NamedTensor>& tensors, int stored_bytes) {
  Json header = Json::object();
  std::size_t offset = 0;
  for (const NamedTensor& tensor : tensors) {
    const std::size_t end = offset + tensor.values.size() * static_cast<std::size_t>(stored_bytes);
    header[tensor.name] = {
        {"dtype", stored_bytes == 8 ? "F64" : "F32"}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data begins at a multiple of 8
  return text;
}

void write_values(const WritePiece& write, const std::vector<double>& values, int stored_bytes) {
  const auto write_all = [&](const auto& numbers) {
    write({reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(numbers[0])});
  };
  if (stored_bytes == 8) {
    return write_all(values);
  }
  std::vector<float> narrowed(values.size());
  std::transform(values.begin(), values.end(), narrowed.begin(), [](double v) { return static_cast<float>(v); });
  write_all(narrowed);
}

}  // namespace

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors, int stored_bytes) {
  LAMINA_CHECK(stored_bytes == 8 || stored_bytes == 4, "{} bytes a number", stored_bytes);
  const std::string header = safetensors_header(tensors, stored_bytes);
  const std::uint64_t header_bytes = header.size();
  const auto produce = [&](const WritePiece& write) {
    write({reinterpret_cast<const char*>(&header_bytes), kLengthBytes});
    write(header);
    for (const NamedTensor& tensor : tensors) {
      write_values(write, tensor.values, stored_bytes);
    }
  };
  write_whole_file(path, produce, Existing::replace);
}

std::vector<double> unit_from_tensors(const ModelShape& shape, Unit unit,
                                      const std::map<std::string, NamedTensor>& tensors) {
  std::vector<double> values;
  for (const TensorLayout& tensor : unit_layout(shape, unit)) {
    const auto found = tensors.find(tensor.name);
    if (found == tensors.end()) {
      throw UsageError(fmt::format("weights: tensor \"{}\" is missing", tensor.name));
    }
    if (found->second.shape != tensor.shape) {
      throw UsageError(fmt::format("weights: tensor \"{}\" has shape [{}]; the model needs [{}]", tensor.name,
                                   fmt::join(found->second.shape, ", "), fmt::join(tensor.shape, ", ")));
    }
    values.insert(values.end(), found->second.values.begin(), found->second.values.end());
  }
  return values;
}

std::vector<NamedTensor> tensors_from_unit(const ModelShape& shape, Unit unit, std::span<const double> values) {
  LAMINA_CHECK(std::ssize(values) == unit_parameters(shape, unit), "{} values for {} of {} parameters", values.size(),
               name_of(unit), unit_parameters(shape, unit));
  std::vector<NamedTensor> tensors;
  for (const TensorLayout& tensor : unit_layout(shape, unit)) {
    const auto begin = values.begin() + tensor.offset;
    tensors.push_back(
        {.name = tensor.name, .shape = tensor.shape, .values = std::vector<double>(begin, begin + tensor.elements)});
  }
  return tensors;
}

}  // namespace lamina
