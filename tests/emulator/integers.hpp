// Integers, bits, moves between registers, and addresses of the state spaces.
#pragma once
#include "lanewise.hpp"
#include "memory.hpp"
#include "numbers.hpp"

template <class T> void define_comparisons(Table& table, const std::string& type)
{
    define_comparison<T>(table, "eq", type, [](T a, T b) { return a == b; });
    define_comparison<T>(table, "ne", type, [](T a, T b) { return a != b; });
    for (const char* name : {"lt", "lo"}) define_comparison<T>(table, name, type, [](T a, T b) { return a < b; });
    for (const char* name : {"le", "ls"}) define_comparison<T>(table, name, type, [](T a, T b) { return a <= b; });
    for (const char* name : {"gt", "hi"}) define_comparison<T>(table, name, type, [](T a, T b) { return a > b; });
    for (const char* name : {"ge", "hs"}) define_comparison<T>(table, name, type, [](T a, T b) { return a >= b; });
}

template <class T> T divide(T a, T b)
{
    using U = std::make_unsigned_t<T>;
    if (b == 0) return T(-1);
    if (std::is_signed_v<T> && b == T(-1)) return T(U(0) - U(a));
    return T(a / b);
}

template <class T> T remainder_of(T a, T b)
{
    if (b == 0) return a;
    return std::is_signed_v<T> && b == T(-1) ? T(0) : T(a % b);
}

template <class T> T high_product(T a, T b)
{
    __extension__ using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
    return T((Wide(a) * Wide(b)) >> (8 * sizeof(T)));
}

template <class T> void define_integers(Table& table, const std::string& type)
{
    using U = std::make_unsigned_t<T>;
    table["add." + type] = {lanewise<U, U>([](U a, U b) { return U(a + b); })};
    table["sub." + type] = {lanewise<U, U>([](U a, U b) { return U(a - b); })};
    table["mul.lo." + type] = {lanewise<U, U>([](U a, U b) { return U(u64(a) * u64(b)); })};
    table["mad.lo." + type] = {lanewise<U, U, U>([](U a, U b, U c) { return U(u64(a) * u64(b) + c); })};
    table["mul.hi." + type] = {lanewise<T, T>([](T a, T b) { return high_product(a, b); })};
    table["mad.hi." + type] = {lanewise<T, T, U>([](T a, T b, U c) { return U(U(high_product(a, b)) + c); })};
    table["div." + type] = {lanewise<T, T>([](T a, T b) { return divide(a, b); })};
    table["rem." + type] = {lanewise<T, T>([](T a, T b) { return remainder_of(a, b); })};
    table["min." + type] = {lanewise<T, T>([](T a, T b) { return a < b ? a : b; })};
    table["max." + type] = {lanewise<T, T>([](T a, T b) { return a < b ? b : a; })};
    table["neg." + type] = {lanewise<T>([](T a) { return T(U(0) - U(a)); })};
    table["abs." + type] = {lanewise<T>([](T a) { return a < 0 ? T(U(0) - U(a)) : a; })};
    table["sad." + type] = {lanewise<T, T, U>([](T a, T b, U c) { return U((a < b ? U(b) - U(a) : U(a) - U(b)) + c); })};
    table["shr." + type] = {lanewise<T, u32>([](T a, u32 n) { return T(a >> std::min(n, u32(8 * sizeof(T) - 1))); })};
    if (std::is_unsigned_v<T>)
        table["shr." + type] = {lanewise<T, u32>([](T a, u32 n) { return n >= 8 * sizeof(T) ? T(0) : T(a >> n); })};
    table["atom.add." + type] = {atomic<U>([](U old, U b, U) { return U(old + b); })};
    table["atom.min." + type] = {atomic<T>([](T old, T b, T) { return b < old ? b : old; })};
    table["atom.max." + type] = {atomic<T>([](T old, T b, T) { return old < b ? b : old; })};
    define_comparisons<T>(table, type);
}

template <class T, class D> void define_wide(Table& table, const std::string& type)
{
    using U = std::make_unsigned_t<D>;
    table["mul.wide." + type] = {lanewise<T, T>([](T a, T b) { return D(D(a) * D(b)); })};
    table["mad.wide." + type] = {lanewise<T, T, D>([](T a, T b, D c) { return D(U(D(a) * D(b)) + U(c)); })};
}

