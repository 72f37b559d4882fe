/* Judge a folder of outputs by the suite: C99, no libraries.
 *
 *     cc -O2 -o judge judge.c -lm
 *     ./judge SUITE OUTPUTS [--filter TEXT] [--strict] [--precision tf32] [--accumulate float16|bfloat16]
 *
 * Reads SUITE/tests.txt, SUITE/TEST/test.flat, and for each TEST either OUTPUTS/TEST/refused.txt (why the target does
 * not support the test) or OUTPUTS/TEST/output_0.npy, output_1.npy ...; bfloat16 as uint16 bits. Instead of .npy,
 * outputs may be flat files (.flat), see README.txt. Each test that does not agree is one line.
 *
 * Exit codes: 1 for wrong, inconsistent and crashes (no outputs, or unreadable ones), with --strict also for differs;
 * 2 for a broken suite; else 0. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANK = 8, MAX_OUTPUTS = 4, MAX_ALTERNATIVES = 64, SCALES = 5, NAME = 96, RECORD = 176, TEXT_TYPE = 8 };
enum { AGREES, DIFFERS, INCONSISTENT, WRONG, REFUSES, CRASHES, VERDICTS };
static const char *const verdict_names[] = {"agrees", "differs", "inconsistent", "wrong", "refuses", "crashes"};

/* ONNX's types, what .npy calls them, bytes per element; of floating types the bits of the significand, the exponent
 * of the smallest subnormal, and the largest value. */
struct type {
    int64_t code;
    const char *name, *npy;
    int size, significand, smallest;
    double largest;
};
static const struct type types[] = {
    {1, "float32", "f4", 4, 24, -149, 3.4028234663852886e38},
    {10, "float16", "f2", 2, 11, -24, 65504.0},
    {11, "float64", "f8", 8, 53, -1074, 1.7976931348623157e308},
    {16, "bfloat16", "V2", 2, 8, -133, 3.3895313892515355e38},
    {2, "uint8", "u1", 1, 0, 0, 0}, {3, "int8", "i1", 1, 0, 0, 0}, {4, "uint16", "u2", 2, 0, 0, 0},
    {5, "int16", "i2", 2, 0, 0, 0}, {6, "int32", "i4", 4, 0, 0, 0}, {7, "int64", "i8", 8, 0, 0, 0},
    {8, "text", "--", 1, 0, 0, 0}, {9, "bool", "b1", 1, 0, 0, 0}, {12, "uint32", "u4", 4, 0, 0, 0},
    {13, "uint64", "u8", 8, 0, 0, 0},
};

struct array {
    char name[NAME];
    const struct type *type;
    int rank;
    int64_t dims[MAX_RANK], count;
    const unsigned char *data;
};

/* One set of outputs that may be given: of the main rule, or of an alternative. */
struct answer {
    char name[NAME], sentence[400], of[NAME];
    int whole, nan_mixed; /* nan_mixed: elements mixed with the main ones are inconsistent */
    const struct array *outputs[MAX_OUTPUTS];
};

/* How far elements may be off: by `bound`, or by the bound of a less precise way to compute if that is larger. */
struct scale {
    const char *sentence;
    int claimed;                 /* whether the target says that it computes so */
    double *limits[MAX_OUTPUTS]; /* of each element */
    double finite[MAX_OUTPUTS];  /* the largest finite one, for alternatives */
    int infinite[MAX_OUTPUTS];   /* whether one is infinite */
};

struct test {
    unsigned char *content;
    struct array *records;
    int64_t record_count;
    int outputs, bits, valid, alternatives, scales;
    struct scale scale[SCALES];
    struct answer main, others[MAX_ALTERNATIVES];
};

/* The outputs of the target, with floating elements converted to double. */
struct got {
    int count;
    unsigned char *content[MAX_OUTPUTS + 1];
    struct array arrays[MAX_OUTPUTS + 1];
    double *values[MAX_OUTPUTS + 1];
    int wider; /* whether one was rounded to the narrower type that is expected */
};

static char problem[600]; /* why the last function that returned 0 or NULL did so */
static const char *precision = "", *accumulate = "";

/* ------------------------------------------------------------------------------------------------ files */

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) {
        fprintf(stderr, "judge: out of memory\n");
        exit(2);
    }
    return memory;
}

/* Read a whole file into memory; NULL if that fails. */
static unsigned char *read_file(const char *path, size_t *size) {
    FILE *stream = fopen(path, "rb");
    size_t room = 1 << 14, used = 0, part;
    unsigned char *content;
    if (!stream) {
        snprintf(problem, sizeof problem, "it cannot be opened");
        return NULL;
    }
    content = allocate(room, 1);
    while ((part = fread(content + used, 1, room - used, stream)) > 0) {
        unsigned char *larger;
        used += part;
        if (used < room) continue;
        larger = room < SIZE_MAX / 2 ? realloc(content, room *= 2) : NULL;
        if (!larger) break;
        content = larger;
    }
    if (ferror(stream) || used == room) {
        snprintf(problem, sizeof problem, "it cannot be read");
        free(content);
        content = NULL;
    }
    fclose(stream);
    *size = used;
    return content;
}

