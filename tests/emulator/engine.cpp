// A functional model of CUDA's execution at the level of PTX, for tests on machines without a GPU.
//
// A kernel is a list of decoded instructions. Each warp is one interpreter: a register is an array of 32 lanes, so that
// most instructions are one vector loop. Blocks run one after another (per host thread), with a seed in any order; the
// warps of a block are interleaved by a seeded scheduler. Memory is checked, not trusted: bounds, alignment, initialisation and races.
#include "async.hpp"
#include "execution.hpp"
#include "floats.hpp"
#include "integers.hpp"
#include "memory.hpp"
#include "tensor.hpp"
#include "warps.hpp"

#include <thread>

static const Table& table()
{
    static const Table all = [] {
        Table entries;
        define_all_integers(entries);
        define_all_floats(entries);
        define_all_warps(entries);
        define_all_tensor(entries);
        define_all_async(entries);
        return entries;
    }();
    return all;
}

// ---------------------------------------------------------------- all blocks

// What each host thread does: blocks, as long as there are any.
class Worker {
public:
    Worker(Launch& launch, std::atomic<u64>& next, std::string& failure) : block_{launch}, next_(next), failure_(failure)
    {
        const u32* threads = launch.threads;
        block_.warp_count = int((threads[0] * threads[1] * threads[2] + LANES - 1) / LANES);
        block_.agents = block_.warp_count + 1 + (block_.warp_count + 3) / 4;
        block_.counters.resize(launch.program.code.size());
        for (int index = 0; index < block_.warp_count; ++index) {
            warps_.push_back(std::unique_ptr<Warp>(new Warp{block_, launch, launch.program, index}));
            block_.warps.push_back(warps_.back().get());
        }
    }

    void operator()()
    {
        Launch& launch = block_.launch;
        const u64 blocks = u64(launch.grid[0]) * launch.grid[1] * launch.grid[2];
        try {
            for (u64 next; (next = next_++) < blocks;) {
                const u64 number = launch.order.empty() ? next : launch.order[next];
                block_.number = u32(number);
                block_.index[0] = u32(number % launch.grid[0]);
                block_.index[1] = u32(number / launch.grid[0] % launch.grid[1]);
                block_.index[2] = u32(number / launch.grid[0] / launch.grid[1]);
                block_.random.seed(launch.options.seed * 1000003 + number);
                run_block(block_);
            }
        } catch (const Error& error) {
            std::lock_guard guard(launch.lock);
            if (failure_.empty()) failure_ = error.what();
            next_ = blocks;
        }
        add_counters();
    }

private:
    void add_counters()
    {
        constexpr size_t FIELDS = sizeof(Counters) / sizeof(u64);
        std::lock_guard guard(block_.launch.lock);
        for (size_t k = 0; k < block_.counters.size(); ++k) {
            auto* sum = reinterpret_cast<u64*>(&block_.launch.counters[k]);
            const auto* mine = reinterpret_cast<const u64*>(&block_.counters[k]);
            for (size_t field = 0; field < FIELDS; ++field) sum[field] += mine[field];
        }
    }

    Block block_;
    std::vector<std::unique_ptr<Warp>> warps_;
    std::atomic<u64>& next_;
    std::string& failure_;
};

// ---------------------------------------------------------------- C interface

extern "C" {
struct ProgramDescription {
    const char *name, *keys, *texts, *lines;  // the last three: a line for each instruction
    int instructions;
    const int* predicates;                    // offset, negated
    const int *operand_counts, *operands, *attribute_counts;
    const s64* attributes;
    int presets;
    const s64* preset;                        // offset, width, source, value
    int gaps;
    const int* gap;                           // offset, size
    int register_bytes, shared_bytes, dynamic_alignment, local_bytes, granule;
};

struct ArrayDescription {
    u64 base, size;
    char* host;
    u8* state;
    int writable;
    const char* name;
};

struct LaunchDescription {
    u32 grid[3], threads[3], dynamic_shared;
    int arrays;
    const char* parameters;
    u64 parameter_bytes;
    const ArrayDescription* array;
    s64 host_threads, check_shared, check_global, async_order;
    u64 seed, max_steps;
    Counters* counters;                       // of every instruction, or null
};
}

static std::vector<std::string> split_lines(const char* joined)
{
    std::istringstream stream(joined);
    std::vector<std::string> lines;
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
}

static void fill_layout(Program& program, const ProgramDescription& given)
{
    program.name = given.name;
    program.texts = split_lines(given.texts);
    program.lines = split_lines(given.lines);
    for (int k = 0; k < given.presets; ++k) {
        const s64* preset = given.preset + 4 * k;
        program.presets.push_back({int(preset[0]), int(preset[1]), Preset::Source(preset[2]), preset[3]});
    }
    for (int k = 0; k < given.gaps; ++k) program.gaps.push_back({given.gap[2 * k], given.gap[2 * k + 1]});
    program.register_bytes = given.register_bytes;
    program.shared_bytes = given.shared_bytes;
    program.dynamic_alignment = given.dynamic_alignment;
    program.local_bytes = given.local_bytes;
    program.granule = given.granule;
}

