// Floating point: arithmetic, comparisons and conversions. Approximate functions give the exact result's rounding.
#pragma once
#include "lanewise.hpp"
#include "memory.hpp"
#include "numbers.hpp"

template <bool FLUSH, class T> inline T flushed(T value)
{
    if constexpr (FLUSH) return flush(value);
    else return value;
}

template <bool FLUSH, class T> inline T finished(T value) { return flushed<FLUSH>(canonical(value)); }

// ---------------------------------------------------------------- float and double

template <class T, bool FLUSH, class F> Execute float_unary(F)
{
    return lanewise<T>([](T a) { return finished<FLUSH>(T(F{}(flushed<FLUSH>(a)))); });
}
template <class T, bool FLUSH, class F> Execute float_binary(F)
{
    return lanewise<T, T>([](T a, T b) { return finished<FLUSH>(T(F{}(flushed<FLUSH>(a), flushed<FLUSH>(b)))); });
}

template <class T, bool FLUSH> void define_functions(Table& table, const std::string& type)
{
    table["sqrt." + type] = {float_unary<T, FLUSH>([](T a) { return std::sqrt(a); })};
    table["rcp." + type] = {float_unary<T, FLUSH>([](T a) { return 1 / a; })};
    table["rsqrt." + type] = {float_unary<T, FLUSH>([](T a) { return 1 / std::sqrt(a); })};
    table["ex2." + type] = {float_unary<T, FLUSH>([](T a) { return std::exp2(a); })};
    table["lg2." + type] = {float_unary<T, FLUSH>([](T a) { return std::log2(a); })};
    table["sin." + type] = {float_unary<T, FLUSH>([](T a) { return std::sin(a); })};
    table["cos." + type] = {float_unary<T, FLUSH>([](T a) { return std::cos(a); })};
    table["tanh." + type] = {float_unary<T, FLUSH>([](T a) { return std::tanh(a); })};
}

template <class T, bool FLUSH> void define_float(Table& table, const std::string& type)
{
    table["add." + type] = {float_binary<T, FLUSH>([](T a, T b) { return a + b; })};
    table["sub." + type] = {float_binary<T, FLUSH>([](T a, T b) { return a - b; })};
    table["mul." + type] = {float_binary<T, FLUSH>([](T a, T b) { return a * b; })};
    table["div." + type] = {float_binary<T, FLUSH>([](T a, T b) { return a / b; })};
    table["fma." + type] = table["mad." + type] = {lanewise<T, T, T>([](T a, T b, T c) {
        return finished<FLUSH>(std::fma(flushed<FLUSH>(a), flushed<FLUSH>(b), flushed<FLUSH>(c)));
    })};
    table["neg." + type] = {lanewise<T>([](T a) { return flushed<FLUSH>(-a); })};
    table["abs." + type] = {lanewise<T>([](T a) { return flushed<FLUSH>(T(std::fabs(a))); })};
    table["copysign." + type] = {lanewise<T, T>([](T sign, T a) { return T(std::copysign(a, sign)); })};
    table["min." + type] = {float_binary<T, FLUSH>([](T a, T b) { return minimum(a, b); })};
    table["max." + type] = {float_binary<T, FLUSH>([](T a, T b) { return maximum(a, b); })};
    const std::string nan_type = (FLUSH ? "ftz.NaN." : "NaN.") + type.substr(FLUSH ? 4 : 0);
    table["min." + nan_type] = {float_binary<T, FLUSH>([](T a, T b) { return minimum_nan(a, b); })};
    table["max." + nan_type] = {float_binary<T, FLUSH>([](T a, T b) { return maximum_nan(a, b); })};
    define_functions<T, FLUSH>(table, type);
}