static int exists(const char *path) {
    FILE *stream = fopen(path, "rb");
    int readable = stream && (fgetc(stream) != EOF || !ferror(stream)); /* a folder can be opened, but not read */
    if (stream) fclose(stream);
    return readable;
}

static uint64_t word(const unsigned char *bytes, int size) {
    uint64_t value = 0;
    while (size-- > 0) value = value << 8 | bytes[size];
    return value;
}

static int64_t signed_word(const unsigned char *bytes) {
    uint64_t value = word(bytes, 8);
    int64_t result;
    memcpy(&result, &value, sizeof result);
    return result;
}

static const struct type *type_of_code(int64_t code) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].code == code) return &types[i];
    return NULL;
}

/* Compute an array's number of elements; 0 if its sizes are negative or its data longer than `room` bytes. */
static int count_elements(struct array *array, size_t room) {
    int64_t count = 1;
    int empty = 0;
    for (int axis = 0; axis < array->rank; axis++) {
        if (array->dims[axis] < 0) return 0;
        empty |= array->dims[axis] == 0;
    }
    for (int axis = 0; axis < array->rank && !empty; axis++) {
        if (array->dims[axis] > INT64_MAX / 16 / count) return 0;
        count *= array->dims[axis];
    }
    array->count = empty ? 0 : count;
    return (uint64_t)array->count * array->type->size <= room;
}

/* Read a record at content + *at, and move *at behind it; 0 if it is damaged. */
static int read_record(const unsigned char *content, size_t size, size_t *at, struct array *array) {
    const unsigned char *record = content + *at;
    int64_t rank;
    if (size - *at < RECORD) {
        snprintf(problem, sizeof problem, "it is too short");
        return 0;
    }
    memcpy(array->name, record, NAME);
    array->type = type_of_code(signed_word(record + NAME));
    rank = signed_word(record + NAME + 8);
    if (array->name[NAME - 1] || !array->type || rank < 0 || rank > MAX_RANK) {
        snprintf(problem, sizeof problem, "it has a record of an unknown type or rank");
        return 0;
    }
    array->rank = (int)rank;
    for (int axis = 0; axis < MAX_RANK; axis++) array->dims[axis] = signed_word(record + NAME + 16 + 8 * axis);
    array->data = record + RECORD;
    if (!count_elements(array, size - *at - RECORD)) {
        snprintf(problem, sizeof problem, "it is too short");
        return 0;
    }
    *at += RECORD + ((size_t)array->count * array->type->size + 7) / 8 * 8;
    if (*at > size) *at = size; /* the padding of the last record may be missing */
    return 1;
}

static int begins_flat(const unsigned char *content, size_t size) {
    if (size >= 16 && !memcmp(content, "FLAT0001", 8)) return 1;
    snprintf(problem, sizeof problem, "it is no flat file");
    return 0;
}

/* Return what follows 'key': in the header of a .npy file. */
static const char *after_key(const char *header, const char *key) {
    const char *found = strstr(header, key);
    if (!found) return NULL;
    found += strlen(key);
    while (*found == ' ' || *found == ':') found++;
    return found;
}

static const struct type *type_of_npy(const char *text) {
    if (strlen(text) < 4 || text[0] != '\'' || !strchr("<>|=", text[1])) return NULL;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strncmp(text + 2, types[i].npy, 2) && text[4] == '\'') return &types[i];
    return NULL;
}

/* Parse "(2, 3)"; 0 if that is something else. */
static int parse_shape(const char *text, struct array *array) {
    if (*text++ != '(') return 0;
    for (array->rank = 0;; array->rank++) {
        char *end;
        while (*text == ' ' || *text == ',') text++;
        if (*text == ')') return 1;
        if (array->rank == MAX_RANK || *text < '0' || *text > '9') return 0;
        array->dims[array->rank] = strtoll(text, &end, 10);
        text = end;
    }
}

/* Put elements of size bytes into C order and little-endian bytes, in place. */
static void reorder(unsigned char *data, const struct array *array, int swapped, int fortran) {
    int size = array->type->size;
    unsigned char *copy = allocate((size_t)array->count, (size_t)size);
    memcpy(copy, data, (size_t)array->count * size);
    for (int64_t i = 0; i < array->count; i++) {
        int64_t from = i, rest = i, step[MAX_RANK], product = 1;
        for (int axis = 0; axis < array->rank; axis++) step[axis] = product, product *= array->dims[axis];
        if (fortran) {
            from = 0;
            for (int axis = array->rank; axis-- > 0; rest /= array->dims[axis])
                from += rest % array->dims[axis] * step[axis];
        }
        for (int b = 0; b < size; b++) data[i * size + b] = copy[from * size + (swapped ? size - 1 - b : b)];
    }
    free(copy);
}

