// JSON for Python to read.
#include "msctx/json.h"

#include <cstdio>

namespace msctx {

void quote(std::string& json, const std::string& text) {
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

void member(std::string& json, const char* name, const std::string& value) {
  json += '"';
  json += name;
  json += "\":";
  quote(json, value);
  json += ',';
}

void number(std::string& json, const char* name, int64_t value) {
  json += std::string("\"") + name + "\":" + std::to_string(value) + ',';
}

void flag(std::string& json, const char* name, bool is_on) {
  json += std::string("\"") + name + "\":" + (is_on ? "true," : "false,");
}

}  // namespace msctx