// ---------------------------------------------------------------- bits

template <class U> U low_bits(u32 count) { return count >= 8 * sizeof(U) ? U(~U(0)) : U((U(1) << count) - 1); }

template <class T> T extract(T value, u32 position, u32 length)
{
    using U = std::make_unsigned_t<T>;
    constexpr u32 BITS = 8 * sizeof(T);
    position = std::min(position & 255, BITS);
    length = std::min(length & 255, BITS);
    const T shifted = position == BITS ? T(std::is_signed_v<T> && value < 0 ? -1 : 0) : T(value >> position);
    if (length == 0) return 0;
    const U field = U(shifted) & low_bits<U>(length);
    const bool negative = std::is_signed_v<T> && length < BITS && (U(shifted) >> (length - 1) & 1);
    return T(negative ? field | ~low_bits<U>(length) : field);
}

template <class U> U insert(U field, U base, u32 position, u32 length)
{
    position &= 255;
    if (position >= 8 * sizeof(U)) return base;
    const U mask = U(low_bits<U>(length & 255) << position);
    return U((base & ~mask) | (U(field << position) & mask));
}

inline u32 reverse(u32 value)
{
    u32 result = 0;
    for (int bit = 0; bit < 32; ++bit) result |= (value >> bit & 1) << (31 - bit);
    return result;
}

inline u32 permute_bytes(u32 a, u32 b, u32 selector)
{
    const u64 bytes = u64(b) << 32 | a;
    u32 result = 0;
    for (int k = 0; k < 4; ++k) {
        const u32 choice = selector >> 4 * k;
        u32 byte = u32(bytes >> 8 * (choice & 7)) & 255;
        if (choice & 8) byte = byte & 128 ? 255 : 0;  // the sign, spread
        result |= byte << 8 * k;
    }
    return result;
}

inline u32 logic3(u32 a, u32 b, u32 c, u32 truth_table)
{
    u32 result = 0;
    for (int row = 0; row < 8; ++row)
        if (truth_table >> row & 1) result |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
    return result;
}

inline u64 funnel(u32 low, u32 high) { return u64(high) << 32 | low; }

template <class U> void define_bits(Table& table, const std::string& type)
{
    table["and." + type] = {lanewise<U, U>([](U a, U b) { return U(a & b); })};
    table["or." + type] = {lanewise<U, U>([](U a, U b) { return U(a | b); })};
    table["xor." + type] = {lanewise<U, U>([](U a, U b) { return U(a ^ b); })};
    table["not." + type] = {lanewise<U>([](U a) { return U(~a); })};
    table["cnot." + type] = {lanewise<U>([](U a) { return U(a == 0); })};
    table["mov." + type] = {lanewise<U>([](U a) { return a; })};
    table["shl." + type] = {lanewise<U, u32>([](U a, u32 n) { return n >= 8 * sizeof(U) ? U(0) : U(a << n); })};
    table["shr." + type] = {lanewise<U, u32>([](U a, u32 n) { return n >= 8 * sizeof(U) ? U(0) : U(a >> n); })};
    table["selp." + type] = {[](Warp& warp, const Instr& instr, u32 mask) {
        U* result = warp.lanes<U>(instr.operand[0]);
        const U *a = warp.lanes<U>(instr.operand[1]), *b = warp.lanes<U>(instr.operand[2]);
        const u32 choice = warp.predicate(instr.operand[3]);
        for_lanes(mask, [&](int lane) { result[lane] = choice >> lane & 1 ? a[lane] : b[lane]; });
    }};
    table["atom.and." + type] = {atomic<U>([](U old, U b, U) { return U(old & b); })};
    table["atom.or." + type] = {atomic<U>([](U old, U b, U) { return U(old | b); })};
    table["atom.xor." + type] = {atomic<U>([](U old, U b, U) { return U(old ^ b); })};
    table["atom.exch." + type] = {atomic<U>([](U, U b, U) { return b; })};
    table["atom.cas." + type] = {atomic<U>([](U old, U b, U c) { return old == b ? c : old; })};
    define_comparisons<U>(table, type);
}