static int read_npy(unsigned char *content, size_t size, struct array *array) {
    size_t start, length;
    char *header;
    const char *descr, *order, *shape;
    int swapped = 0, fortran = 0, good = 0;
    snprintf(problem, sizeof problem, "it is no .npy file of a known type");
    if (size < 12 || memcmp(content, "\x93NUMPY", 6) || content[6] < 1 || content[6] > 2 || content[7]) return 0;
    start = content[6] == 1 ? 10 : 12;
    length = (size_t)word(content + 8, content[6] == 1 ? 2 : 4);
    if (length > size - start) return 0;
    header = allocate(length + 1, 1);
    memcpy(header, content + start, length);
    descr = after_key(header, "'descr'");
    order = after_key(header, "'fortran_order'");
    shape = after_key(header, "'shape'");
    if (descr && order && shape && (array->type = type_of_npy(descr)) != NULL) {
        good = parse_shape(shape, array);
        swapped = descr[1] == '>';
        fortran = !strncmp(order, "True", 4);
    }
    free(header);
    array->data = content + start + length;
    if (!good) return 0;
    if (!count_elements(array, size - start - length)) {
        snprintf(problem, sizeof problem, "it is too short");
        return 0;
    }
    if (swapped || fortran) reorder(content + start + length, array, swapped, fortran);
    return 1;
}

/* Copy text as one printable line of at most 200 characters. */
static void one_line(char *line, const unsigned char *text, size_t size) {
    size_t used = 0, start = 0;
    for (size_t i = 0; i < size && i < 200 && text[i] != '\n' && text[i] != '\r'; i++)
        line[used++] = text[i] >= ' ' && text[i] <= '~' ? (char)text[i] : ' ';
    while (used && line[used - 1] == ' ') used--;
    while (start < used && line[start] == ' ') start++;
    memmove(line, line + start, used - start);
    line[used - start] = 0;
}

/* ------------------------------------------------------------------------------------------------ elements */

static int is_float(const struct type *type) { return type->significand > 0; }

static uint64_t bits_of(const struct array *array, int64_t i) {
    return word(array->data + i * array->type->size, array->type->size);
}

static double half_to_double(uint64_t bits) {
    int exponent = (int)(bits >> 10 & 31), fraction = (int)(bits & 1023);
    double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                  : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                 : ldexp(fraction, -24);
    return bits >> 15 & 1 ? -size : size;
}

static double value_of(const struct array *array, int64_t i) {
    uint64_t bits = bits_of(array, i);
    double wide;
    float single;
    uint32_t low = (uint32_t)(array->type->code == 16 ? bits << 16 : bits);
    if (array->type->code == 10) return half_to_double(bits);
    if (array->type->size == 8) return memcpy(&wide, &bits, sizeof wide), wide;
    return memcpy(&single, &low, sizeof single), single;
}

/* Round to nearest even in a floating type. */
static double rounded(double value, const struct type *type) {
    int exponent;
    double result;
    if (isnan(value) || isinf(value) || value == 0) return value;
    frexp(value, &exponent);
    exponent -= type->significand;
    if (exponent < type->smallest) exponent = type->smallest;
    result = ldexp(nearbyint(ldexp(value, -exponent)), exponent);
    return fabs(result) > type->largest ? copysign(INFINITY, value) : result;
}

/* Whether an element is equal to the expected one (any NaN to any NaN), or within the limit. */
static int close_to(const struct array *ours, const struct got *got, int n, int64_t i, double limit) {
    double a, b;
    if (!is_float(ours->type)) return bits_of(ours, i) == bits_of(&got->arrays[n], i);
    a = value_of(ours, i);
    b = got->values[n][i];
    return a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= limit || isinf(limit);
}

/* ------------------------------------------------------------------------------------------------ tests */

static const struct array *record(const struct test *test, const char *name) {
    for (int64_t i = 0; i < test->record_count; i++)
        if (!strcmp(test->records[i].name, name)) return &test->records[i];
    return NULL;
}

static const struct array *numbered(const struct test *test, const char *kind, int number) {
    char name[2 * NAME];
    snprintf(name, sizeof name, "%.100s_%d", kind, number);
    return record(test, name);
}

static int flag(const struct test *test, const char *name, int otherwise) {
    const struct array *found = record(test, name);
    return found && found->count && found->type->code == 7 ? bits_of(found, 0) != 0 : otherwise;
}

/* Copy the text of a record, or of alternatives.NAME.key; an empty one if there is none. */
static void text_of(const struct test *test, const char *name, const char *key, char *text, size_t room) {
    char full[2 * NAME];
    const struct array *found;
    size_t size;
    snprintf(full, sizeof full, key ? "alternatives.%s.%s" : "%s", name, key ? key : "");
    found = record(test, full);
    size = found && found->type->code == TEXT_TYPE ? (size_t)found->count : 0;
    if (size >= room) size = room - 1;
    if (size) memcpy(text, found->data, size);
    text[size] = 0;
}

static int same_shape(const struct array *a, const struct array *b) {
    return a->rank == b->rank && !memcmp(a->dims, b->dims, sizeof *a->dims * (size_t)a->rank);
}

