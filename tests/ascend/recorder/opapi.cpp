// libopapi: the operators that tests need, recorded with the dtypes that reach each; nothing is computed. An operator that is not here
// is sought among those of aclop.

#include <acl/acl.h>

#include <cstdint>
#include <cstring>

#include "recorder.h"

struct aclTensor {
  aclDataType dtype;
};
struct aclScalar {};
struct aclIntArray {};
struct aclTensorList {};
struct aclOpExecutor {};

namespace {

const char* name(aclDataType dtype) {
  switch (dtype) {
    case ACL_FLOAT: return "float32";
    case ACL_FLOAT16: return "float16";
    case ACL_BF16: return "bfloat16";
    case ACL_DOUBLE: return "float64";
    case ACL_INT8: return "int8";
    case ACL_UINT8: return "uint8";
    case ACL_INT16: return "int16";
    case ACL_INT32: return "int32";
    case ACL_INT64: return "int64";
    case ACL_BOOL: return "bool";
    default: return "?";
  }
}
const char* name(const aclTensor* tensor) { return name(tensor->dtype); }

// Documented of cubeMathType: a matrix unit with float16 alone (910A, 310P) refuses float32 inputs that it may not round.
int refused(const aclTensor* in, int8_t cube) {
  static const std::string soc = recorder::setting("RECORDER_SOC", "");
  static const bool has_halves_alone =
      soc == "Ascend910A" || soc == "Ascend910B" || soc.starts_with("Ascend910P") || soc.starts_with("Ascend310P");
  return in->dtype == ACL_FLOAT && cube == 0 && has_halves_alone ? 161002 : 0;
}

std::string in_words(int8_t cube) { return "cubeMathType=" + std::to_string(cube); }

aclScalar scalar;
aclIntArray array;
aclTensorList list;
aclOpExecutor executor;

}  // namespace