// Returns the keys that the table lacks.
static std::string fill_code(Program& program, const ProgramDescription& given)
{
    const auto keys = split_lines(given.keys);
    const int* operand_end = given.operands;
    const s64* attribute_end = given.attributes;
    for (int k = 0; k < given.instructions; ++k) {
        operand_end += given.operand_counts[k];
        attribute_end += given.attribute_counts[k];
    }
    program.operands.assign(given.operands, operand_end);
    program.attributes.assign(given.attributes, attribute_end);
    const int* operand = program.operands.data();
    const s64* attribute = program.attributes.data();
    std::map<std::string, int> missing;
    for (int k = 0; k < given.instructions; ++k) {
        const auto found = table().find(keys[k]);
        if (found == table().end()) {
            ++missing[keys[k]];
        } else {
            const Entry& entry = found->second;
            const bool negated = given.predicates[2 * k + 1];
            program.code.push_back({entry.execute, entry.kind, negated, given.predicates[2 * k], entry.member_mask, operand, attribute,
                                    given.operand_counts[k]});
        }
        operand += given.operand_counts[k];
        attribute += given.attribute_counts[k];
    }
    std::string names;
    for (const auto& [key, count] : missing) names += (names.empty() ? "" : ", ") + key;
    return names;
}

static void add_arrays(Launch& launch, const LaunchDescription& given)
{
    for (int k = 0; k < given.arrays; ++k) {
        const ArrayDescription& array = given.array[k];
        launch.arrays.push_back({array.base, array.size, array.host, array.state, bool(array.writable), array.name});
        if (array.writable && launch.options.check_global && array.size)
            launch.arrays.back().owners.reset(static_cast<Owner*>(calloc(array.size, sizeof(Owner))));
    }
    std::sort(launch.arrays.begin(), launch.arrays.end(), [](const Array& a, const Array& b) { return a.base < b.base; });
}

// Blocks run in any order, but for grids so large that nobody listens to it.
static void shuffle_blocks(Launch& launch)
{
    constexpr u64 MOST = 1 << 16;
    const u64 blocks = u64(launch.grid[0]) * launch.grid[1] * launch.grid[2];
    if (!launch.options.seed || blocks > MOST) return;
    for (u64 number = 0; number < blocks; ++number) launch.order.push_back(u32(number));
    std::mt19937_64 random(launch.options.seed);
    std::shuffle(launch.order.begin(), launch.order.end(), random);
}

static std::string run(Launch& launch)
{
    shuffle_blocks(launch);
    std::atomic<u64> next{0};
    std::string failure;
    if (launch.options.threads <= 1) {
        Worker(launch, next, failure)();
    } else {
        std::vector<std::thread> threads;
        for (int k = 0; k < launch.options.threads; ++k) threads.emplace_back([&] { Worker(launch, next, failure)(); });
        for (auto& thread : threads) thread.join();
    }
    for (const auto& [what, count] : launch.reports)
        failure += text(failure.empty() ? "" : "\n", launch.program.name, ": ", what, "\n    (", count, " times)");
    return failure;
}

extern "C" {
// Null where instructions are not modelled; their names are then in `missing`.
Program* emulator_load(const ProgramDescription* given, char* missing, int missing_size)
{
    auto program = std::make_unique<Program>();
    fill_layout(*program, *given);
    const std::string names = fill_code(*program, *given);
    if (names.empty()) return program.release();
    snprintf(missing, missing_size, "%s", names.c_str());
    return nullptr;
}

void emulator_unload(Program* program) { delete program; }

// 0, or 1 where something was found, which `findings` then tells.
int emulator_launch(const Program* program, const LaunchDescription* given, char* findings, int findings_size)
{
    const Options options{int(given->host_threads), bool(given->check_shared), bool(given->check_global), Options::Order(given->async_order),
                          given->counters != nullptr, given->seed, given->max_steps};
    Launch launch{*program, options, {}, {}, given->dynamic_shared, {given->parameters, given->parameters + given->parameter_bytes},
                  {}, {}, std::vector<Counters>(program->code.size()), {}, {}, {}};
    std::copy(given->grid, given->grid + 3, launch.grid);
    std::copy(given->threads, given->threads + 3, launch.threads);
    add_arrays(launch, *given);
    const std::string failure = run(launch);
    if (given->counters) std::copy(launch.counters.begin(), launch.counters.end(), given->counters);
    snprintf(findings, findings_size, "%s", failure.c_str());
    return !failure.empty();
}
}