/* Read the bounds of a kind: 1, 0 if the test has none, -1 if they are damaged. */
static int read_scale(struct test *test, const char *kind, struct scale *scale) {
    if (!numbered(test, kind, 0)) return 0;
    for (int n = 0; n < test->outputs; n++) {
        const struct array *bounds = numbered(test, kind, n);
        if (!bounds || bounds->type->code != 11 || !same_shape(bounds, test->main.outputs[n])) {
            snprintf(problem, sizeof problem, "%s_%d is missing, or not float64 of the output's shape", kind, n);
            return -1;
        }
        scale->limits[n] = allocate((size_t)bounds->count, sizeof **scale->limits);
        for (int64_t i = 0; i < bounds->count; i++) {
            double limit = value_of(bounds, i);
            if (scale != test->scale && test->scale[0].limits[n][i] > limit) limit = test->scale[0].limits[n][i];
            if (isinf(limit)) scale->infinite[n] = 1;
            else if (limit > scale->finite[n]) scale->finite[n] = limit;
            scale->limits[n][i] = limit;
        }
    }
    return 1;
}

/* Read the bounds, from the strictest on; say which ones the target claims. */
static int read_scales(struct test *test) {
    static const char *const kinds[SCALES][2] = {{"bound", ""},
                                                 {"tf32_bound", "factors rounded to TF32"},
                                                 {"narrow_bound", "float64 computed in float32"},
                                                 {"wide_bound", "sums in the 16-bit type itself"},
                                                 {"transform_bound", "as precise as a transform such as Winograd's"}};
    char type[NAME];
    text_of(test, "type", NULL, type, sizeof type);
    for (int k = 0; k < SCALES; k++) {
        struct scale *scale = &test->scale[test->scales];
        int found = read_scale(test, kinds[k][0], scale);
        if (found < 0) return 0;
        scale->sentence = kinds[k][1];
        scale->claimed = k == 0 || (k == 1 && *precision) || (k == 3 && !strcmp(accumulate, type));
        test->scales += found;
        if (!test->scales) {
            snprintf(problem, sizeof problem, "it has no bound_0");
            return 0;
        }
    }
    return 1;
}

static int read_alternative(struct test *test, struct answer *answer, const char *name) {
    char kind[NAME], verdict[NAME], prefix[2 * NAME];
    strcpy(answer->name, name);
    text_of(test, name, "kind", kind, sizeof kind);
    text_of(test, name, "verdict", verdict, sizeof verdict);
    text_of(test, name, "sentence", answer->sentence, sizeof answer->sentence);
    text_of(test, name, "of", answer->of, sizeof answer->of);
    answer->whole = strcmp(kind, "element") != 0;
    answer->nan_mixed = !strcmp(verdict, "inconsistent when mixed");
    snprintf(prefix, sizeof prefix, "alternative_%s", name);
    for (int n = 0; n < test->outputs; n++) {
        answer->outputs[n] = numbered(test, prefix, n);
        if (!answer->outputs[n] || answer->outputs[n]->type != test->main.outputs[n]->type) {
            snprintf(problem, sizeof problem, "%.100s_%d is missing or of another type", prefix, n);
            return 0;
        }
    }
    return 1;
}

/* Whether an element alternative's answer exists and has its shapes. */
static int belongs(const struct test *test, const struct answer *other) {
    const struct answer *whole = *other->of ? NULL : &test->main;
    for (int k = 0; k < test->alternatives && *other->of; k++)
        if (test->others[k].whole && !strcmp(test->others[k].name, other->of)) whole = &test->others[k];
    for (int n = 0; whole && n < test->outputs; n++)
        if (!same_shape(other->outputs[n], whole->outputs[n])) whole = NULL;
    if (!whole) snprintf(problem, sizeof problem, "alternative %s belongs to no answer of its shapes", other->name);
    return whole != NULL;
}

/* Read the alternatives, by their records alternatives.NAME.kind. */
static int read_alternatives(struct test *test) {
    static const char before[] = "alternatives.", after[] = ".kind";
    for (int64_t i = 0; i < test->record_count; i++) {
        char name[NAME];
        size_t length;
        if (strncmp(test->records[i].name, before, strlen(before))) continue;
        strcpy(name, test->records[i].name + strlen(before));
        length = strlen(name);
        if (length <= strlen(after) || strcmp(name + length - strlen(after), after)) continue;
        name[length - strlen(after)] = 0;
        if (test->alternatives == MAX_ALTERNATIVES) {
            snprintf(problem, sizeof problem, "it has more than %d alternatives", MAX_ALTERNATIVES);
            return 0;
        }
        if (!read_alternative(test, &test->others[test->alternatives++], name)) return 0;
    }
    for (int k = 0; k < test->alternatives; k++)
        if (!test->others[k].whole && !belongs(test, &test->others[k])) return 0;
    return 1;
}

static int read_test(const char *path, struct test *test) {
    size_t size, at = 16;
    int64_t count;
    if (!(test->content = read_file(path, &size)) || !begins_flat(test->content, size)) return 0;
    count = signed_word(test->content + 8);
    if (count < 0 || (uint64_t)count > size / RECORD) {
        snprintf(problem, sizeof problem, "it is too short");
        return 0;
    }
    test->records = allocate((size_t)count, sizeof *test->records);
    for (; test->record_count < count; test->record_count++)
        if (!read_record(test->content, size, &at, &test->records[test->record_count])) return 0;
    while (test->outputs < MAX_OUTPUTS && (test->main.outputs[test->outputs] = numbered(test, "output", test->outputs)))
        test->outputs++;
    for (int n = 0; n < test->outputs; n++)
        if (test->main.outputs[n]->type->code == TEXT_TYPE) test->outputs = 0;
    if (!test->outputs) snprintf(problem, sizeof problem, "it has no output_0");
    test->main.whole = 1;
    test->bits = flag(test, "bits", 0);
    test->valid = flag(test, "valid", 1);
    return test->outputs && read_scales(test) && read_alternatives(test);
}

