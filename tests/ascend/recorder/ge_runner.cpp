// libge_runner: what torchair hands to GE. Options and graphs are logged; a graph is refused when it is to be compiled.

#include <cstring>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "recorder.h"

namespace {

// Just enough of protobuf to read torchair's ge_ir.proto.
class Message {
 public:
  explicit Message(std::string_view bytes) : bytes_(bytes) {}

  uint64_t number() {
    uint64_t found = 0;
    for (int shift = 0;; shift += 7) {
      const unsigned char byte = bytes_.at(at_++);
      found |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) return found;
    }
  }

  bool ended() const { return at_ >= bytes_.size(); }

  // The fields of this number that have a length: texts, messages, and lists of numbers.
  std::vector<std::string_view> fields(uint64_t wanted) {
    std::vector<std::string_view> found;
    for (at_ = 0; !ended();) {
      const uint64_t tag = number();
      switch (tag & 7) {
        case 0: number(); break;
        case 1: at_ += 8; break;
        case 5: at_ += 4; break;
        default: {
          const uint64_t length = number();
          if (tag >> 3 == wanted) found.push_back(bytes_.substr(at_, length));
          at_ += length;
        }
      }
    }
    return found;
  }

 private:
  std::string_view bytes_;
  size_t at_ = 0;
};

// In a graph: its operators in order, and the shapes of its inputs.
std::string operators(std::string_view model) {
  enum { model_graph = 7, graph_op = 6, op_type = 2, op_output = 34, output_shape = 3, shape_dim = 1 };
  std::string found;
  for (const auto graph : Message(model).fields(model_graph))
    for (const auto op : Message(graph).fields(graph_op)) {
      for (const auto type : Message(op).fields(op_type)) found.append(found.empty() ? "" : " ").append(type);
      if (!found.ends_with("Data")) continue;
      for (const auto output : Message(op).fields(op_output))
        for (const auto shape : Message(output).fields(output_shape)) {
          const char* before = "[";
          for (const auto sizes : Message(shape).fields(shape_dim))
            for (Message one(sizes); !one.ended(); before = ",")
              found += before + std::to_string(static_cast<int64_t>(one.number()));
          found += *before == '[' ? "[]" : "]";
        }
    }
  return found;
}

}  // namespace

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
  recorder::log("LoadGraph", operators({static_cast<const char*>(data), size}));
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