template <class T, int MODE> void define_directed(Table& table, const std::string& type)
{
    table["add." + type] = {directed<MODE, T>([](T a, T b, T) { return a + b; })};
    table["sub." + type] = {directed<MODE, T>([](T a, T b, T) { return a - b; })};
    table["mul." + type] = {directed<MODE, T>([](T a, T b, T) { return a * b; })};
    table["div." + type] = {directed<MODE, T>([](T a, T b, T) { return a / b; })};
    table["rcp." + type] = {directed<MODE, T>([](T a, T, T) { return 1 / a; })};
    table["sqrt." + type] = {directed<MODE, T>([](T a, T, T) { return T(std::sqrt(a)); })};
    table["fma." + type] = {directed<MODE, T>([](T a, T b, T c) { return T(std::fma(a, b, c)); })};
}

template <bool FLUSH> void define_saturating(Table& table, const std::string& type)
{
    table["add." + type] = {float_binary<float, FLUSH>([](float a, float b) { return saturate_unit(a + b); })};
    table["sub." + type] = {float_binary<float, FLUSH>([](float a, float b) { return saturate_unit(a - b); })};
    table["mul." + type] = {float_binary<float, FLUSH>([](float a, float b) { return saturate_unit(a * b); })};
    table["fma." + type] = {lanewise<float, float, float>([](float a, float b, float c) {
        return finished<FLUSH>(saturate_unit(std::fma(flushed<FLUSH>(a), flushed<FLUSH>(b), flushed<FLUSH>(c))));
    })};
}

// ---------------------------------------------------------------- comparisons

template <class T, bool FLUSH, class F> void define_float_comparison(Table& table, const std::string& name, const std::string& type, F)
{
    define_comparison<T>(table, name, type, [](T a, T b) { return F{}(flushed<FLUSH>(widen(a)), flushed<FLUSH>(widen(b))); });
}

template <class T, bool FLUSH = false> void define_float_comparisons(Table& table, const std::string& type)
{
    using W = decltype(widen(T{}));
    define_float_comparison<T, FLUSH>(table, "eq", type, [](W a, W b) { return a == b; });
    define_float_comparison<T, FLUSH>(table, "ne", type, [](W a, W b) { return a < b || a > b; });
    define_float_comparison<T, FLUSH>(table, "lt", type, [](W a, W b) { return a < b; });
    define_float_comparison<T, FLUSH>(table, "le", type, [](W a, W b) { return a <= b; });
    define_float_comparison<T, FLUSH>(table, "gt", type, [](W a, W b) { return a > b; });
    define_float_comparison<T, FLUSH>(table, "ge", type, [](W a, W b) { return a >= b; });
    define_float_comparison<T, FLUSH>(table, "equ", type, [](W a, W b) { return !(a < b || a > b); });
    define_float_comparison<T, FLUSH>(table, "neu", type, [](W a, W b) { return a != b; });
    define_float_comparison<T, FLUSH>(table, "ltu", type, [](W a, W b) { return !(a >= b); });
    define_float_comparison<T, FLUSH>(table, "leu", type, [](W a, W b) { return !(a > b); });
    define_float_comparison<T, FLUSH>(table, "gtu", type, [](W a, W b) { return !(a <= b); });
    define_float_comparison<T, FLUSH>(table, "geu", type, [](W a, W b) { return !(a < b); });
    define_float_comparison<T, FLUSH>(table, "num", type, [](W a, W b) { return a == a && b == b; });
    define_float_comparison<T, FLUSH>(table, "nan", type, [](W a, W b) { return a != a || b != b; });
}

template <class T, class F> Execute test(F)
{
    return [](Warp& warp, const Instr& instr, u32 mask) {
        u32 outcome = 0;
        const T* a = warp.lanes<T>(instr.operand[1]);
        for_lanes(mask, [&](int lane) { outcome |= u32(F{}(std::fpclassify(a[lane]))) << lane; });
        warp.set_predicate(instr.operand[0], mask, outcome);
    };
}

