// Replacement for libcurand.so.10, whose kernels are machine code: generates random numbers on the host, in the memory
// of emulated devices and in the order of the generator's stream.
//
// All pseudo-random generators are Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
// The same seed gives the same numbers on every run, but not those of NVIDIA's library. Quasi-random generators are
// refused.
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <random>

#include "operands.h"

namespace emulated {
namespace {

// Values and names from NVIDIA's documentation.
enum curandStatus_t {
  CURAND_STATUS_SUCCESS = 0,
  CURAND_STATUS_NOT_INITIALIZED = 101,
  CURAND_STATUS_TYPE_ERROR = 103,
  CURAND_STATUS_OUT_OF_RANGE = 104,
  CURAND_STATUS_LENGTH_NOT_MULTIPLE = 105,
  CURAND_STATUS_LAUNCH_FAILURE = 201,
};
constexpr int kVersion = 10400;
constexpr int kFirstOrdering = 100, kLastOrdering = 104;  // range of valid orderings of pseudo-random generators

// ---------------------------------------------------------------- Philox

using Words = std::array<uint32_t, 4>;

// One block of Philox 4x32-10: four random words from a key and a counter.
Words Philox(uint64_t seed, Words counter) {
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53} * counter[0], second = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(second),
               static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(first)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// A stream of random words with a seed, starting at a position. `part` selects one of 2^64 independent streams.
class Sequence {
 public:
  using result_type = uint32_t;
  Sequence(uint64_t seed, uint64_t position, uint64_t part = 0) : seed_(seed), position_(position), part_(part) {}

  static constexpr uint32_t min() { return 0; }
  static constexpr uint32_t max() { return std::numeric_limits<uint32_t>::max(); }

  uint32_t operator()() {
    const uint64_t block = position_ / 4;
    if (block != block_) {
      words_ = Philox(seed_, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                              static_cast<uint32_t>(part_), static_cast<uint32_t>(part_ >> 32)});
      block_ = block;
    }
    return words_[position_++ % 4];
  }

 private:
  uint64_t seed_, position_, part_;
  uint64_t block_ = std::numeric_limits<uint64_t>::max();
  Words words_{};
};

// ---------------------------------------------------------------- distributions

// Uniform in (0, 1], as in cuRAND. A float takes one word, a double two.
template <class T> T Uniform(Sequence& words) {
  if constexpr (sizeof(T) == 4) return static_cast<T>((words() >> 8) + 1) * 0x1p-24f;
  const uint64_t high = words();
  return static_cast<T>(((high << 32 | words()) >> 11) + 1) * static_cast<T>(0x1p-53);
}

// Two independent standard normal numbers, by the Box-Muller transform.
template <class T> std::array<T, 2> Normal(Sequence& words) {
  constexpr double kTurn = 6.283185307179586;
  const double radius = std::sqrt(-2 * std::log(static_cast<double>(Uniform<T>(words))));
  const double angle = kTurn * static_cast<double>(Uniform<T>(words));
  return {static_cast<T>(radius * std::cos(angle)), static_cast<T>(radius * std::sin(angle))};
}

template <class T> constexpr uint64_t kWords = sizeof(T) / 4;  // random words per number

// ---------------------------------------------------------------- generators

struct Generator {
  int device = 0;
  cudaStream_t stream = nullptr;
  uint64_t seed = 0, offset = 0;
  uint64_t position = 0;  // of the next random word
};
using curandGenerator_t = void*;

std::mutex mutex;
std::map<curandGenerator_t, Generator> generators;

// Applies a change to a generator; an unknown handle is an error.
template <class Change> curandStatus_t Configure(curandGenerator_t handle, Change change) {
  const std::lock_guard guard(mutex);
  const auto found = generators.find(handle);
  if (found == generators.end()) return CURAND_STATUS_NOT_INITIALIZED;
  change(found->second);
  return CURAND_STATUS_SUCCESS;
}

// Explains an error on standard error, and returns its status.
curandStatus_t Refused(curandStatus_t status, const std::string& text) {
  Explain(text);
  return status;
}

// Enqueues fill(words, numbers) on the generator's stream, and advances the generator by `words`.
template <class T, class Fill>
curandStatus_t Generate(const char* function, curandGenerator_t handle, T* output, size_t count, uint64_t words,
                        Fill fill) {
  Generator generator;
  const auto take = [&](Generator& found) {
    generator = found;
    found.position += words;
  };
  if (const auto status = Configure(handle, take); status != CURAND_STATUS_SUCCESS) return status;
  if (count == 0) return CURAND_STATUS_SUCCESS;
  const auto work = [=](Access& access) {
    Sequence sequence(generator.seed, generator.position);
    T* numbers = reinterpret_cast<T*>(access.Write(output, count * sizeof(T), "outputPtr"));
    fill(sequence, numbers);
  };
  const cudaError_t error =
      schedule.Enqueue(generator.stream, generator.device, Checked(function, generator.device, work));
  return error == cudaSuccess ? CURAND_STATUS_SUCCESS
                              : Refused(CURAND_STATUS_LAUNCH_FAILURE, std::string(function) + ": " + ErrorText(error));
}

template <class T>
curandStatus_t GenerateUniform(const char* function, curandGenerator_t handle, T* output, size_t count) {
  return Generate(function, handle, output, count, count * kWords<T>, [=](Sequence& words, T* numbers) {
    for (size_t k = 0; k < count; ++k) numbers[k] = Uniform<T>(words);
  });
}

// Normal numbers, each mapped by `finish`.
template <class T, class Finish>
curandStatus_t GenerateNormal(const char* function, curandGenerator_t handle, T* output, size_t count, Finish finish) {
  if (count % 2 != 0)
    return Refused(CURAND_STATUS_LENGTH_NOT_MULTIPLE, std::string(function) + ": an odd count of normal numbers");
  return Generate(function, handle, output, count, count * kWords<T>, [=](Sequence& words, T* numbers) {
    for (size_t k = 0; k < count; k += 2) {
      const auto pair = Normal<T>(words);
      numbers[k] = finish(pair[0]);
      numbers[k + 1] = finish(pair[1]);
    }
  });
}
}  // namespace

