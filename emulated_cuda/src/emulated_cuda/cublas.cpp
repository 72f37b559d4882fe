// Replacement for libcublas.so.13, whose kernels are machine code: BLAS on the host, on the memory of emulated devices.
//
// A function enqueues its work on the stream of its handle, as cuBLAS does, so operands are read when the stream
// reaches it. Functions that this file does not define return CUBLAS_STATUS_NOT_SUPPORTED; libraries.py generates them.
#include <map>
#include <mutex>

#include <library_types.h>

#include "blas.h"

namespace emulated {
namespace {

// Values and names from NVIDIA's documentation.
enum cublasStatus_t {
  CUBLAS_STATUS_SUCCESS = 0,
  CUBLAS_STATUS_NOT_INITIALIZED = 1,
  CUBLAS_STATUS_INVALID_VALUE = 7,
  CUBLAS_STATUS_EXECUTION_FAILED = 13,
  CUBLAS_STATUS_NOT_SUPPORTED = 15,
};
enum cublasPointerMode_t { CUBLAS_POINTER_MODE_HOST, CUBLAS_POINTER_MODE_DEVICE };
enum cublasFillMode_t { CUBLAS_FILL_MODE_LOWER, CUBLAS_FILL_MODE_UPPER };
enum cublasSideMode_t { CUBLAS_SIDE_LEFT, CUBLAS_SIDE_RIGHT };
enum cublasComputeType_t {
  CUBLAS_COMPUTE_16F = 64,
  CUBLAS_COMPUTE_16F_PEDANTIC = 65,
  CUBLAS_COMPUTE_32F = 68,
  CUBLAS_COMPUTE_32F_PEDANTIC = 69,
  CUBLAS_COMPUTE_64F = 70,
  CUBLAS_COMPUTE_64F_PEDANTIC = 71,
  CUBLAS_COMPUTE_32I = 72,
  CUBLAS_COMPUTE_32I_PEDANTIC = 73,
  CUBLAS_COMPUTE_32F_FAST_16F = 74,
  CUBLAS_COMPUTE_32F_FAST_16BF = 75,
  CUBLAS_COMPUTE_32F_FAST_TF32 = 77,
};
constexpr int kVersion = 130000;

// The state of a cuBLAS handle.
struct Context {
  int device = 0;
  cudaStream_t stream = nullptr;
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
  int math_mode = 0;  // stored for cublasGetMathMode; no mode lowers the precision
};
using cublasHandle_t = void*;

std::mutex mutex;
std::map<cublasHandle_t, Context> contexts;

// One library call: validates arguments, and enqueues work. After the first error, further steps do nothing.
class Call {
 public:
  Call(cublasHandle_t handle, const char* function) : function_(function) {
    const std::lock_guard guard(mutex);
    const auto found = contexts.find(handle);
    if (found == contexts.end()) status_ = CUBLAS_STATUS_NOT_INITIALIZED;
    else context_ = found->second;
  }

  // Requires a condition; if it does not hold, the call returns INVALID_VALUE.
  Call& Need(bool holds, const char* rule) {
    if (!holds) Refuse(CUBLAS_STATUS_INVALID_VALUE, rule);
    return *this;
  }
  // Makes the call fail with a status, explained on standard error.
  cublasStatus_t Refuse(cublasStatus_t status, const std::string& why) {
    if (status_ == CUBLAS_STATUS_SUCCESS) {
      status_ = status;
      Explain(function_ + ": " + why);
    }
    return status_;
  }

  // A scalar argument, according to the pointer mode.
  template <class T> Factor<T> FactorOf(const T* pointer) const {
    if (context_.pointer_mode == CUBLAS_POINTER_MODE_DEVICE) return {T{}, pointer};
    return {status_ == CUBLAS_STATUS_SUCCESS ? *pointer : T{}, nullptr};
  }

  // Enqueues body(Access&).
  template <class Body> cublasStatus_t Run(Body body) {
    if (status_ != CUBLAS_STATUS_SUCCESS) return status_;
    return Status(schedule.Enqueue(context_.stream, context_.device, Checked(function_, context_.device, body)));
  }