/* ------------------------------------------------------------------------------------------------ verdicts */

/* Whether an element is that of an alternative. Where sums may overflow in some order, large elements may, too. */
static int fits_other(const struct scale *scale, const struct array *ours, const struct got *got, int n, int64_t i) {
    double limit = scale->finite[n];
    if (scale->infinite[n] && is_float(ours->type)) {
        double size = fabs(value_of(ours, i));
        if (size > 0.9 * ours->type->largest && !isinf(size)) limit = INFINITY;
    }
    return close_to(ours, got, n, i, limit);
}

static int fits(const struct test *test, const struct scale *scale, const struct answer *answer,
                const struct got *got, int n, int64_t i) {
    const struct array *ours = answer->outputs[n];
    return answer == &test->main ? close_to(ours, got, n, i, scale->limits[n][i]) : fits_other(scale, ours, got, n, i);
}

static int equal(const struct array *a, const struct array *b, int64_t i) {
    double x, y;
    if (!is_float(a->type)) return bits_of(a, i) == bits_of(b, i);
    x = value_of(a, i);
    y = value_of(b, i);
    return x == y || (isnan(x) && isnan(y));
}

/* Whether an element is that of an element alternative, where this is another one than the answer's. */
static int fits_element(const struct scale *scale, const struct answer *other, const struct answer *whole,
                        const struct got *got, int n, int64_t i) {
    return !other->whole && !strcmp(other->of, whole->name) && !equal(whole->outputs[n], other->outputs[n], i) &&
           fits_other(scale, other->outputs[n], got, n, i);
}

/* Write a shape, or an index, as [2, 3]. */
static void list(char *text, size_t room, const int64_t *numbers, int count) {
    size_t used = (size_t)snprintf(text, room, "[");
    for (int i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, room - used, i ? ", %" PRId64 : "%" PRId64, numbers[i]);
    snprintf(text + used, room - used, "]");
}

/* Say how the number, shapes or types of outputs are not the expected ones; 0 if they are. */
static int mismatch(const struct answer *answer, int outputs, const struct got *got, char *reason, size_t room) {
    char ours[200], theirs[200];
    if (got->count != outputs) return snprintf(reason, room, "%d outputs, expected %d", got->count, outputs);
    for (int n = 0; n < outputs; n++) {
        const struct array *a = answer->outputs[n], *b = &got->arrays[n];
        list(ours, sizeof ours, a->dims, a->rank);
        list(theirs, sizeof theirs, b->dims, b->rank);
        if (!same_shape(a, b)) return snprintf(reason, room, "output %d has the shape %s, expected %s", n, theirs, ours);
        if (a->type != b->type)
            return snprintf(reason, room, "output %d is %s, expected %s", n, b->type->name, a->type->name);
    }
    return 0;
}

static int comparable(const struct test *test, const struct answer *answer, const struct got *got) {
    char reason[600];
    return !mismatch(answer, test->outputs, got, reason, sizeof reason);
}

/* Return how many times its bound the worst finite element is off. */
static double factor(const struct test *test, const struct got *got) {
    double worst = 0;
    for (int n = 0; n < test->outputs && n < got->count; n++) {
        const struct array *ours = test->main.outputs[n];
        if (!same_shape(ours, &got->arrays[n]) || !is_float(ours->type) || !got->values[n]) continue;
        for (int64_t i = 0; i < ours->count; i++) {
            double ratio = fabs(value_of(ours, i) - got->values[n][i]) / test->scale[0].limits[n][i];
            if (ratio > worst && !isinf(ratio)) worst = ratio;
        }
    }
    return worst;
}

/* Whether each element is that of an answer, or of one of its element alternatives; mark these as used. */
static int accepted(const struct test *test, const struct scale *scale, const struct answer *whole,
                    const struct got *got, int *used) {
    memset(used, 0, sizeof *used * MAX_ALTERNATIVES);
    if (!comparable(test, whole, got)) return 0;
    for (int n = 0; n < test->outputs; n++)
        for (int64_t i = 0; i < whole->outputs[n]->count; i++) {
            int k = 0;
            if (fits(test, scale, whole, got, n, i)) continue;
            while (k < test->alternatives && !fits_element(scale, &test->others[k], whole, got, n, i)) k++;
            if (k == test->alternatives) return 0;
            used[k] = 1;
        }
    return 1;
}

static void append(char *reason, size_t room, const char *text) {
    size_t length = strlen(reason);
    snprintf(reason + length, room - length, "%s%s", length ? "; " : "", text);
}