template <class T> void define_tests(Table& table, const std::string& type)
{
    table["testp.finite." + type] = {test<T>([](int kind) { return kind != FP_INFINITE && kind != FP_NAN; })};
    table["testp.infinite." + type] = {test<T>([](int kind) { return kind == FP_INFINITE; })};
    table["testp.number." + type] = {test<T>([](int kind) { return kind != FP_NAN; })};
    table["testp.notanumber." + type] = {test<T>([](int kind) { return kind == FP_NAN; })};
    table["testp.normal." + type] = {test<T>([](int kind) { return kind == FP_NORMAL; })};
    table["testp.subnormal." + type] = {test<T>([](int kind) { return kind == FP_SUBNORMAL; })};
}

// ---------------------------------------------------------------- half precision: rounded once

template <class H> H half_sum(H a, H b)
{
    const double x = widen(a), y = widen(b);
    return narrow<H>(std::isfinite(x) && std::isfinite(y) ? add_to_odd(x, y) : x + y);
}

// Alone, and in both halves of a register.
template <class... Sources, class F> void define_half(Table& table, const std::string& key, const std::string& type, F f)
{
    table[key + "." + type] = {lanewise<Sources...>(f)};
    table[key + "." + type + "x2"] = {pairwise<Sources...>(f)};
}

template <class H> void define_halves(Table& table, const std::string& type)
{
    define_half<H, H>(table, "add", type, [](H a, H b) { return half_sum(a, b); });
    define_half<H, H>(table, "sub", type, [](H a, H b) { return half_sum(a, H{u16(b.bits ^ 0x8000)}); });
    define_half<H, H>(table, "mul", type, [](H a, H b) { return narrow<H>(double(widen(a)) * widen(b)); });
    define_half<H, H, H>(table, "fma", type, [](H a, H b, H c) { return half_fma(a, b, c); });
    define_half<H>(table, "neg", type, [](H a) { return H{u16(a.bits ^ 0x8000)}; });
    define_half<H>(table, "abs", type, [](H a) { return H{u16(a.bits & 0x7fff)}; });
    define_half<H, H>(table, "min", type, [](H a, H b) { return narrow<H>(minimum(widen(a), widen(b))); });
    define_half<H, H>(table, "max", type, [](H a, H b) { return narrow<H>(maximum(widen(a), widen(b))); });
    define_half<H, H>(table, "min.NaN", type, [](H a, H b) { return narrow<H>(minimum_nan(widen(a), widen(b))); });
    define_half<H, H>(table, "max.NaN", type, [](H a, H b) { return narrow<H>(maximum_nan(widen(a), widen(b))); });
    define_half<H>(table, "ex2", type, [](H a) { return narrow<H>(std::exp2(double(widen(a)))); });
    define_half<H>(table, "tanh", type, [](H a) { return narrow<H>(std::tanh(double(widen(a)))); });
    define_float_comparisons<H>(table, type);
}

// ---------------------------------------------------------------- conversions

template <class D, class S> void define_integer_conversion(Table& table, const std::string& to, const std::string& from)
{
    table["cvt." + to + "." + from] = {convert<S>([](S a) { return s64(D(a)); })};
    table["cvt." + to + "." + from + ".sat"] = {convert<S>([](S a) { return s64(saturate<D>(a)); })};
}

template <class S> void define_conversions_from_integer(Table& table, const std::string& from)
{
    define_integer_conversion<u8, S>(table, "u8", from);
    define_integer_conversion<s8, S>(table, "s8", from);
    define_integer_conversion<u16, S>(table, "u16", from);
    define_integer_conversion<s16, S>(table, "s16", from);
    define_integer_conversion<u32, S>(table, "u32", from);
    define_integer_conversion<s32, S>(table, "s32", from);
    define_integer_conversion<u64, S>(table, "u64", from);
    define_integer_conversion<s64, S>(table, "s64", from);
    table["cvt.f32." + from] = {convert<S>([](S a) { return float(a); })};
    table["cvt.f64." + from] = {convert<S>([](S a) { return double(a); })};
    table["cvt.f16." + from] = {convert<S>([](S a) { return to_f16(integer_to_odd(a)); })};
    table["cvt.bf16." + from] = {convert<S>([](S a) { return to_bf16(integer_to_odd(a)); })};
}