  // Stores the number that body(Access&) returns: in device memory in stream order, or (pointer mode HOST) in host
  // memory before this function returns.
  template <class T, class Body> cublasStatus_t Return(T* result, Body body) {
    if (context_.pointer_mode == CUBLAS_POINTER_MODE_DEVICE)
      return Run([=](Access& access) { access.WriteOne<T>(result, body(access), "result"); });
    if (status_ != CUBLAS_STATUS_SUCCESS) return status_;
    const auto store = [=](Access& access) { *result = body(access); };
    return Status(schedule.RunNow(context_.stream, context_.device, Checked(function_, context_.device, store)));
  }

 private:
  cublasStatus_t Status(cudaError_t error) {
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : Refuse(CUBLAS_STATUS_EXECUTION_FAILED, ErrorText(error));
  }

  std::string function_;
  Context context_;
  cublasStatus_t status_ = CUBLAS_STATUS_SUCCESS;
};

// Applies a change to the state of a handle.
template <class Change> cublasStatus_t Configure(cublasHandle_t handle, Change change) {
  const std::lock_guard guard(mutex);
  const auto found = contexts.find(handle);
  if (found == contexts.end()) return CUBLAS_STATUS_NOT_INITIALIZED;
  change(found->second);
  return CUBLAS_STATUS_SUCCESS;
}

// ---------------------------------------------------------------- vectors

template <class T> Vector<T> VectorOf(T* data, int size, int step, const char* name) {
  return {data, size, step, name};
}

// amax, amin: the 1-based index of the first element with the extreme magnitude; 0 for an empty vector.
template <class T, class Better>
cublasStatus_t Extreme(Call call, int n, const T* x, int incx, int* result, Better better) {
  return call.Return(result, [=](Access& access) {
    const auto values = VectorOf(x, incx > 0 ? n : 0, incx, "x").Read(access);
    size_t best = 0;
    for (size_t k = 1; k < values.size(); ++k)
      if (better(Magnitude(values[k]), Magnitude(values[best]))) best = k;
    return values.empty() ? 0 : static_cast<int>(best + 1);
  });
}

// asum.
template <class T> cublasStatus_t SumOfMagnitudes(Call call, int n, const T* x, int incx, Real<T>* result) {
  return call.Return(result, [=](Access& access) {
    Real<T> sum = 0;
    for (const T& value : VectorOf(x, incx > 0 ? n : 0, incx, "x").Read(access)) sum += Magnitude(value);
    return sum;
  });
}

// nrm2, accumulated in long double, in which squares neither overflow nor underflow.
template <class T> cublasStatus_t Norm(Call call, int n, const T* x, int incx, Real<T>* result) {
  return call.Return(result, [=](Access& access) {
    long double sum = 0;
    for (const T& value : VectorOf(x, incx > 0 ? n : 0, incx, "x").Read(access)) {
      const std::complex<long double> wide(value);
      sum += wide.real() * wide.real() + wide.imag() * wide.imag();
    }
    return static_cast<Real<T>>(std::sqrt(sum));
  });
}

// dot, dotu, dotc.
template <class T>
cublasStatus_t Dot(Call call, int n, const T* x, int incx, const T* y, int incy, T* result, bool conjugated) {
  return call.Return(result, [=](Access& access) {
    const auto left = VectorOf(x, n, incx, "x").Read(access), right = VectorOf(y, n, incy, "y").Read(access);
    T sum{};
    for (size_t k = 0; k < left.size(); ++k) sum += (conjugated ? Conjugate(left[k]) : left[k]) * right[k];
    return sum;
  });
}

// axpy: y = alpha * x + y.
template <class T> cublasStatus_t Axpy(Call call, int n, const T* alpha, const T* x, int incx, T* y, int incy) {
  return call.Run([=, factor = call.FactorOf(alpha)](Access& access) {
    const T by = factor.In(access, "alpha");
    if (by == T(0)) return;
    auto sum = VectorOf(y, n, incy, "y").Read(access);
    AddScaled(sum, by, VectorOf(x, n, incx, "x").Read(access));
    VectorOf(y, n, incy, "y").Write(access, sum);
  });
}

// scal: x = alpha * x.
template <class T, class By> cublasStatus_t Scale(Call call, int n, const By* alpha, T* x, int incx) {
  return call.Run([=, factor = call.FactorOf(alpha)](Access& access) {
    const By by = factor.In(access, "alpha");
    const auto vector = VectorOf(x, incx > 0 ? n : 0, incx, "x");
    auto values = vector.Read(access);
    for (T& value : values) value *= by;
    vector.Write(access, values);
  });
}

// ---------------------------------------------------------------- matrix and vectors

// gemv: y = alpha * op(A) * x + beta * y.
template <class T>
cublasStatus_t Gemv(Call call, cublasOperation_t operation, int m, int n, const T* alpha, const T* a, int lda,
                    const T* x, int incx, const T* beta, T* y, int incy) {
  call.Need(m >= 0 && n >= 0, "a size is negative").Need(lda >= std::max(1, m), "lda is less than the rows of A");
  call.Need(incx != 0 && incy != 0, "an increment is zero");
  const int rows = operation == CUBLAS_OP_N ? m : n, columns = operation == CUBLAS_OP_N ? n : m;
  return call.Run([=, by = call.FactorOf(alpha), of_y = call.FactorOf(beta)](Access& access) {
    if (m == 0 || n == 0) return;  // BLAS returns without scaling y by beta
    const T factor = by.In(access, "alpha"), factor_y = of_y.In(access, "beta");
    const Vector<T> result = VectorOf(y, rows, incy, "y");
    std::vector<T> sum(static_cast<size_t>(rows));
    if (factor != T(0)) {
      const auto matrix = Matrix<const T>{a, m, n, lda, "A"}.template Read<T>(access, operation);
      AddProduct(sum, matrix, VectorOf(x, columns, incx, "x").Read(access), rows, 1, columns);
      for (T& value : sum) value *= factor;
    }
    if (factor_y != T(0)) AddScaled(sum, factor_y, result.Read(access));
    result.Write(access, sum);
  });
}

// ger, geru, gerc: A = alpha * x * y^T + A, or with the conjugate of y.
template <class T>
cublasStatus_t Ger(Call call, int m, int n, const T* alpha, const T* x, int incx, const T* y, int incy, T* a, int lda,
                   bool conjugated) {
  call.Need(m >= 0 && n >= 0, "a size is negative").Need(lda >= std::max(1, m), "lda is less than the rows of A");
  call.Need(incx != 0 && incy != 0, "an increment is zero");
  return call.Run([=, by = call.FactorOf(alpha)](Access& access) {
    const T factor = by.In(access, "alpha");
    if (factor == T(0) || m == 0 || n == 0) return;
    const Matrix<T> matrix{a, m, n, lda, "A"};
    const auto column = VectorOf(x, m, incx, "x").Read(access);
    auto row = VectorOf(y, n, incy, "y").Read(access);
    for (T& value : row) value = factor * (conjugated ? Conjugate(value) : value);
    auto sum = matrix.template Read<T>(access);
    AddProduct(sum, column, row, m, n, 1);
    matrix.Write(access, sum);
  });
}

// ---------------------------------------------------------------- matrices

// Arguments that all forms of gemm have; `count` is the batch size.
struct Shape {
  cublasOperation_t operation_a, operation_b;
  int m, n, k, lda, ldb, ldc, count;