extern "C" {

aclTensor* aclCreateTensor(const int64_t*, uint64_t, aclDataType dtype, const int64_t*, int64_t, aclFormat, const int64_t*, uint64_t,
                           void*) {
  return new aclTensor{dtype};
}
int aclDestroyTensor(const aclTensor* tensor) {
  delete tensor;
  return 0;
}
aclScalar* aclCreateScalar(void*, aclDataType) { return &scalar; }
int aclDestroyScalar(const aclScalar*) { return 0; }
aclIntArray* aclCreateIntArray(const int64_t*, uint64_t) { return &array; }
int aclDestroyIntArray(const aclIntArray*) { return 0; }
aclTensorList* aclCreateTensorList(const aclTensor* const* tensors, uint64_t count) {
  for (uint64_t i = 0; i < count; i++) delete tensors[i];  // the list would have
  return &list;
}
int aclDestroyTensorList(const aclTensorList*) { return 0; }

// What an operator takes, in parentheses; then what is logged of it.
#define TAKEN(...) __VA_ARGS__
#define RECORDED(operator, arguments, refusal, ...)                                        \
  int operator(void*, uint64_t, aclOpExecutor*, aclrtStream) { return 0; }                 \
  int operator##GetWorkspaceSize(TAKEN arguments, uint64_t* workspace, aclOpExecutor** made) { \
    *workspace = 0;                                                                        \
    *made = &executor;                                                                     \
    if (const int code = recorder::called(#operator, __VA_ARGS__)) return code;            \
    return refusal;                                                                        \
  }

#define TENSOR const aclTensor*
#define PRODUCT(operator, ...) RECORDED(operator, (__VA_ARGS__, int8_t cube), refused(a, cube), name(a), in_words(cube))
PRODUCT(aclnnMm, TENSOR a, TENSOR, TENSOR)
PRODUCT(aclnnMatmul, TENSOR a, TENSOR, TENSOR)
PRODUCT(aclnnBatchMatMul, TENSOR a, TENSOR, TENSOR)
PRODUCT(aclnnMv, TENSOR a, TENSOR, TENSOR)
PRODUCT(aclnnAddmm, TENSOR, TENSOR a, TENSOR, const aclScalar*, const aclScalar*, TENSOR)
PRODUCT(aclnnConvolution, TENSOR a, TENSOR, TENSOR, const aclIntArray*, const aclIntArray*, const aclIntArray*, bool,
        const aclIntArray*, int64_t, TENSOR)

#define OF_ONE(operator, ...) RECORDED(operator, (TENSOR a, __VA_ARGS__), 0, name(a))
#define OF_TWO(operator, ...) RECORDED(operator, (TENSOR a, TENSOR b, __VA_ARGS__), 0, name(a), name(b))
OF_ONE(aclnnDot, TENSOR, TENSOR)
OF_ONE(aclnnConstantPadNd, const aclIntArray*, const aclScalar*, TENSOR)
OF_ONE(aclnnInplaceFillScalar, const aclScalar*)
OF_ONE(aclnnNanToNum, float, float, float, TENSOR)
OF_TWO(aclnnIsClose, double, double, bool, TENSOR)
RECORDED(aclnnInplaceZero, (TENSOR a), 0, name(a))
RECORDED(aclnnInplaceOne, (TENSOR a), 0, name(a))
RECORDED(aclnnInplaceCopy, (TENSOR to, TENSOR a), 0, name(a), name(to))
RECORDED(aclnnCast, (TENSOR a, aclDataType to, TENSOR), 0, name(a), name(to))
RECORDED(aclnnCat, (const aclTensorList*, int64_t, TENSOR out), 0, name(out))

#define BINARY(operator) OF_TWO(operator, TENSOR)
#define WITH_SCALAR(operator) OF_ONE(operator, const aclScalar*, TENSOR)
#define IN_PLACE(operator) RECORDED(operator, (TENSOR a, TENSOR b), 0, name(a), name(b))
#define IN_PLACE_WITH_SCALAR(operator) OF_ONE(operator, const aclScalar*)
#define ALL_FORMS(operator)    \
  BINARY(aclnn##operator)      \
  WITH_SCALAR(aclnn##operator##s) \
  IN_PLACE(aclnnInplace##operator) \
  IN_PLACE_WITH_SCALAR(aclnnInplace##operator##s)
#define WITH_FACTOR(operator)                                          \
  OF_TWO(aclnn##operator, const aclScalar*, TENSOR)                    \
  OF_ONE(aclnn##operator##s, const aclScalar*, const aclScalar*, TENSOR) \
  OF_TWO(aclnnInplace##operator, const aclScalar*)                     \
  OF_ONE(aclnnInplace##operator##s, const aclScalar*, const aclScalar*)
#define COMPARISON(operator)       \
  BINARY(aclnn##operator##Tensor)  \
  WITH_SCALAR(aclnn##operator##Scalar)
#define UNARY(operator)            \
  OF_ONE(aclnn##operator, TENSOR)  \
  RECORDED(aclnnInplace##operator, (TENSOR a), 0, name(a))

WITH_FACTOR(Add)
WITH_FACTOR(Sub)
ALL_FORMS(Mul)
ALL_FORMS(Div)
COMPARISON(Eq)
COMPARISON(Ne)
COMPARISON(Lt)
COMPARISON(Le)
COMPARISON(Gt)
COMPARISON(Ge)
COMPARISON(BitwiseAnd)
BINARY(aclnnLogicalAnd)
BINARY(aclnnLogicalOr)
BINARY(aclnnBitwiseOrTensor)
BINARY(aclnnMaximum)
BINARY(aclnnMinimum)
BINARY(aclnnTanhBackward)
BINARY(aclnnSigmoidBackward)
WITH_SCALAR(aclnnPowTensorScalar)
WITH_SCALAR(aclnnClampMin)
IN_PLACE_WITH_SCALAR(aclnnInplacePowTensorScalar)
UNARY(LogicalNot)
UNARY(Sigmoid)
UNARY(Rsqrt)
UNARY(Relu)
UNARY(Neg)
UNARY(Sqrt)
UNARY(Exp)
UNARY(Log)
UNARY(Tanh)
UNARY(Abs)
UNARY(IsFinite)

RECORDED(aclnnReduceSum, (TENSOR a, const aclIntArray*, bool, aclDataType to, TENSOR), 0, name(a), name(to))
OF_ONE(aclnnAll, const aclIntArray*, bool, TENSOR)
OF_ONE(aclnnAny, const aclIntArray*, bool, TENSOR)
OF_ONE(aclnnAmax, const aclIntArray*, bool, TENSOR)
OF_ONE(aclnnMax, TENSOR)
OF_ONE(aclnnMin, TENSOR)
OF_ONE(aclnnSoftmax, int64_t, TENSOR)

}  // extern "C"