/* Say what explains the elements; AGREES if there is nothing to say. */
static int explained(const struct test *test, const struct scale *scale, const struct answer *whole, const int *used,
                     const struct got *got, char *reason, size_t room) {
    char text[200];
    reason[0] = 0;
    if (whole != &test->main) append(reason, room, whole->sentence);
    for (int k = 0; k < test->alternatives; k++)
        if (used[k]) append(reason, room, test->others[k].sentence);
    if (!scale->claimed) {
        snprintf(text, sizeof text, "%s, %.3g times the bound", scale->sentence, factor(test, got));
        append(reason, room, text);
    }
    return whole == &test->main && scale->claimed && !*reason ? AGREES : DIFFERS;
}

/* Whether an element is that of an answer about NaN within the bound of the element, or of its element alternatives. */
static int fits_nan(const struct test *test, const struct answer *answer, const struct got *got, int n, int64_t i) {
    const struct scale *scale = test->scale;
    if (close_to(answer->outputs[n], got, n, i, scale->limits[n][i])) return 1;
    for (int k = 0; k < test->alternatives; k++)
        if (fits_element(scale, &test->others[k], answer, got, n, i)) return 1;
    return 0;
}

/* Whether each element is that of the main answer or of an alternative about NaN, if there are such ones. */
static int inconsistent(const struct test *test, const struct got *got) {
    int about_nan = 0;
    for (int k = 0; k < test->alternatives; k++) about_nan |= test->others[k].whole && test->others[k].nan_mixed;
    if (!about_nan || !comparable(test, &test->main, got)) return 0;
    for (int n = 0; n < test->outputs; n++)
        for (int64_t i = 0; i < test->main.outputs[n]->count; i++) {
            int k = -1, good = fits_nan(test, &test->main, got, n, i);
            while (!good && ++k < test->alternatives) {
                const struct answer *other = &test->others[k];
                good = other->whole && other->nan_mixed && comparable(test, other, got) &&
                       fits_nan(test, other, got, n, i);
            }
            if (!good) return 0;
        }
    return 1;
}

static void element(char *text, size_t room, const struct array *array, const double *values, int64_t i) {
    double value;
    if (!is_float(array->type)) {
        uint64_t bits = bits_of(array, i);
        int unused = 64 - 8 * array->type->size, is_unsigned = array->type->name[0] != 'i';
        int64_t number;
        bits <<= unused;
        memcpy(&number, &bits, sizeof number);
        if (is_unsigned) snprintf(text, room, "%" PRIu64, bits >> unused);
        else snprintf(text, room, "%" PRId64, number / ((int64_t)1 << (unused ? unused : 0)));
        return;
    }
    value = values ? values[i] : value_of(array, i);
    if (isnan(value)) snprintf(text, room, "nan");
    else snprintf(text, room, "%.9g", value);
}

/* Whether an element is that of an answer of the same shapes, or of one of its element alternatives. */
static int fits_mixed(const struct test *test, const struct scale *scale, const struct answer *whole,
                      const struct got *got, int n, int64_t i) {
    if (fits(test, scale, whole, got, n, i)) return 1;
    for (int k = 0; k < test->alternatives; k++)
        if (fits_element(scale, &test->others[k], whole, got, n, i)) return 1;
    return 0;
}

/* Whether any answer explains an element within any bound. */
static int fits_any(const struct test *test, const struct got *got, int n, int64_t i) {
    for (int k = -1; k < test->alternatives; k++) {
        const struct answer *whole = k < 0 ? &test->main : &test->others[k];
        if (!whole->whole || !comparable(test, whole, got)) continue;
        for (int s = 0; s < test->scales; s++)
            if (fits_mixed(test, &test->scale[s], whole, got, n, i)) return 1;
    }
    return 0;
}

/* Describe the first element that no answer explains within any bound. Where each is explained by some answer, but no
   answer explains all, it is the first that the main one does not. */
static void describe(const struct test *test, const struct got *got, char *reason, size_t room) {
    int any = 0;
    for (int n = 0; n < test->outputs; n++)
        for (int64_t i = 0; i < test->main.outputs[n]->count && !any; i++) any = !fits_any(test, got, n, i);
    for (int n = 0; n < test->outputs; n++) {
        const struct array *ours = test->main.outputs[n];
        int64_t first = -1, wrong = 0, unexplained = 0, index[MAX_RANK] = {0};
        char at[200], expected[64], found[64], counts[160];
        size_t used;
        for (int64_t i = 0; i < ours->count; i++) {
            int here = any && !fits_any(test, got, n, i);
            wrong += !fits(test, test->scale, &test->main, got, n, i);
            unexplained += here;
            if (first < 0 && (any ? here : !fits_mixed(test, test->scale, &test->main, got, n, i))) first = i;
        }
        if (first < 0) continue;
        used = (size_t)snprintf(counts, sizeof counts, "%" PRId64 " of %" PRId64 " elements differ", wrong, ours->count);
        if (unexplained && unexplained < wrong)
            snprintf(counts + used, sizeof counts - used, ", %" PRId64 " of them from every alternative, too",
                     unexplained);
        element(expected, sizeof expected, ours, NULL, first);
        element(found, sizeof found, &got->arrays[n], got->values[n], first);
        for (int axis = ours->rank; axis-- > 0; first /= ours->dims[axis]) index[axis] = first % ours->dims[axis];
        list(at, sizeof at, index, ours->rank);
        snprintf(reason, room, "output %d%s is %s, expected %s (%s)", n, at, found, expected, counts);
        return;
    }
}