template <class D, class S> void define_conversion_to_integer(Table& table, const std::string& types)
{
    using W = decltype(widen(S{}));
    table["cvt.rni." + types] = {convert<S>([](S a) { return s64(to_integer<D>(std::nearbyint(W(widen(a))))); })};
    table["cvt.rzi." + types] = {convert<S>([](S a) { return s64(to_integer<D>(std::trunc(W(widen(a))))); })};
    table["cvt.rmi." + types] = {convert<S>([](S a) { return s64(to_integer<D>(std::floor(W(widen(a))))); })};
    table["cvt.rpi." + types] = {convert<S>([](S a) { return s64(to_integer<D>(std::ceil(W(widen(a))))); })};
}

template <class S> void define_conversions_to_integer(Table& table, const std::string& from)
{
    define_conversion_to_integer<s8, S>(table, "s8." + from);
    define_conversion_to_integer<u8, S>(table, "u8." + from);
    define_conversion_to_integer<s16, S>(table, "s16." + from);
    define_conversion_to_integer<u16, S>(table, "u16." + from);
    define_conversion_to_integer<s32, S>(table, "s32." + from);
    define_conversion_to_integer<u32, S>(table, "u32." + from);
    define_conversion_to_integer<s64, S>(table, "s64." + from);
    define_conversion_to_integer<u64, S>(table, "u64." + from);
}

template <class T> void define_integral_values(Table& table, const std::string& type)
{
    const std::string types = type + "." + type;
    table["cvt.rni." + types] = {lanewise<T>([](T a) { return canonical(T(std::nearbyint(a))); })};
    table["cvt.rzi." + types] = {lanewise<T>([](T a) { return canonical(T(std::trunc(a))); })};
    table["cvt.rmi." + types] = {lanewise<T>([](T a) { return canonical(T(std::floor(a))); })};
    table["cvt.rpi." + types] = {lanewise<T>([](T a) { return canonical(T(std::ceil(a))); })};
}

// Two floats into one register; the first one becomes the high half.
template <class H, bool RELU> void convert_pair(Warp& warp, const Instr& instr, u32 mask)
{
    u32* result = warp.lanes<u32>(instr.operand[0]);
    const float *high = warp.lanes<float>(instr.operand[1]), *low = warp.lanes<float>(instr.operand[2]);
    for_lanes(mask, [&](int lane) {
        float a = high[lane], b = low[lane];
        if (RELU) {
            a = maximum_nan(a, 0.f);
            b = maximum_nan(b, 0.f);
        }
        result[lane] = u32(narrow<H>(a).bits) << 16 | narrow<H>(b).bits;
    });
}

template <int MODE> void define_directed_conversions(Table& table, const std::string& mode)
{
    table["cvt." + mode + ".f32.f64"] = {directed<MODE, double>([](double a, double, double) { return float(a); })};
    table["cvt." + mode + ".f32.s32"] = {directed<MODE, s32>([](s32 a, s32, s32) { return float(a); })};
    table["cvt." + mode + ".f32.u32"] = {directed<MODE, u32>([](u32 a, u32, u32) { return float(a); })};
    table["cvt." + mode + ".f32.s64"] = {directed<MODE, s64>([](s64 a, s64, s64) { return float(a); })};
    table["cvt." + mode + ".f32.u64"] = {directed<MODE, u64>([](u64 a, u64, u64) { return float(a); })};
    table["cvt." + mode + ".f64.s64"] = {directed<MODE, s64>([](s64 a, s64, s64) { return double(a); })};
    table["cvt." + mode + ".f64.u64"] = {directed<MODE, u64>([](u64 a, u64, u64) { return double(a); })};
}