inline void define_bit_fields(Table& table)
{
    table["popc.b32"] = {lanewise<u32>([](u32 a) { return u32(std::popcount(a)); })};
    table["popc.b64"] = {lanewise<u64>([](u64 a) { return u32(std::popcount(a)); })};
    table["clz.b32"] = {lanewise<u32>([](u32 a) { return u32(std::countl_zero(a)); })};
    table["clz.b64"] = {lanewise<u64>([](u64 a) { return u32(std::countl_zero(a)); })};
    table["brev.b32"] = {lanewise<u32>([](u32 a) { return reverse(a); })};
    table["brev.b64"] = {lanewise<u64>([](u64 a) { return u64(reverse(u32(a))) << 32 | reverse(u32(a >> 32)); })};
    table["bfind.u32"] = {lanewise<u32>([](u32 a) { return a ? u32(31 - std::countl_zero(a)) : ~0u; })};
    table["bfind.shiftamt.u32"] = {lanewise<u32>([](u32 a) { return a ? u32(std::countl_zero(a)) : ~0u; })};
    table["bfind.u64"] = {lanewise<u64>([](u64 a) { return a ? u32(63 - std::countl_zero(a)) : ~0u; })};
    table["bfe.u32"] = {lanewise<u32, u32, u32>([](u32 a, u32 p, u32 n) { return extract(a, p, n); })};
    table["bfe.s32"] = {lanewise<s32, u32, u32>([](s32 a, u32 p, u32 n) { return extract(a, p, n); })};
    table["bfe.u64"] = {lanewise<u64, u32, u32>([](u64 a, u32 p, u32 n) { return extract(a, p, n); })};
    table["bfe.s64"] = {lanewise<s64, u32, u32>([](s64 a, u32 p, u32 n) { return extract(a, p, n); })};
    table["bfi.b32"] = {lanewise<u32, u32, u32, u32>([](u32 a, u32 b, u32 p, u32 n) { return insert(a, b, p, n); })};
    table["bfi.b64"] = {lanewise<u64, u64, u32, u32>([](u64 a, u64 b, u32 p, u32 n) { return insert(a, b, p, n); })};
    table["prmt.b32"] = {lanewise<u32, u32, u32>([](u32 a, u32 b, u32 s) { return permute_bytes(a, b, s); })};
    table["lop3.b32"] = {lanewise<u32, u32, u32, u32>([](u32 a, u32 b, u32 c, u32 t) { return logic3(a, b, c, t); })};
    table["shf.l.wrap.b32"] = {lanewise<u32, u32, u32>([](u32 a, u32 b, u32 n) { return u32(funnel(a, b) >> (32 - (n & 31))); })};
    table["shf.r.wrap.b32"] = {lanewise<u32, u32, u32>([](u32 a, u32 b, u32 n) { return u32(funnel(a, b) >> (n & 31)); })};
    table["shf.l.clamp.b32"] = {
        lanewise<u32, u32, u32>([](u32 a, u32 b, u32 n) { return u32(funnel(a, b) >> (32 - std::min(n, 32u))); })};
    table["shf.r.clamp.b32"] = {lanewise<u32, u32, u32>([](u32 a, u32 b, u32 n) { return u32(funnel(a, b) >> std::min(n, 32u)); })};
}

// ---------------------------------------------------------------- predicates

template <class F> Execute predicates(F)
{
    return [](Warp& warp, const Instr& instr, u32 mask) {
        const u32 a = warp.predicate(instr.operand[1]);
        const u32 b = instr.operands > 2 ? warp.predicate(instr.operand[2]) : 0;
        warp.set_predicate(instr.operand[0], mask, F{}(a, b));
    };
}

inline void define_predicates(Table& table)
{
    table["and.pred"] = {predicates([](u32 a, u32 b) { return a & b; })};
    table["or.pred"] = {predicates([](u32 a, u32 b) { return a | b; })};
    table["xor.pred"] = {predicates([](u32 a, u32 b) { return a ^ b; })};
    table["not.pred"] = {predicates([](u32 a, u32) { return ~a; })};
    table["mov.pred"] = {predicates([](u32 a, u32) { return a; })};
}

// ---------------------------------------------------------------- packing

struct Packing {
    s64 count, width;  // of the parts
};