  void Check(Call& call) const {
    call.Need(m >= 0 && n >= 0 && k >= 0 && count >= 0, "a size is negative");
    call.Need(lda >= std::max(1, operation_a == CUBLAS_OP_N ? m : k), "lda is less than the rows of A");
    call.Need(ldb >= std::max(1, operation_b == CUBLAS_OP_N ? k : n), "ldb is less than the rows of B");
    call.Need(ldc >= std::max(1, m), "ldc is less than the rows of C");
  }
};

// The matrices of one batch entry.
template <class In, class Out> struct Operands {
  const In *a, *b;
  Out* c;
};

// gemm, for each entry of a batch; places(access, entry) returns its matrices.
template <class In, class Out, class Sum, class Scalar, class Places>
cublasStatus_t Gemm(Call call, Shape shape, const Scalar* alpha, const Scalar* beta, Places places) {
  shape.Check(call);
  return call.Run([=, by = call.FactorOf(alpha), of_c = call.FactorOf(beta)](Access& access) {
    const Sum factor = Converted<Sum>(by.In(access, "alpha")), factor_c = Converted<Sum>(of_c.In(access, "beta"));
    if (shape.m == 0 || shape.n == 0) return;  // BLAS returns before it reads any matrix
    for (int entry = 0; entry < shape.count; ++entry) {
      const Operands<In, Out> of = places(access, entry);
      Product<In, Out, Sum>{shape.operation_a, shape.operation_b,
                            Stored(of.a, shape.operation_a, shape.m, shape.k, shape.lda, "A"),
                            Stored(of.b, shape.operation_b, shape.k, shape.n, shape.ldb, "B"),
                            {of.c, shape.m, shape.n, shape.ldc, "C"}, shape.k}
          .Run(access, factor, factor_c);
    }
  });
}

// Batch entries at a fixed distance (gemmStridedBatched), in elements.
template <class In, class Out>
auto Strided(const In* a, int64_t step_a, const In* b, int64_t step_b, Out* c, int64_t step_c) {
  return [=](Access&, int64_t entry) {
    return Operands<In, Out>{a + entry * step_a, b + entry * step_b, c + entry * step_c};
  };
}

// Batch entries given by arrays of pointers in device memory (gemmBatched).
template <class T> auto Listed(const T* const* a, const T* const* b, T* const* c) {
  return [=](Access& access, int entry) {
    return Operands<T, T>{access.ReadOne(a + entry, "Aarray"), access.ReadOne(b + entry, "Barray"),
                          access.ReadOne(c + entry, "Carray")};
  };
}

// Arguments of cublasGemmEx and the like, whose element types are given at run time.
struct Untyped {
  Shape shape;
  const void *alpha, *beta, *a, *b;
  void* c;
  cudaDataType type_a, type_b, type_c;
  int64_t step_a, step_b, step_c;