inline void define_float_conversions(Table& table)
{
    define_directed_conversions<FE_TOWARDZERO>(table, "rz");
    define_directed_conversions<FE_DOWNWARD>(table, "rm");
    define_directed_conversions<FE_UPWARD>(table, "rp");
    table["cvt.f64.f32"] = {convert<float>([](float a) { return double(a); })};
    table["cvt.f64.f16"] = {convert<f16>([](f16 a) { return double(widen(a)); })};
    table["cvt.f64.bf16"] = {convert<bf16>([](bf16 a) { return double(widen(a)); })};
    table["cvt.f32.f16"] = {convert<f16>([](f16 a) { return widen(a); })};
    table["cvt.f32.bf16"] = {convert<bf16>([](bf16 a) { return widen(a); })};
    table["cvt.f32.f64"] = {convert<double>([](double a) { return canonical(float(a)); })};
    table["cvt.f16.f32"] = {convert<float>([](float a) { return to_f16(a); })};
    table["cvt.f16.f64"] = {convert<double>([](double a) { return to_f16(a); })};
    table["cvt.bf16.f32"] = {convert<float>([](float a) { return to_bf16(a); })};
    table["cvt.bf16.f64"] = {convert<double>([](double a) { return to_bf16(a); })};
    table["cvt.bf16.f16"] = {convert<f16>([](f16 a) { return to_bf16(widen(a)); })};
    table["cvt.f16.bf16"] = {convert<bf16>([](bf16 a) { return to_f16(widen(a)); })};
    table["cvt.rna.tf32.f32"] = {lanewise<float>([](float a) { return to_tf32(a, true); })};
    table["cvt.tf32.f32"] = {lanewise<float>([](float a) { return to_tf32(a, false); })};
    table["cvt.f32.f32.sat"] = {lanewise<float>([](float a) { return saturate_unit(a); })};
    table["cvt.f32.f32.ftz"] = {lanewise<float>([](float a) { return flush(a); })};
    table["cvt.f32.f32.ftz.sat"] = {lanewise<float>([](float a) { return saturate_unit(flush(a)); })};
    table["cvt.f16x2.f32"] = {convert_pair<f16, false>};
    table["cvt.f16x2.f32.relu"] = {convert_pair<f16, true>};
    table["cvt.bf16x2.f32"] = {convert_pair<bf16, false>};
    table["cvt.bf16x2.f32.relu"] = {convert_pair<bf16, true>};
}

// ---------------------------------------------------------------- all

template <class T> void define_directions(Table& table, const std::string& type)
{
    define_directed<T, FE_TOWARDZERO>(table, "rz." + type);
    define_directed<T, FE_DOWNWARD>(table, "rm." + type);
    define_directed<T, FE_UPWARD>(table, "rp." + type);
    define_float_comparisons<T>(table, type);
    define_tests<T>(table, type);
    define_integral_values<T>(table, type);
    define_conversions_to_integer<T>(table, type);
    table["atom.add." + type] = {atomic<T>([](T old, T b, T) { return T(old + b); })};
}

inline void define_all_floats(Table& table)
{
    define_float<float, false>(table, "f32");
    define_float<float, true>(table, "ftz.f32");
    define_float<double, false>(table, "f64");
    define_directions<float>(table, "f32");
    define_directions<double>(table, "f64");
    define_float_comparisons<float, true>(table, "f32.ftz");
    define_saturating<false>(table, "sat.f32");
    define_saturating<true>(table, "ftz.sat.f32");
    define_halves<f16>(table, "f16");
    define_halves<bf16>(table, "bf16");
    define_conversions_to_integer<f16>(table, "f16");
    define_conversions_to_integer<bf16>(table, "bf16");
    define_conversions_from_integer<u8>(table, "u8");
    define_conversions_from_integer<s8>(table, "s8");
    define_conversions_from_integer<u16>(table, "u16");
    define_conversions_from_integer<s16>(table, "s16");
    define_conversions_from_integer<u32>(table, "u32");
    define_conversions_from_integer<s32>(table, "s32");
    define_conversions_from_integer<u64>(table, "u64");
    define_conversions_from_integer<s64>(table, "s64");
    define_float_conversions(table);
}
