// libopapi: the operators that tests need, computed on the host; an operator that is not here is sought among those of aclop.
//
// Each is logged with the dtypes that reach it. A product rounds its inputs as cubeMathType says, so that the choice can be seen in
// the result, too.

#include "opapi.h"

namespace {

void insert(aclTensor& tensor, size_t before) {
  tensor.sizes.insert(tensor.sizes.begin() + before, 1);
  tensor.strides.insert(tensor.strides.begin() + before, 0);
}

// beta * c + alpha * a @ b; with a batch in front or without. A vector is a row on the left, a column on the right, as in torch.matmul.
std::function<void()> product(aclTensor a, aclTensor b, aclTensor out, int8_t cube, const aclTensor* c = nullptr, double beta = 0,
                              double alpha = 1) {
  const bool added = c != nullptr, is_row = a.sizes.size() == 1, is_column = b.sizes.size() == 1;
  if (is_row) insert(a, 0);
  if (is_column) insert(b, 1);
  if (is_column) insert(out, out.sizes.size());
  if (is_row) insert(out, out.sizes.size() - 1);
  const aclTensor extra = added ? *c : out;
  return [=] {
    const bool single = a.dtype == ACL_FLOAT;
    // as a matrix unit for float16 does
    const bool sums_in_float = a.dtype == ACL_FLOAT16 || (single && (cube == 2 || has_halves_alone()));
    auto seen = [&](double value) { return single ? as_unit_sees(value, cube) : value; };
    each(out.sizes, [&](const Sizes& i) {
      Sizes row = i, column = i;
      const size_t last = i.size() - 1;
      double sum = 0;
      for (int64_t k = 0; k < a.sizes.back(); k++) {
        row[last] = column[last - 1] = k;
        sum += seen(get(a, row)) * seen(get(b, column));
        if (sums_in_float) sum = static_cast<float>(sum);
      }
      set(out, i, alpha * sum + (added ? beta * get(extra, i) : 0));
    });
  };
}

// The dimensions that are reduced: all of them where none is named.
std::vector<bool> reduced(const aclTensor& in, const Sizes& dims) {
  std::vector<bool> found(in.sizes.size(), dims.empty());
  for (const int64_t d : dims) found[d < 0 ? d + in.sizes.size() : d] = true;
  return found;
}

// Of each group of elements that become one, what *combine* makes of them, beginning with *first*.
template <class F>
std::function<void()> fold(const aclTensor& in, const Sizes& dims, const aclTensor& out, double first, F combine, double divisor = 1) {
  return [=] {
    const std::vector<bool> gone = reduced(in, dims);
    std::vector<double> found(count(out.sizes), first);
    each(in.sizes, [&](const Sizes& i) {
      int64_t to = 0;
      for (size_t d = 0; d < i.size(); d++)
        if (!gone[d]) to = to * in.sizes[d] + i[d];
      found[to] = combine(found[to], get(in, i));
    });
    int64_t next = 0;
    each(out.sizes, [&](const Sizes& i) { set(out, i, found[next++] / divisor); });
  };
}

std::function<void()> sum(const aclTensor& in, const Sizes& dims, const aclTensor& out, bool mean) {
  const double many = mean ? static_cast<double>(count(in.sizes)) / static_cast<double>(count(out.sizes)) : 1;
  return fold(in, dims, out, 0, [](double all, double x) { return all + x; }, many);
}

// Calls a function with each row along a dimension, as the index of its first element.
template <class F>
void rows(const Sizes& sizes, int64_t dim, F&& f) {
  Sizes first = sizes;
  first[dim] = 1;
  each(first, f);
}

}  // namespace

