#include "impl/base/strict_json.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <vector>

#include "impl/base/error.h"

namespace lamina {
namespace {

constexpr std::size_t kLargestDocument = 4 << 20;
constexpr std::size_t kDeepestNesting = 32;

// Builds the document event by event, so that a key given twice is seen and every error knows its key.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const std::string& name) : name_(name) {}
  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    if (!std::isfinite(value)) {
      fail(fmt::format("{} is out of range", text));
    }
    return add(value);
  }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // JSON text holds none
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& value) override {
    Frame& frame = frames_.back();
    frame.key = value;
    if (frame.value->contains(value)) {
      throw UsageError(fmt::format("{}: {} is given twice", name_, path()));
    }
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    std::string reason = error.what();
    if (const auto at = reason.find("] "); at != std::string::npos) {
      reason.erase(0, at + 2);  // the library's own number of the error
    }
    fail(reason);
  }

 private:
  struct Frame {
    Json* value;
    std::string key;  // of the member being read, in an object
  };

  [[noreturn]] void fail(std::string reason) const {
    std::replace_if(
        reason.begin(), reason.end(), [](unsigned char c) { return c < ' '; }, ' ');
    const std::string at = path();
    throw UsageError(at.empty() ? fmt::format("{}: {}", name_, reason)
                                : fmt::format("{}: at {}: {}", name_, at, reason));
  }

  std::string path() const {
    std::string text;
    for (const Frame& frame : frames_) {
      if (frame.value->is_array()) {
        const bool inside = &frame != &frames_.back();  // the element being read is in the list already
        text += fmt::format("[{}]", frame.value->size() - (inside ? 1 : 0));
      } else if (!frame.key.empty()) {
        text += (text.empty() ? "" : ".") + frame.key;
      }
    }
    return text;
  }

  Json* place(Json value) {
    if (frames_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *frames_.back().value;
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    Json& member = parent[frames_.back().key];
    member = std::move(value);
    return &member;
  }

  bool add(Json value) {
    place(std::move(value));
    return true;
  }

  bool open(Json container) {
    if (frames_.size() == kDeepestNesting) {
      fail(fmt::format("nested deeper than {}", kDeepestNesting));
    }
    Json* value = place(std::move(container));
    frames_.push_back({value, {}});
    return true;
  }

  bool close() {
    frames_.pop_back();
    return true;
  }

  const std::string& name_;
  Json root_;
  std::vector<Frame> frames_;
};

}  // namespace

Json parse_strict_json(std::string_view text, const std::string& name) {
  if (text.starts_with("\xef\xbb\xbf")) {
    throw UsageError(fmt::format("{}: starts with a byte-order mark; save it as plain UTF-8", name));
  }
  if (const std::size_t at = text.find('\0'); at != std::string_view::npos) {  // the parser would end there
    throw UsageError(fmt::format("{}: byte {} is NUL", name, at));
  }
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    throw UsageError(fmt::format("{}: is empty", name));
  }
  Builder builder(name);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

Json read_strict_json(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  if (file) {
    text.resize(kLargestDocument + 1);
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(file.gcount()));
  }
  if (!file && !file.eof()) {
    throw UsageError(fmt::format("{}: cannot be read", path));
  }
  if (text.size() > kLargestDocument) {
    throw UsageError(fmt::format("{}: is larger than {} bytes", path, kLargestDocument));
  }
  return parse_strict_json(text, path);
}

std::string brief(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  constexpr std::size_t kLongest = 60;
  if (text.size() > kLongest) {
    text = text.substr(0, kLongest) + "...";
  }
  return text;
}

Json finite_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json text_or_null(std::string_view text) { return text.empty() ? Json(nullptr) : Json(text); }

}  // namespace lamina