extern "C" {
curandStatus_t curandCreateGenerator(curandGenerator_t* handle, int type) {
  constexpr int kPseudo[] = {100, 101, 121, 141, 142, 161};
  if (std::find(std::begin(kPseudo), std::end(kPseudo), type) == std::end(kPseudo))
    return Refused(CURAND_STATUS_TYPE_ERROR, "curandCreateGenerator: only pseudo-random generators are emulated");
  MakeContext();
  const std::lock_guard guard(mutex);
  static uintptr_t made = 0;
  *handle = reinterpret_cast<curandGenerator_t>(++made * 64);
  generators[*handle].device = CurrentDevice();
  return CURAND_STATUS_SUCCESS;
}
curandStatus_t curandDestroyGenerator(curandGenerator_t handle) {
  const std::lock_guard guard(mutex);
  return generators.erase(handle) ? CURAND_STATUS_SUCCESS : CURAND_STATUS_NOT_INITIALIZED;
}
curandStatus_t curandGetVersion(int* version) {
  *version = kVersion;
  return CURAND_STATUS_SUCCESS;
}
curandStatus_t curandSetStream(curandGenerator_t handle, cudaStream_t stream) {
  return Configure(handle, [=](Generator& generator) { generator.stream = stream; });
}
curandStatus_t curandSetPseudoRandomGeneratorSeed(curandGenerator_t handle, unsigned long long seed) {
  return Configure(handle, [=](Generator& generator) {
    generator.seed = seed;
    generator.position = generator.offset;
  });
}
curandStatus_t curandSetGeneratorOffset(curandGenerator_t handle, unsigned long long offset) {
  return Configure(handle, [=](Generator& generator) { generator.position = generator.offset = offset; });
}
curandStatus_t curandSetGeneratorOrdering(curandGenerator_t handle, int order) {
  if (order < kFirstOrdering || order > kLastOrdering) return CURAND_STATUS_OUT_OF_RANGE;
  return Configure(handle, [](Generator&) {});
}

curandStatus_t curandGenerate(curandGenerator_t handle, unsigned* output, size_t count) {
  return Generate("curandGenerate", handle, output, count, count, [=](Sequence& words, unsigned* numbers) {
    for (size_t k = 0; k < count; ++k) numbers[k] = words();
  });
}
curandStatus_t curandGenerateLongLong(curandGenerator_t, unsigned long long*, size_t) {
  return Refused(CURAND_STATUS_TYPE_ERROR, "curandGenerateLongLong: only quasi-random generators of 64 bits have it");
}
curandStatus_t curandGenerateUniform(curandGenerator_t handle, float* output, size_t count) {
  return GenerateUniform("curandGenerateUniform", handle, output, count);
}
curandStatus_t curandGenerateUniformDouble(curandGenerator_t handle, double* output, size_t count) {
  return GenerateUniform("curandGenerateUniformDouble", handle, output, count);
}
curandStatus_t curandGenerateNormal(curandGenerator_t handle, float* output, size_t count, float mean, float stddev) {
  return GenerateNormal("curandGenerateNormal", handle, output, count, [=](float z) { return mean + stddev * z; });
}
curandStatus_t curandGenerateNormalDouble(curandGenerator_t handle, double* output, size_t count, double mean,
                                          double stddev) {
  return GenerateNormal("curandGenerateNormalDouble", handle, output, count,
                        [=](double z) { return mean + stddev * z; });
}
curandStatus_t curandGenerateLogNormal(curandGenerator_t handle, float* output, size_t count, float mean,
                                       float stddev) {
  return GenerateNormal("curandGenerateLogNormal", handle, output, count,
                        [=](float z) { return std::exp(mean + stddev * z); });
}
curandStatus_t curandGenerateLogNormalDouble(curandGenerator_t handle, double* output, size_t count, double mean,
                                             double stddev) {
  return GenerateNormal("curandGenerateLogNormalDouble", handle, output, count,
                        [=](double z) { return std::exp(mean + stddev * z); });
}

// Each number has its own random stream: there is no upper bound on the words that one needs.
curandStatus_t curandGeneratePoisson(curandGenerator_t handle, unsigned* output, size_t count, double lambda) {
  if (!(lambda > 0)) return Refused(CURAND_STATUS_OUT_OF_RANGE, "curandGeneratePoisson: lambda is not above zero");
  return Generate("curandGeneratePoisson", handle, output, count, count, [=](Sequence& words, unsigned* numbers) {
    const uint64_t seed = words() | static_cast<uint64_t>(words()) << 32;
    for (size_t k = 0; k < count; ++k) {
      Sequence own(seed, 0, k + 1);
      numbers[k] = std::poisson_distribution<unsigned>(lambda)(own);
    }
  });
}
}  // extern "C"

}  // namespace emulated
