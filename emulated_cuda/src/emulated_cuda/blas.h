// Arithmetic for cublas.cpp on column-major matrices and strided vectors in device memory.
//
// Every operation reads all its operands, computes, and writes the result, so a result may overwrite an operand
// wherever cuBLAS allows it. Sums are accumulated in the compute type of the call; half precision in float.
#ifndef EMULATED_CUDA_BLAS_H_
#define EMULATED_CUDA_BLAS_H_

#include <cmath>
#include <complex>
#include <type_traits>

#include "emulator/numbers.hpp"
#include "operands.h"

namespace emulated {

using c32 = std::complex<float>;
using c64 = std::complex<double>;

template <class T> struct RealOf { using type = T; };
template <class T> struct RealOf<std::complex<T>> { using type = T; };
template <class T> using Real = typename RealOf<T>::type;
template <class T> constexpr bool kIsComplex = !std::is_same_v<T, Real<T>>;

// Names as in NVIDIA's documentation; callers pass the numbers.
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C };

// ---------------------------------------------------------------- numbers

// Converts between number types; conversions to f16 and bf16 round to nearest.
template <class To, class From> To Converted(From value) {
  if constexpr (std::is_same_v<From, f16> || std::is_same_v<From, bf16>) return To(widen(value));
  else if constexpr (std::is_same_v<To, f16> || std::is_same_v<To, bf16>) return narrow<To>(value);
  else return To(value);
}

template <class T> T Conjugate(T value) {
  if constexpr (kIsComplex<T>) return std::conj(value);
  else return value;
}

// |Re| + |Im|: the magnitude by which BLAS compares and sums complex numbers (asum, amax).
template <class T> Real<T> Magnitude(T value) {
  if constexpr (kIsComplex<T>) return std::abs(value.real()) + std::abs(value.imag());
  else return std::abs(value);
}

// A scalar argument such as alpha: a value, or (pointer mode DEVICE) a device pointer that is read in stream order.
template <class T> struct Factor {
  T value;
  const T* pointer;
  T In(Access& access, const char* name) const { return pointer ? access.ReadOne(pointer, name) : value; }
};

// ---------------------------------------------------------------- vectors

// A vector of `size` elements, `step` apart; a negative step starts at the end, as in BLAS.
template <class T> struct Vector {
  T* data;
  int64_t size, step;
  const char* name;

  T* Element(int64_t k) const { return data + (step < 0 ? (k - size + 1) * step : k * step); }

  auto Read(Access& access) const {
    using Value = std::remove_const_t<T>;
    std::vector<Value> values(static_cast<size_t>(std::max<int64_t>(size, 0)));
    if (step == 1 && !values.empty())
      std::memcpy(values.data(), access.Read(data, values.size() * sizeof(T), name), values.size() * sizeof(T));
    else
      for (size_t k = 0; k < values.size(); ++k) values[k] = access.ReadOne<Value>(Element(k), name);
    return values;
  }

  void Write(Access& access, const std::vector<T>& values) const {
    for (size_t k = 0; k < values.size(); ++k) access.WriteOne<T>(Element(k), values[k], name);
  }
};

// ---------------------------------------------------------------- matrices

// A column-major matrix in device memory; `stride` is its leading dimension, in elements.
template <class T> struct Matrix {
  T* data;
  int64_t rows, columns, stride;
  const char* name;

  T* Column(int64_t j) const { return data + j * stride; }

  // Returns op(matrix) as a contiguous column-major array.
  template <class Compute> std::vector<Compute> Read(Access& access, cublasOperation_t operation = CUBLAS_OP_N) const {
    std::vector<Compute> values(static_cast<size_t>(rows * columns));
    if (rows == 0) return values;
    std::vector<std::remove_const_t<T>> column(static_cast<size_t>(rows));
    for (int64_t j = 0; j < columns; ++j) {
      const size_t size = static_cast<size_t>(rows) * sizeof(T);
      std::memcpy(static_cast<void*>(column.data()), access.Read(Column(j), size, name), size);
      for (int64_t i = 0; i < rows; ++i) {
        const Compute value = Converted<Compute>(column[i]);
        const int64_t to = operation == CUBLAS_OP_N ? j * rows + i : i * columns + j;
        values[to] = operation == CUBLAS_OP_C ? Conjugate(value) : value;
      }
    }
    return values;
  }

  // Writes rows first to last - 1 of column j; `values` is the whole column.
  template <class Compute> void WriteRows(Access& access, int64_t j, int64_t first, int64_t last,
                                          const Compute* values) const {
    if (first >= last) return;
    T* to = reinterpret_cast<T*>(access.Write(Column(j) + first, (last - first) * sizeof(T), name));
    for (int64_t i = first; i < last; ++i) to[i - first] = Converted<T>(values[i]);
  }

  // Writes all elements.
  template <class Compute> void Write(Access& access, const std::vector<Compute>& values) const {
    for (int64_t j = 0; j < columns; ++j) WriteRows(access, j, 0, rows, values.data() + j * rows);
  }
};

// The matrix in memory for which op(matrix) has `rows` by `columns` elements.
template <class T>
Matrix<T> Stored(T* data, cublasOperation_t operation, int64_t rows, int64_t columns, int64_t stride,
                 const char* name) {
  if (operation == CUBLAS_OP_N) return {data, rows, columns, stride, name};
  return {data, columns, rows, stride, name};
}

// sum += factor * values
template <class T> void AddScaled(std::vector<T>& sum, T factor, const std::vector<T>& values) {
  for (size_t k = 0; k < sum.size(); ++k) sum[k] += factor * values[k];
}

// sum += a * b, where a is (rows, inner) and b is (inner, columns).
template <class T>
void AddProduct(std::vector<T>& sum, const std::vector<T>& a, const std::vector<T>& b, int64_t rows, int64_t columns,
                int64_t inner) {
  for (int64_t j = 0; j < columns; ++j) {
    T* into = sum.data() + j * rows;
    for (int64_t k = 0; k < inner; ++k) {
      const T factor = b[j * inner + k];
      const T* column = a.data() + k * rows;
      for (int64_t i = 0; i < rows; ++i) into[i] += column[i] * factor;
    }
  }
}

// c = alpha * op(a) * op(b) + beta * c. If alpha or beta is 0, the matrices it multiplies are not read, as BLAS
// requires.
template <class In, class Out, class Sum> struct Product {
  cublasOperation_t operation_a, operation_b;
  Matrix<const In> a, b;
  Matrix<Out> c;
  int64_t inner;

  void Run(Access& access, Sum alpha, Sum beta) const {
    if (c.rows == 0 || c.columns == 0) return;
    std::vector<Sum> sum(static_cast<size_t>(c.rows * c.columns));
    if (alpha != Sum(0) && inner != 0) {
      const auto left = a.template Read<Sum>(access, operation_a);
      const auto right = b.template Read<Sum>(access, operation_b);
      AddProduct(sum, left, right, c.rows, c.columns, inner);
      for (Sum& value : sum) value *= alpha;
    }
    if (beta != Sum(0)) AddScaled(sum, beta, c.template Read<Sum>(access));
    c.Write(access, sum);
  }
};

}  // namespace emulated

#endif  // EMULATED_CUDA_BLAS_H_