static int same_bits(const struct test *test, const struct got *got) {
    for (int n = 0; n < test->outputs; n++)
        for (int64_t i = 0; i < test->main.outputs[n]->count; i++)
            if (bits_of(test->main.outputs[n], i) != bits_of(&got->arrays[n], i)) return 0;
    return 1;
}

/* The first answer that explains all elements, within the strictest bounds possible; -1 if there is none. */
static int defended(const struct test *test, const struct got *got, char *reason, size_t room) {
    int used[MAX_ALTERNATIVES];
    for (int s = 0; s < test->scales; s++)
        for (int k = -1; k < test->alternatives; k++) {
            const struct answer *whole = k < 0 ? &test->main : &test->others[k];
            if (whole->whole && accepted(test, &test->scale[s], whole, got, used))
                return explained(test, &test->scale[s], whole, used, got, reason, room);
        }
    return -1;
}

/* Whether an answer explains the outputs where float32's largest values are float64's: computed in float32. */
static int in_float32(const struct test *test, const struct got *got, char *reason, size_t room) {
    double *values = got->values[0], *kept;
    int64_t count = got->arrays[0].count, changed = 0;
    int found = 0;
    if (got->count < 1 || values == NULL || got->arrays[0].type->code != 11) return 0;
    kept = allocate((size_t)count, sizeof *kept);
    memcpy(kept, values, (size_t)count * sizeof *kept);
    for (int64_t i = 0; i < count; i++)
        if (fabs(values[i]) == FLT_MAX) values[i] = copysign(DBL_MAX, values[i]), changed++;
    if (changed) found = defended(test, got, reason, room) >= 0;
    memcpy(values, kept, (size_t)count * sizeof *kept);
    free(kept);
    return found;
}

static int compare(const struct test *test, const struct got *got, char *reason, size_t room) {
    int verdict = defended(test, got, reason, room);
    if (verdict == AGREES && test->bits && !got->wider && !same_bits(test, got)) {
        snprintf(reason, room, "equal values, other bits");
        return DIFFERS;
    }
    if (verdict >= 0) return verdict;
    if (in_float32(test, got, reason, room)) {
        snprintf(reason, room, "float64 computed in float32");
        return DIFFERS;
    }
    if (inconsistent(test, got)) {
        size_t used = (size_t)snprintf(reason, room, "NaN or not, depending on where it is: ");
        describe(test, got, reason + used, room - used);
        return INCONSISTENT;
    }
    if (!mismatch(&test->main, test->outputs, got, reason, room)) describe(test, got, reason, room);
    return WRONG;
}

/* ------------------------------------------------------------------------------------------------ outputs */

/* Read output n of a target: 1, 0 if there is none, -1 if it cannot be read. */
static int read_output(const char *folder, int n, struct got *got) {
    char path[5000], why[300];
    size_t size, at = 16;
    struct array *array = &got->arrays[n];
    int npy, good;
    snprintf(path, sizeof path, "%s/output_%d.npy", folder, n);
    npy = exists(path);
    if (!npy) snprintf(path, sizeof path, "%s/output_%d.flat", folder, n);
    if (!npy && !exists(path)) return 0;
    got->content[n] = read_file(path, &size);
    good = got->content[n] != NULL;
    if (good && npy) good = read_npy(got->content[n], size, array);
    else if (good)
        good = begins_flat(got->content[n], size) && read_record(got->content[n], size, &at, array) &&
               signed_word(got->content[n] + 8) > 0 && array->type->code != TEXT_TYPE;
    if (good) return 1;
    snprintf(why, sizeof why, "%.299s", problem);
    snprintf(problem, sizeof problem, "output_%d.%s: %s", n, npy ? "npy" : "flat", why);
    return -1;
}

static int read_outputs(const char *folder, struct got *got) {
    int read = 1;
    while (got->count <= MAX_OUTPUTS && (read = read_output(folder, got->count, got)) > 0) got->count++;
    if (!got->count && !read)
        snprintf(problem, sizeof problem, "neither refused.txt nor output_0.npy nor output_0.flat");
    return got->count && read >= 0;
}

/* Convert floating elements to double; round those of a wider type than the expected one. */
static void convert(const struct test *test, struct got *got) {
    for (int n = 0; n < got->count; n++) {
        struct array *array = &got->arrays[n];
        const struct type *wanted = n < test->outputs ? test->main.outputs[n]->type : array->type;
        int round = got->count == test->outputs && is_float(wanted) && is_float(array->type) &&
                    array->type->size > wanted->size;
        if (wanted->code == 16 && array->type->code == 4) array->type = wanted; /* .npy has no bfloat16 */
        if (!is_float(array->type)) continue;
        got->values[n] = allocate((size_t)array->count, sizeof *got->values[n]);
        for (int64_t i = 0; i < array->count; i++) {
            double value = value_of(array, i);
            got->values[n][i] = round ? rounded(value, wanted) : value;
        }
        if (round) array->type = wanted;
        got->wider |= round;
    }
}