  bool Are(cudaDataType in, cudaDataType out) const { return type_a == in && type_b == in && type_c == out; }

  template <class In, class Out, class Sum, class Scalar = Sum> cublasStatus_t Typed(Call call) const {
    const auto places = Strided(static_cast<const In*>(a), step_a, static_cast<const In*>(b), step_b,
                                static_cast<Out*>(c), step_c);
    return Gemm<In, Out, Sum>(call, shape, static_cast<const Scalar*>(alpha), static_cast<const Scalar*>(beta), places);
  }
};

// gemm with sums in float or complex float.
cublasStatus_t GemmInSingle(Call call, const Untyped& of) {
  if (of.Are(CUDA_R_32F, CUDA_R_32F)) return of.Typed<float, float, float>(call);
  if (of.Are(CUDA_R_16F, CUDA_R_16F)) return of.Typed<f16, f16, float>(call);
  if (of.Are(CUDA_R_16F, CUDA_R_32F)) return of.Typed<f16, float, float>(call);
  if (of.Are(CUDA_R_16BF, CUDA_R_16BF)) return of.Typed<bf16, bf16, float>(call);
  if (of.Are(CUDA_R_16BF, CUDA_R_32F)) return of.Typed<bf16, float, float>(call);
  if (of.Are(CUDA_R_8I, CUDA_R_32F)) return of.Typed<int8_t, float, float>(call);
  if (of.Are(CUDA_C_32F, CUDA_C_32F)) return of.Typed<c32, c32, c32>(call);
  return call.Refuse(CUBLAS_STATUS_NOT_SUPPORTED, "these types of A, B and C are not emulated");
}

// gemm for a compute type.
cublasStatus_t GemmEx(Call call, const Untyped& of, cublasComputeType_t compute) {
  switch (compute) {
    case CUBLAS_COMPUTE_16F: case CUBLAS_COMPUTE_16F_PEDANTIC:
      if (of.Are(CUDA_R_16F, CUDA_R_16F)) return of.Typed<f16, f16, float, f16>(call);
      break;
    case CUBLAS_COMPUTE_32I: case CUBLAS_COMPUTE_32I_PEDANTIC:
      if (of.Are(CUDA_R_8I, CUDA_R_32I)) return of.Typed<int8_t, int32_t, int32_t>(call);
      break;
    case CUBLAS_COMPUTE_64F: case CUBLAS_COMPUTE_64F_PEDANTIC:
      if (of.Are(CUDA_R_64F, CUDA_R_64F)) return of.Typed<double, double, double>(call);
      if (of.Are(CUDA_C_64F, CUDA_C_64F)) return of.Typed<c64, c64, c64>(call);
      break;
    case CUBLAS_COMPUTE_32F: case CUBLAS_COMPUTE_32F_PEDANTIC: case CUBLAS_COMPUTE_32F_FAST_16F:
    case CUBLAS_COMPUTE_32F_FAST_16BF: case CUBLAS_COMPUTE_32F_FAST_TF32:
      return GemmInSingle(call, of);
  }
  return call.Refuse(CUBLAS_STATUS_NOT_SUPPORTED, "this type to compute in is not emulated for these matrices");
}

// geam: C = alpha * op(A) + beta * op(B).
template <class T>
cublasStatus_t Geam(Call call, cublasOperation_t operation_a, cublasOperation_t operation_b, int m, int n,
                    const T* alpha, const T* a, int lda, const T* beta, const T* b, int ldb, T* c, int ldc) {
  call.Need(m >= 0 && n >= 0, "a size is negative").Need(ldc >= std::max(1, m), "ldc is less than the rows of C");
  call.Need(lda >= std::max(1, operation_a == CUBLAS_OP_N ? m : n), "lda is less than the rows of A");
  call.Need(ldb >= std::max(1, operation_b == CUBLAS_OP_N ? m : n), "ldb is less than the rows of B");
  return call.Run([=, by_a = call.FactorOf(alpha), by_b = call.FactorOf(beta)](Access& access) {
    const T factor_a = by_a.In(access, "alpha"), factor_b = by_b.In(access, "beta");
    std::vector<T> sum(static_cast<size_t>(m) * n);
    if (factor_a != T(0))
      AddScaled(sum, factor_a, Stored(a, operation_a, m, n, lda, "A").template Read<T>(access, operation_a));
    if (factor_b != T(0))
      AddScaled(sum, factor_b, Stored(b, operation_b, m, n, ldb, "B").template Read<T>(access, operation_b));
    Matrix<T>{c, m, n, ldc, "C"}.Write(access, sum);
  });
}

// dgmm: C = diag(x) * A, or A * diag(x).
template <class T>
cublasStatus_t Dgmm(Call call, cublasSideMode_t side, int m, int n, const T* a, int lda, const T* x, int incx, T* c,
                    int ldc) {
  call.Need(m >= 0 && n >= 0, "a size is negative").Need(ldc >= std::max(1, m), "ldc is less than the rows of C");
  call.Need(lda >= std::max(1, m), "lda is less than the rows of A");
  return call.Run([=](Access& access) {
    const auto diagonal = VectorOf(x, side == CUBLAS_SIDE_LEFT ? m : n, incx, "x").Read(access);
    auto product = Matrix<const T>{a, m, n, lda, "A"}.template Read<T>(access);
    for (int j = 0; j < n; ++j)
      for (int i = 0; i < m; ++i) product[int64_t{j} * m + i] *= diagonal[side == CUBLAS_SIDE_LEFT ? i : j];
    Matrix<T>{c, m, n, ldc, "C"}.Write(access, product);
  });
}

// syrk: C = alpha * op(A) * op(A)^T + beta * C; only one triangle of C is read and written.
template <class T>
cublasStatus_t Syrk(Call call, cublasFillMode_t part, cublasOperation_t operation, int n, int k, const T* alpha,
                    const T* a, int lda, const T* beta, T* c, int ldc) {
  call.Need(n >= 0 && k >= 0, "a size is negative").Need(ldc >= std::max(1, n), "ldc is less than the rows of C");
  call.Need(lda >= std::max(1, operation == CUBLAS_OP_N ? n : k), "lda is less than the rows of A");
  call.Need(!kIsComplex<T> || operation != CUBLAS_OP_C, "a conjugate is none of a symmetric product");
  return call.Run([=, by = call.FactorOf(alpha), of_c = call.FactorOf(beta)](Access& access) {
    const T factor = by.In(access, "alpha"), factor_c = of_c.In(access, "beta");
    std::vector<T> sum(static_cast<size_t>(n) * n);
    if (factor != T(0) && k != 0) {
      const auto matrix = Stored(a, operation, n, k, lda, "A");
      const auto other_way = operation == CUBLAS_OP_N ? CUBLAS_OP_T : CUBLAS_OP_N;
      AddProduct(sum, matrix.template Read<T>(access, operation), matrix.template Read<T>(access, other_way), n, n, k);
      for (T& value : sum) value *= factor;
    }
    for (int j = 0; j < n; ++j) {
      const int first = part == CUBLAS_FILL_MODE_LOWER ? j : 0, last = part == CUBLAS_FILL_MODE_LOWER ? n : j + 1;
      T* column = sum.data() + int64_t{j} * n;
      const Vector<T> before{c + int64_t{j} * ldc + first, last - first, 1, "C"};
      if (factor_c != T(0)) {
        const auto values = before.Read(access);
        for (int i = first; i < last; ++i) column[i] += factor_c * values[i - first];
      }
      before.Write(access, {column + first, column + last});
    }
  });
}
}  // namespace

extern "C" {

// ---------------------------------------------------------------- handles

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  MakeContext();
  const std::lock_guard guard(mutex);
  static uintptr_t made = 0;
  *handle = reinterpret_cast<cublasHandle_t>(++made * 64);
  contexts[*handle].device = CurrentDevice();
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  const std::lock_guard guard(mutex);
  return contexts.erase(handle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}
cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
  *version = kVersion;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  return Configure(handle, [=](Context& context) { context.stream = stream; });
}
cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t* stream) {
  return Configure(handle, [=](Context& context) { *stream = context.stream; });
}
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  return Configure(handle, [=](Context& context) { context.pointer_mode = mode; });
}
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t* mode) {
  return Configure(handle, [=](Context& context) { *mode = context.pointer_mode; });
}
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, int mode) {
  return Configure(handle, [=](Context& context) { context.math_mode = mode; });
}
cublasStatus_t cublasGetMathMode(cublasHandle_t handle, int* mode) {
  return Configure(handle, [=](Context& context) { *mode = context.math_mode; });
}

