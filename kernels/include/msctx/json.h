// JSON between the core and Python: what the core reports is written with it, and what Python requests is read.
#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace msctx {

inline void quote(std::string& json, const std::string& text) {
  json += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
      json += escaped;
    } else {
      json += c;
    }
  }
  json += '"';
}

inline void append(std::string& json, const std::string& text) { quote(json, text); }
inline void append(std::string& json, std::integral auto value) {
  if constexpr (std::same_as<decltype(value), bool>)
    json += value ? "true" : "false";
  else
    json += std::to_string(value);
}
inline void append(std::string& json, double value) {
  char digits[32];  // the fewest that give it back
  if (std::isfinite(value))
    json.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  else
    json += "null";
}

// Names and values, one after the other: "name":value, of each.
template <class Value, class... Rest>
void members(std::string& json, const char* name, const Value& value, const Rest&... rest) {
  json += '"';
  json += name;
  json += "\":";
  append(json, value);
  json += ',';
  if constexpr (sizeof...(rest) > 0) members(json, rest...);
}

// A value that Python's json.dumps(ensure_ascii=False) wrote.
struct Json {
  std::string text;                                   // of a string, a number, true or false; empty for null
  std::vector<std::pair<std::string, Json>> members;  // of an object or, with empty names, of a list

  // Throws where the text is no JSON.
  static Json of(const char* text);
  // The member of this name, or null.
  const Json& operator[](std::string_view name) const {
    static const Json null;
    for (const auto& [known, value] : members)
      if (known == name) return value;
    return null;
  }
  const Json& at(size_t place) const { return members.at(place).second; }

  bool is_on() const { return text == "true"; }
  int64_t integer(int64_t if_null = 0) const { return read(if_null); }
  double number() const { return read(0.0); }  // 0 for null

 private:
  template <class Number>
  Number read(Number if_null) const {
    std::from_chars(text.data(), text.data() + text.size(), if_null);
    return if_null;
  }
};

struct JsonReader {
  std::string_view rest;

  char take() {
    if (rest.empty()) throw std::invalid_argument("the JSON ends too early");
    const char c = rest.front();
    rest.remove_prefix(1);
    return c;
  }
  bool has(char c) {
    while (rest.starts_with(' ')) rest.remove_prefix(1);
    const bool is_next = rest.starts_with(c);
    rest.remove_prefix(is_next);
    return is_next;
  }
  void expect(char c) {
    if (!has(c)) throw std::invalid_argument(std::string("the JSON lacks ") + c);
  }

  char escaped() {
    const char c = take();
    if (c != 'u') return c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c == 'b' ? '\b' : c == 'f' ? '\f' : c;
    int code = 0;  // of a control character: all others stand as they are
    for (int i = 0; i < 4; i++) {
      const char digit = take();
      code = 16 * code + (digit <= '9' ? digit - '0' : (digit | 32) - 'a' + 10);
    }
    return char(code);
  }
  std::string quoted() {
    std::string text;
    expect('"');
    for (char c; (c = take()) != '"';) text += c == '\\' ? escaped() : c;
    return text;
  }
  Json value() {
    Json found;
    if (const bool is_object = has('{'); is_object || has('[')) {
      for (const char end = is_object ? '}' : ']'; !has(end); has(',')) {
        const std::string name = is_object ? quoted() : "";
        if (is_object) expect(':');
        found.members.emplace_back(name, value());
      }
    } else if (rest.starts_with('"')) {
      found.text = quoted();
    } else {
      while (!rest.empty() && std::string_view(",]} ").find(rest.front()) == std::string_view::npos) found.text += take();
      if (found.text.empty()) throw std::invalid_argument("the JSON lacks a value");
      if (found.text == "null") found.text.clear();
    }
    return found;
  }
};

inline Json Json::of(const char* text) { return JsonReader{text}.value(); }

}  // namespace msctx