static int judge_outputs(const struct test *test, const char *folder, char *reason, size_t room) {
    struct got got = {0};
    int verdict = CRASHES;
    if (!read_outputs(folder, &got)) snprintf(reason, room, "%s", problem);
    else {
        convert(test, &got);
        verdict = compare(test, &got, reason, room);
        if (got.wider && (verdict == AGREES || verdict == DIFFERS)) {
            static const char wider[] = "right values, in a wider type; ";
            size_t length = strlen(reason), shown = sizeof wider - (length ? 1 : 3);
            if (length > room - shown - 1) length = room - shown - 1;
            memmove(reason + shown, reason, length);
            memcpy(reason, wider, shown);
            reason[shown + length] = 0;
            verdict = DIFFERS;
        }
    }
    for (int n = 0; n <= MAX_OUTPUTS; n++) free(got.content[n]), free(got.values[n]);
    return verdict;
}

/* The verdict on what a target left in a folder. */
static int judge_folder(const struct test *test, const char *folder, char *reason, size_t room) {
    char path[5000];
    unsigned char *refusal;
    size_t size;
    snprintf(path, sizeof path, "%s/refused.txt", folder);
    if (!exists(path)) return judge_outputs(test, folder, reason, room);
    refusal = read_file(path, &size);
    one_line(reason, refusal ? refusal : (const unsigned char *)"", refusal ? size : 0);
    free(refusal);
    return test->valid ? REFUSES : AGREES;
}

/* ------------------------------------------------------------------------------------------------ command */

/* Judge one test and print its line; -1 if the suite is broken. */
static int judge_test(const char *suite, const char *outputs, const char *name) {
    char path[4700], reason[1200] = "";
    struct test *test = allocate(1, sizeof *test);
    int verdict = -1;
    snprintf(path, sizeof path, "%s/%s/test.flat", suite, name);
    if (!read_test(path, test)) fprintf(stderr, "judge: the suite is broken: %s: test.flat: %s\n", name, problem);
    else {
        snprintf(path, sizeof path, "%s/%s", outputs, name);
        verdict = judge_folder(test, path, reason, sizeof reason);
        if (verdict != AGREES) printf("%s %s: %s\n", verdict_names[verdict], name, reason);
    }
    for (int k = 0; k < SCALES; k++)
        for (int n = 0; n < MAX_OUTPUTS; n++) free(test->scale[k].limits[n]);
    free(test->records);
    free(test->content);
    free(test);
    return verdict;
}

static int usage(void) {
    fprintf(stderr, "usage: judge SUITE OUTPUTS [--filter TEXT] [--strict] [--precision tf32]"
                    " [--accumulate float16|bfloat16]\n");
    return 2;
}

/* Cut the next name out of the list; NULL at its end. */
static char *next_name(char **rest) {
    char *name = *rest + strspn(*rest, "\r\n");
    size_t length = strcspn(name, "\r\n");
    if (!length) return NULL;
    *rest = name + length + (name[length] != 0);
    name[length] = 0;
    return name;
}

static int judge_suite(const char *suite, const char *outputs, const char *filter, int strict) {
    char path[4700], *names, *rest, *name;
    int64_t counts[VERDICTS] = {0}, tests = 0, broken = 0;
    size_t size;
    unsigned char *content;
    snprintf(path, sizeof path, "%s/tests.txt", suite);
    if (!(content = read_file(path, &size))) {
        fprintf(stderr, "judge: %s: %s\n", path, problem);
        return 2;
    }
    rest = names = allocate(size + 1, 1);
    memcpy(names, content, size);
    free(content);
    while ((name = next_name(&rest)) != NULL) {
        int verdict = -1;
        if (!strstr(name, filter)) continue;
        if (strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != strlen(name))
            fprintf(stderr, "judge: the suite is broken: tests.txt has something that is no name\n");
        else verdict = judge_test(suite, outputs, name);
        tests++;
        if (verdict < 0) broken++;
        else counts[verdict]++;
    }
    free(names);
    if (!tests) {
        fprintf(stderr, "judge: no test's name contains '%s'\n", filter);
        return 2;
    }
    printf("%" PRId64 " tests: ", tests - broken);
    for (int k = 0; k < VERDICTS; k++) printf("%s%" PRId64 " %s", k ? ", " : "", counts[k], verdict_names[k]);
    printf("\n");
    if (broken) return 2;
    return counts[WRONG] || counts[INCONSISTENT] || counts[CRASHES] || (strict && counts[DIFFERS]);
}

int main(int count, char **words) {
    const char *filter = "";
    int strict = 0;
    if (count < 3) return usage();
    for (int i = 3; i < count; i++) {
        int more = i + 1 < count;
        if (!strcmp(words[i], "--strict")) strict = 1;
        else if (!strcmp(words[i], "--filter") && more) filter = words[++i];
        else if (!strcmp(words[i], "--precision") && more && !strcmp(words[i + 1], "tf32")) precision = words[++i];
        else if (!strcmp(words[i], "--accumulate") && more &&
                 (!strcmp(words[i + 1], "float16") || !strcmp(words[i + 1], "bfloat16")))
            accumulate = words[++i];
        else return usage();
    }
    if (strlen(words[1]) > 4000 || strlen(words[2]) > 4000) return usage();
    return judge_suite(words[1], words[2], filter, strict);
}
