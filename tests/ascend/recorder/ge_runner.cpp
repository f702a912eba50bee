// libge_runner: what torchair hands to GE. Options and graphs are logged; a graph is refused when it is to be compiled.

#include <cstring>
#include <iomanip>
#include <map>
#include <memory>
#include <vector>

#include "recorder.h"

namespace ge {

class AscendString {
 public:
  AscendString(const char* text);
  const char* GetString() const;
  bool operator<(const AscendString& other) const;
  bool operator==(const AscendString& other) const;

 private:
  std::shared_ptr<std::string> text_;
};

AscendString::AscendString(const char* text) : text_(text ? std::make_shared<std::string>(text) : nullptr) {}
const char* AscendString::GetString() const { return text_ ? text_->c_str() : ""; }
bool AscendString::operator<(const AscendString& other) const { return std::strcmp(GetString(), other.GetString()) < 0; }
bool AscendString::operator==(const AscendString& other) const { return std::strcmp(GetString(), other.GetString()) == 0; }

using Options = std::map<AscendString, AscendString>;

static void log(const char* who, const Options& options) {
  for (const auto& [key, value] : options) recorder::log(who, std::string(key.GetString()) + "=" + value.GetString());
}

uint32_t GEInitialize(const Options& options) {
  log(__func__, options);
  return recorder::fault(__func__);
}

uint32_t GEFinalize() { return recorder::called(__func__); }
std::string GEGetErrorMsg() { return "the recorder compiles no graphs"; }
AscendString GEGetErrorMsgV2() { return "the recorder compiles no graphs"; }
AscendString GEGetWarningMsgV2() { return ""; }

class GraphImpl;
class GNode {
  std::shared_ptr<int> implementation_;
};

class Graph {
 public:
  explicit Graph(const char* name);
  uint32_t LoadFromSerializedModelArray(const void* data, size_t size);
  uint32_t CopyFrom(const Graph& other);
  uint32_t SaveToFile(const char* path) const;
  std::vector<GNode> GetAllNodes() const;

 private:
  std::shared_ptr<GraphImpl> implementation_;
};

Graph::Graph(const char*) {}

uint32_t Graph::LoadFromSerializedModelArray(const void* data, size_t size) {
  std::ostringstream digits;
  digits << std::hex << std::setfill('0');
  for (size_t i = 0; i < size; i++) digits << std::setw(2) << int{static_cast<const unsigned char*>(data)[i]};
  recorder::log("LoadGraph", digits.str());
  return 0;
}

uint32_t Graph::CopyFrom(const Graph&) { return 0; }
uint32_t Graph::SaveToFile(const char*) const { return 0; }
std::vector<GNode> Graph::GetAllNodes() const { return {}; }

class Session {
 public:
  explicit Session(const Options& options);
  ~Session();
  uint32_t AddGraph(uint32_t number, const Graph& graph, const Options& options);
  uint32_t CompileGraph(uint32_t number);
  uint32_t RemoveGraph(uint32_t number);

 private:
  uint64_t number_ = 1;
};

Session::Session(const Options& options) { log("Session", options); }
Session::~Session() { recorder::log("~Session"); }

uint32_t Session::AddGraph(uint32_t, const Graph&, const Options& options) {
  log("AddGraph", options);
  return 0;
}

uint32_t Session::CompileGraph(uint32_t) {
  recorder::log("CompileGraph");
  return 1;
}

uint32_t Session::RemoveGraph(uint32_t) { return 0; }

}  // namespace ge