extern "C" {

// --- arguments -----------------------------------------------------------------------------------------------------------------

aclTensor* aclCreateTensor(const int64_t* sizes, uint64_t dims, aclDataType dtype, const int64_t* strides, int64_t offset, aclFormat,
                           const int64_t*, uint64_t, void* data) {
  return new aclTensor{Sizes(sizes, sizes + dims), Sizes(strides, strides + dims), offset, dtype, static_cast<char*>(data)};
}

int aclDestroyTensor(const aclTensor* tensor) {
  delete tensor;
  return 0;
}

aclScalar* aclCreateScalar(void* value, aclDataType dtype) { return new aclScalar{load(dtype, static_cast<char*>(value))}; }

int aclDestroyScalar(const aclScalar* scalar) {
  delete scalar;
  return 0;
}

aclIntArray* aclCreateIntArray(const int64_t* values, uint64_t count) { return new aclIntArray(values, values + count); }

int aclDestroyIntArray(const aclIntArray* array) {
  delete array;
  return 0;
}

aclTensorList* aclCreateTensorList(const aclTensor* const* tensors, uint64_t count) {
  return new aclTensorList(tensors, tensors + count);
}

int aclDestroyTensorList(const aclTensorList* list) {
  for (const aclTensor* tensor : *list) delete tensor;
  delete list;
  return 0;
}

// --- products ------------------------------------------------------------------------------------------------------------------

EXECUTES(aclnnMm)(const aclTensor* a, const aclTensor* b, aclTensor* out, int8_t cube, LATER) {
  ON_MATRIX_UNIT(a, cube);
  return later(workspace, executor, product(*a, *b, *out, cube));
}

EXECUTES(aclnnMatmul)(const aclTensor* a, const aclTensor* b, aclTensor* out, int8_t cube, LATER) {
  ON_MATRIX_UNIT(a, cube);
  return later(workspace, executor, product(*a, *b, *out, cube));
}

EXECUTES(aclnnBatchMatMul)(const aclTensor* a, const aclTensor* b, aclTensor* out, int8_t cube, LATER) {
  ON_MATRIX_UNIT(a, cube);
  return later(workspace, executor, product(*a, *b, *out, cube));
}

EXECUTES(aclnnAddmm)(const aclTensor* c, const aclTensor* a, const aclTensor* b, const aclScalar* beta, const aclScalar* alpha,
                     aclTensor* out, int8_t cube, LATER) {
  ON_MATRIX_UNIT(a, cube);
  return later(workspace, executor, product(*a, *b, *out, cube, c, beta->value, alpha->value));
}

EXECUTES(aclnnMv)(const aclTensor* a, const aclTensor* b, aclTensor* out, int8_t cube, LATER) {
  ON_MATRIX_UNIT(a, cube);
  return later(workspace, executor, product(*a, *b, *out, cube));
}

EXECUTES(aclnnDot)(const aclTensor* a, const aclTensor* b, aclTensor* out, LATER) {
  OPERATOR(name(a->dtype));
  return later(workspace, executor, product(*a, *b, *out, 0));
}

// Recorded, not computed.
EXECUTES(aclnnConvolution)(const aclTensor* in, const aclTensor*, const aclTensor*, const aclIntArray*, const aclIntArray*,
                           const aclIntArray*, bool, const aclIntArray*, int64_t, aclTensor*, int8_t cube, LATER) {
  ON_MATRIX_UNIT(in, cube);
  return later(workspace, executor, [] {});
}

// --- copies and constants ------------------------------------------------------------------------------------------------------

EXECUTES(aclnnCast)(const aclTensor* in, aclDataType to, aclTensor* out, LATER) {
  OPERATOR(name(in->dtype), name(to));
  return later(workspace, executor, map(*in, *out, [](double x) { return x; }));
}

EXECUTES(aclnnInplaceCopy)(aclTensor* out, const aclTensor* in, LATER) {
  OPERATOR(name(in->dtype), name(out->dtype));
  return later(workspace, executor, map(*in, *out, [](double x) { return x; }));
}

EXECUTES(aclnnInplaceZero)(aclTensor* out, LATER) {
  OPERATOR(name(out->dtype));
  return later(workspace, executor, map(*out, *out, [](double) { return 0; }));
}

EXECUTES(aclnnInplaceOne)(aclTensor* out, LATER) {
  OPERATOR(name(out->dtype));
  return later(workspace, executor, map(*out, *out, [](double) { return 1; }));
}

EXECUTES(aclnnInplaceFillScalar)(aclTensor* out, const aclScalar* value, LATER) {
  OPERATOR(name(out->dtype), value->value);
  return later(workspace, executor, map(*out, *out, [v = value->value](double) { return v; }));
}

// The padding is named from the last dimension to the first, before and behind each.
EXECUTES(aclnnConstantPadNd)(const aclTensor* in, const aclIntArray* padding, const aclScalar* value, aclTensor* out, LATER) {
  OPERATOR(name(in->dtype), value->value);
  return later(workspace, executor, [in = *in, out = *out, padding = Sizes(*padding), v = value->value] {
    const size_t last = in.sizes.size() - 1;
    each(out.sizes, [&](Sizes i) {
      const Sizes to = i;
      bool is_inside = true;
      for (size_t d = 0; d < i.size(); d++) {
        if (const size_t before = 2 * (last - d); before < padding.size()) i[d] -= padding[before];
        is_inside = is_inside && i[d] >= 0 && i[d] < in.sizes[d];
      }
      set(out, to, is_inside ? get(in, i) : v);
    });
  });
}

EXECUTES(aclnnCat)(const aclTensorList* in, int64_t dim, aclTensor* out, LATER) {
  OPERATOR(name(out->dtype), in->size());
  if (dim < 0) dim += out->sizes.size();
  std::vector<aclTensor> parts;
  for (const aclTensor* part : *in) parts.push_back(*part);
  return later(workspace, executor, [parts, dim, out = *out] {
    int64_t before = 0;
    for (const aclTensor& part : parts) {
      each(part.sizes, [&](const Sizes& i) {
        Sizes to = i;
        to[dim] += before;
        set(out, to, get(part, i));
      });
      before += part.sizes[dim];
    }
  });
}

// --- one number at a time ------------------------------------------------------------------------------------------------------

#define BINARY(operator, expression)                                                              \
  EXECUTES(operator)(const aclTensor* a, const aclTensor* b, aclTensor* out, LATER) {             \
    OPERATOR(name(a->dtype), name(b->dtype));                                                     \
    return later(workspace, executor, map(*a, *b, *out, [](double x, double y) { return expression; })); \
  }
#define WITH_SCALAR(operator, expression)                                                         \
  EXECUTES(operator)(const aclTensor* a, const aclScalar* b, aclTensor* out, LATER) {             \
    OPERATOR(name(a->dtype), b->value);                                                           \
    return later(workspace, executor, map(*a, *out, [y = b->value](double x) { return expression; })); \
  }
#define INPLACE(operator, expression)                                                             \
  EXECUTES(operator)(aclTensor* a, const aclTensor* b, LATER) {                                   \
    OPERATOR(name(a->dtype), name(b->dtype));                                                     \
    return later(workspace, executor, map(*a, *b, *a, [](double x, double y) { return expression; })); \
  }
#define INPLACE_WITH_SCALAR(operator, expression)                                                 \
  EXECUTES(operator)(aclTensor* a, const aclScalar* b, LATER) {                                   \
    OPERATOR(name(a->dtype), b->value);                                                           \
    return later(workspace, executor, map(*a, *a, [y = b->value](double x) { return expression; })); \
  }
#define ALL_FORMS(operator, expression)                                                           \
  BINARY(aclnn##operator, expression)                                                             \
  WITH_SCALAR(aclnn##operator##s, expression)                                                     \
  INPLACE(aclnnInplace##operator, expression)                                                     \
  INPLACE_WITH_SCALAR(aclnnInplace##operator##s, expression)
#define WITH_FACTOR(operator, sign)                                                               \
  EXECUTES(aclnn##operator)(const aclTensor* a, const aclTensor* b, const aclScalar* alpha, aclTensor* out, LATER) { \
    OPERATOR(name(a->dtype), name(b->dtype));                                                     \
    return later(workspace, executor, map(*a, *b, *out, [k = sign * alpha->value](double x, double y) { return x + k * y; })); \
  }                                                                                               \
  EXECUTES(aclnn##operator##s)(const aclTensor* a, const aclScalar* b, const aclScalar* alpha, aclTensor* out, LATER) { \
    OPERATOR(name(a->dtype), b->value);                                                           \
    return later(workspace, executor, map(*a, *out, [y = sign * alpha->value * b->value](double x) { return x + y; })); \
  }                                                                                               \
  EXECUTES(aclnnInplace##operator)(aclTensor* a, const aclTensor* b, const aclScalar* alpha, LATER) { \
    OPERATOR(name(a->dtype), name(b->dtype));                                                     \
    return later(workspace, executor, map(*a, *b, *a, [k = sign * alpha->value](double x, double y) { return x + k * y; })); \
  }                                                                                               \
  EXECUTES(aclnnInplace##operator##s)(aclTensor* a, const aclScalar* b, const aclScalar* alpha, LATER) { \
    OPERATOR(name(a->dtype), b->value);                                                           \
    return later(workspace, executor, map(*a, *a, [y = sign * alpha->value * b->value](double x) { return x + y; })); \
  }
#define UNARY(operator, expression)                                                               \
  EXECUTES(aclnn##operator)(const aclTensor* a, aclTensor* out, LATER) {                          \
    OPERATOR(name(a->dtype));                                                                     \
    return later(workspace, executor, map(*a, *out, [](double x) { return expression; }));        \
  }                                                                                               \
  EXECUTES(aclnnInplace##operator)(aclTensor* a, LATER) {                                         \
    OPERATOR(name(a->dtype));                                                                     \
    return later(workspace, executor, map(*a, *a, [](double x) { return expression; }));          \
  }

WITH_FACTOR(Add, 1)
WITH_FACTOR(Sub, -1)
ALL_FORMS(Mul, x* y)
ALL_FORMS(Div, x / y)
#define COMPARISON(operator, sign)                                                                \
  BINARY(aclnn##operator##Tensor, x sign y)                                                       \
  WITH_SCALAR(aclnn##operator##Scalar, x sign y)
COMPARISON(Eq, ==)
COMPARISON(Ne, !=)
COMPARISON(Lt, <)
COMPARISON(Le, <=)
COMPARISON(Gt, >)
COMPARISON(Ge, >=)
BINARY(aclnnLogicalAnd, x && y)
BINARY(aclnnLogicalOr, x || y)
BINARY(aclnnBitwiseAndTensor, static_cast<int64_t>(x) & static_cast<int64_t>(y))
BINARY(aclnnBitwiseOrTensor, static_cast<int64_t>(x) | static_cast<int64_t>(y))
BINARY(aclnnMaximum, std::fmax(x, y))
BINARY(aclnnMinimum, std::fmin(x, y))
WITH_SCALAR(aclnnPowTensorScalar, std::pow(x, y))
INPLACE_WITH_SCALAR(aclnnInplacePowTensorScalar, std::pow(x, y))
WITH_SCALAR(aclnnClampMin, std::fmax(x, y))
WITH_SCALAR(aclnnBitwiseAndScalar, static_cast<int64_t>(x) & static_cast<int64_t>(y))
BINARY(aclnnTanhBackward, x*(1 - y * y))
BINARY(aclnnSigmoidBackward, x* y*(1 - y))
UNARY(LogicalNot, !x)
UNARY(Sigmoid, 1 / (1 + std::exp(-x)))
UNARY(Rsqrt, 1 / std::sqrt(x))
UNARY(Relu, x > 0 ? x : 0)
UNARY(Neg, -x)
UNARY(Sqrt, std::sqrt(x))
UNARY(Exp, std::exp(x))
UNARY(Log, std::log(x))
UNARY(Tanh, std::tanh(x))
UNARY(Abs, std::fabs(x))
UNARY(IsFinite, std::isfinite(x))

EXECUTES(aclnnNanToNum)(const aclTensor* in, float nan, float most, float least, aclTensor* out, LATER) {
  OPERATOR(name(in->dtype));
  return later(workspace, executor, map(*in, *out, [=](double x) { return x != x ? nan : x == INFINITY ? most : x == -INFINITY ? least : x; }));
}

EXECUTES(aclnnIsClose)(const aclTensor* a, const aclTensor* b, double relative, double absolute, bool nan, aclTensor* out, LATER) {
  OPERATOR(name(a->dtype), name(b->dtype));
  return later(workspace, executor, map(*a, *b, *out, [=](double x, double y) {
                 return x == y || std::fabs(x - y) <= absolute + relative * std::fabs(y) || (nan && x != x && y != y);
               }));
}

// --- sums ----------------------------------------------------------------------------------------------------------------------

EXECUTES(aclnnReduceSum)(const aclTensor* in, const aclIntArray* dims, bool, aclDataType dtype, aclTensor* out, LATER) {
  OPERATOR(name(in->dtype), name(dtype));
  return later(workspace, executor, sum(*in, *dims, *out, false));
}

EXECUTES(aclnnAll)(const aclTensor* in, const aclIntArray* dims, bool, aclTensor* out, LATER) {
  OPERATOR(name(in->dtype));
  return later(workspace, executor, fold(*in, *dims, *out, 1, [](double all, double x) { return all && x; }));
}

EXECUTES(aclnnAny)(const aclTensor* in, const aclIntArray* dims, bool, aclTensor* out, LATER) {
  OPERATOR(name(in->dtype));
  return later(workspace, executor, fold(*in, *dims, *out, 0, [](double any, double x) { return any || x; }));
}

EXECUTES(aclnnMax)(const aclTensor* in, aclTensor* out, LATER) {
  OPERATOR(name(in->dtype));
  return later(workspace, executor, fold(*in, {}, *out, -INFINITY, [](double most, double x) { return std::fmax(most, x); }));
}

EXECUTES(aclnnMin)(const aclTensor* in, aclTensor* out, LATER) {
  OPERATOR(name(in->dtype));
  return later(workspace, executor, fold(*in, {}, *out, INFINITY, [](double least, double x) { return std::fmin(least, x); }));
}

EXECUTES(aclnnAmax)(const aclTensor* in, const aclIntArray* dims, bool, aclTensor* out, LATER) {
  OPERATOR(name(in->dtype));
  return later(workspace, executor, fold(*in, *dims, *out, -INFINITY, [](double most, double x) { return std::fmax(most, x); }));
}

EXECUTES(aclnnSoftmax)(const aclTensor* in, int64_t dim, aclTensor* out, LATER) {
  OPERATOR(name(in->dtype));
  if (dim < 0) dim += in->sizes.size();
  return later(workspace, executor, [=, in = *in, out = *out] {
    rows(in.sizes, dim, [&](Sizes i) {
      double most = -INFINITY, total = 0;
      for (i[dim] = 0; i[dim] < in.sizes[dim]; i[dim]++) most = std::fmax(most, get(in, i));
      for (i[dim] = 0; i[dim] < in.sizes[dim]; i[dim]++) total += std::exp(get(in, i) - most);
      for (i[dim] = 0; i[dim] < in.sizes[dim]; i[dim]++) set(out, i, std::exp(get(in, i) - most) / total);
    });
  });
}

}  // extern "C"