// ---------------------------------------------------------------- level 1

#define FOR_REAL_AND_COMPLEX(define) define(S, float) define(D, double) define(C, c32) define(Z, c64)

#define LEVEL_1(letter, T)                                                                                            \
  cublasStatus_t cublas##letter##axpy_v2(cublasHandle_t handle, int n, const T* alpha, const T* x, int incx, T* y,    \
                                         int incy) {                                                                  \
    return Axpy(Call(handle, "cublas" #letter "axpy"), n, alpha, x, incx, y, incy);                                   \
  }                                                                                                                   \
  cublasStatus_t cublas##letter##scal_v2(cublasHandle_t handle, int n, const T* alpha, T* x, int incx) {              \
    return Scale(Call(handle, "cublas" #letter "scal"), n, alpha, x, incx);                                           \
  }
FOR_REAL_AND_COMPLEX(LEVEL_1)

#define EXTREMES(letter, T)                                                                                           \
  cublasStatus_t cublasI##letter##amax_v2(cublasHandle_t handle, int n, const T* x, int incx, int* result) {          \
    return Extreme(Call(handle, "cublasI" #letter "amax"), n, x, incx, result, std::greater<Real<T>>());              \
  }                                                                                                                   \
  cublasStatus_t cublasI##letter##amin_v2(cublasHandle_t handle, int n, const T* x, int incx, int* result) {          \
    return Extreme(Call(handle, "cublasI" #letter "amin"), n, x, incx, result, std::less<Real<T>>());                 \
  }
EXTREMES(s, float)
EXTREMES(d, double)
EXTREMES(c, c32)
EXTREMES(z, c64)

#define NORMS(letters, T)                                                                                             \
  cublasStatus_t cublas##letters##asum_v2(cublasHandle_t handle, int n, const T* x, int incx, Real<T>* result) {      \
    return SumOfMagnitudes(Call(handle, "cublas" #letters "asum"), n, x, incx, result);                               \
  }                                                                                                                   \
  cublasStatus_t cublas##letters##nrm2_v2(cublasHandle_t handle, int n, const T* x, int incx, Real<T>* result) {      \
    return Norm(Call(handle, "cublas" #letters "nrm2"), n, x, incx, result);                                          \
  }
NORMS(S, float)
NORMS(D, double)
NORMS(Sc, c32)
NORMS(Dz, c64)

#define DOT(name, T, conjugated)                                                                                      \
  cublasStatus_t cublas##name##_v2(cublasHandle_t handle, int n, const T* x, int incx, const T* y, int incy,          \
                                   T* result) {                                                                       \
    return Dot(Call(handle, "cublas" #name), n, x, incx, y, incy, result, conjugated);                                \
  }
DOT(Sdot, float, false)
DOT(Ddot, double, false)
DOT(Cdotu, c32, false)
DOT(Cdotc, c32, true)
DOT(Zdotu, c64, false)
DOT(Zdotc, c64, true)

cublasStatus_t cublasCsscal_v2(cublasHandle_t handle, int n, const float* alpha, c32* x, int incx) {
  return Scale(Call(handle, "cublasCsscal"), n, alpha, x, incx);
}
cublasStatus_t cublasZdscal_v2(cublasHandle_t handle, int n, const double* alpha, c64* x, int incx) {
  return Scale(Call(handle, "cublasZdscal"), n, alpha, x, incx);
}

// ---------------------------------------------------------------- level 2

#define GEMV(letter, T)                                                                                               \
  cublasStatus_t cublas##letter##gemv_v2(cublasHandle_t handle, cublasOperation_t operation, int m, int n,            \
                                         const T* alpha, const T* a, int lda, const T* x, int incx, const T* beta,    \
                                         T* y, int incy) {                                                            \
    return Gemv(Call(handle, "cublas" #letter "gemv"), operation, m, n, alpha, a, lda, x, incx, beta, y, incy);       \
  }
FOR_REAL_AND_COMPLEX(GEMV)

#define GER(name, T, conjugated)                                                                                      \
  cublasStatus_t cublas##name##_v2(cublasHandle_t handle, int m, int n, const T* alpha, const T* x, int incx,         \
                                   const T* y, int incy, T* a, int lda) {                                             \
    return Ger(Call(handle, "cublas" #name), m, n, alpha, x, incx, y, incy, a, lda, conjugated);                      \
  }
GER(Sger, float, false)
GER(Dger, double, false)
GER(Cgeru, c32, false)
GER(Cgerc, c32, true)
GER(Zgeru, c64, false)
GER(Zgerc, c64, true)

// ---------------------------------------------------------------- level 3, and extensions of cuBLAS

#define GEMM(letter, T)                                                                                               \
  cublasStatus_t cublas##letter##gemm_v2(cublasHandle_t handle, cublasOperation_t operation_a,                        \
                                         cublasOperation_t operation_b, int m, int n, int k, const T* alpha,          \
                                         const T* a, int lda, const T* b, int ldb, const T* beta, T* c, int ldc) {    \
    return Gemm<T, T, T>(Call(handle, "cublas" #letter "gemm"),                                                       \
                         {operation_a, operation_b, m, n, k, lda, ldb, ldc, 1}, alpha, beta,                          \
                         Strided(a, 0, b, 0, c, 0));                                                                  \
  }                                                                                                                   \
  cublasStatus_t cublas##letter##gemmBatched(cublasHandle_t handle, cublasOperation_t operation_a,                    \
                                             cublasOperation_t operation_b, int m, int n, int k, const T* alpha,      \
                                             const T* const* a, int lda, const T* const* b, int ldb, const T* beta,   \
                                             T* const* c, int ldc, int count) {                                       \
    return Gemm<T, T, T>(Call(handle, "cublas" #letter "gemmBatched"),                                                \
                         {operation_a, operation_b, m, n, k, lda, ldb, ldc, count}, alpha, beta, Listed(a, b, c));    \
  }                                                                                                                   \
  cublasStatus_t cublas##letter##gemmStridedBatched(                                                                  \
      cublasHandle_t handle, cublasOperation_t operation_a, cublasOperation_t operation_b, int m, int n, int k,       \
      const T* alpha, const T* a, int lda, long long step_a, const T* b, int ldb, long long step_b, const T* beta,    \
      T* c, int ldc, long long step_c, int count) {                                                                   \
    return Gemm<T, T, T>(Call(handle, "cublas" #letter "gemmStridedBatched"),                                         \
                         {operation_a, operation_b, m, n, k, lda, ldb, ldc, count}, alpha, beta,                      \
                         Strided(a, step_a, b, step_b, c, step_c));                                                   \
  }
FOR_REAL_AND_COMPLEX(GEMM)

#define OTHERS(letter, T)                                                                                             \
  cublasStatus_t cublas##letter##geam(cublasHandle_t handle, cublasOperation_t operation_a,                           \
                                      cublasOperation_t operation_b, int m, int n, const T* alpha, const T* a,        \
                                      int lda, const T* beta, const T* b, int ldb, T* c, int ldc) {                   \
    return Geam(Call(handle, "cublas" #letter "geam"), operation_a, operation_b, m, n, alpha, a, lda, beta, b, ldb,   \
                c, ldc);                                                                                              \
  }                                                                                                                   \
  cublasStatus_t cublas##letter##dgmm(cublasHandle_t handle, cublasSideMode_t side, int m, int n, const T* a,         \
                                      int lda, const T* x, int incx, T* c, int ldc) {                                 \
    return Dgmm(Call(handle, "cublas" #letter "dgmm"), side, m, n, a, lda, x, incx, c, ldc);                          \
  }                                                                                                                   \
  cublasStatus_t cublas##letter##syrk_v2(cublasHandle_t handle, cublasFillMode_t part, cublasOperation_t operation,   \
                                         int n, int k, const T* alpha, const T* a, int lda, const T* beta, T* c,      \
                                         int ldc) {                                                                   \
    return Syrk(Call(handle, "cublas" #letter "syrk"), part, operation, n, k, alpha, a, lda, beta, c, ldc);           \
  }
FOR_REAL_AND_COMPLEX(OTHERS)

cublasStatus_t cublasSgemmEx(cublasHandle_t handle, cublasOperation_t operation_a, cublasOperation_t operation_b, int m,
                             int n, int k, const float* alpha, const void* a, cudaDataType type_a, int lda,
                             const void* b, cudaDataType type_b, int ldb, const float* beta, void* c,
                             cudaDataType type_c, int ldc) {
  Call call(handle, "cublasSgemmEx");
  const Untyped of{{operation_a, operation_b, m, n, k, lda, ldb, ldc, 1}, alpha, beta, a, b, c, type_a, type_b, type_c,
                   0, 0, 0};
  return GemmInSingle(call.Need(type_c != CUDA_C_32F, "C is complex"), of);
}
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t operation_a, cublasOperation_t operation_b, int m,
                            int n, int k, const void* alpha, const void* a, cudaDataType type_a, int lda, const void* b,
                            cudaDataType type_b, int ldb, const void* beta, void* c, cudaDataType type_c, int ldc,
                            cublasComputeType_t compute, int) {
  return GemmEx(Call(handle, "cublasGemmEx"), {{operation_a, operation_b, m, n, k, lda, ldb, ldc, 1}, alpha, beta, a, b,
                c, type_a, type_b, type_c, 0, 0, 0}, compute);
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t operation_a,
                                          cublasOperation_t operation_b, int m, int n, int k, const void* alpha,
                                          const void* a, cudaDataType type_a, int lda, long long step_a, const void* b,
                                          cudaDataType type_b, int ldb, long long step_b, const void* beta, void* c,
                                          cudaDataType type_c, int ldc, long long step_c, int count,
                                          cublasComputeType_t compute, int) {
  return GemmEx(Call(handle, "cublasGemmStridedBatchedEx"), {{operation_a, operation_b, m, n, k, lda, ldb, ldc, count},
                alpha, beta, a, b, c, type_a, type_b, type_c, step_a, step_b, step_c}, compute);
}
}  // extern "C"

}  // namespace emulated