inline void pack(Warp& warp, const Instr& instr, u32 mask)
{
    const auto& packing = instr.as<Packing>();
    for_lanes(mask, [&](int lane) {
        char value[16];
        for (int k = 0; k < packing.count; ++k)
            memcpy(value + k * packing.width, warp.registers + instr.operand[1 + k] + lane * packing.width, packing.width);
        const s64 bytes = packing.count * packing.width;
        memcpy(warp.registers + instr.operand[0] + lane * bytes, value, bytes);
    });
}

inline void unpack(Warp& warp, const Instr& instr, u32 mask)
{
    const auto& packing = instr.as<Packing>();
    for_lanes(mask, [&](int lane) {
        char value[16];
        const s64 bytes = packing.count * packing.width;
        memcpy(value, warp.registers + instr.operand[packing.count] + lane * bytes, bytes);
        for (int k = 0; k < packing.count; ++k)
            if (instr.operand[k] >= 0)
                memcpy(warp.registers + instr.operand[k] + lane * packing.width, value + k * packing.width, packing.width);
    });
}

// ---------------------------------------------------------------- addresses and memory

template <class F> Execute is_in_space(F)
{
    return [](Warp& warp, const Instr& instr, u32 mask) {
        u32 inside = 0;
        for_lanes(mask, [&](int lane) { inside |= u32(F{}(warp.lanes<u64>(instr.operand[1])[lane])) << lane; });
        warp.set_predicate(instr.operand[0], mask, inside);
    };
}

inline void define_addresses(Table& table)
{
    for (const char* key : {"cvta.global", "cvta.to.global", "cvta.const", "cvta.to.const"})
        table[key] = {lanewise<u64>([](u64 address) { return address; })};
    table["cvta.shared"] = {lanewise<u64>([](u64 address) { return address + SHARED_WINDOW; })};
    table["cvta.to.shared"] = {lanewise<u64>([](u64 address) { return address - SHARED_WINDOW; })};
    table["cvta.local"] = {lanewise<u64>([](u64 address) { return address + LOCAL_WINDOW; })};
    table["cvta.to.local"] = {lanewise<u64>([](u64 address) { return address - LOCAL_WINDOW; })};
    table["cvta.param"] = {lanewise<u64>([](u64 address) { return address + PARAMETER_WINDOW; })};
    table["cvta.to.param"] = {lanewise<u64>([](u64 address) { return address - PARAMETER_WINDOW; })};
    table["isspacep.shared"] = {is_in_space([](u64 address) { return address - SHARED_WINDOW < WINDOW_SIZE; })};
    table["isspacep.local"] = {is_in_space([](u64 address) { return address - LOCAL_WINDOW < WINDOW_SIZE; })};
    table["isspacep.param"] = {is_in_space([](u64 address) { return address - PARAMETER_WINDOW < WINDOW_SIZE; })};
    table["isspacep.global"] = {is_in_space([](u64 address) { return address >= PARAMETER_WINDOW + WINDOW_SIZE; })};
    table["ld.global"] = table["ld.const"] = {load_store<GLOBAL, true>};
    table["st.global"] = {load_store<GLOBAL, false>};
    table["ld.shared"] = {load_store<SHARED, true>};
    table["st.shared"] = {load_store<SHARED, false>};
    table["ld.generic"] = {load_store<GENERIC, true>};
    table["st.generic"] = {load_store<GENERIC, false>};
    table["ld.local"] = {load_store<LOCAL, true>};
    table["st.local"] = {load_store<LOCAL, false>};
    table["ld.param"] = {load_store<PARAMETER, true>};
}

inline void define_all_integers(Table& table)
{
    define_integers<s16>(table, "s16");
    define_integers<u16>(table, "u16");
    define_integers<s32>(table, "s32");
    define_integers<u32>(table, "u32");
    define_integers<s64>(table, "s64");
    define_integers<u64>(table, "u64");
    define_wide<s16, s32>(table, "s16");
    define_wide<u16, u32>(table, "u16");
    define_wide<s32, s64>(table, "s32");
    define_wide<u32, u64>(table, "u32");
    define_bits<u16>(table, "b16");
    define_bits<u32>(table, "b32");
    define_bits<u64>(table, "b64");
    define_bit_fields(table);
    define_predicates(table);
    table["mov.pack"] = {pack};
    table["mov.unpack"] = {unpack};
    define_addresses(table);
}
