/* A whole target in C: MaxPool of float32 with explicit pads, in all ranks. It refuses what it does not support.
 *
 *     cc -O2 -o max_pool max_pool.c
 *     while read -r test; do mkdir -p "OUTPUTS/$test"
 *         ./max_pool "SUITE/$test" "OUTPUTS/$test" 2> why || mv why "OUTPUTS/$test/refused.txt"; done < SUITE/tests.txt
 *
 * It reads SUITE/TEST/test.flat and writes OUTPUTS/TEST/output_0.flat (README.txt has the format) on little-endian
 * machines. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct record { char name[96]; int64_t type, rank, dims[8]; }; /* and its data */
static int64_t content[1 << 23]; /* "FLAT0001", the number of records, records */
static struct record *x, y = {"output_0", 1, 0, {0}};
static int64_t kernel[8] = {1, 1}, stride[8] = {1, 1}, dilation[8] = {1, 1}, before[8], taps = 1, outputs;

static struct record *find(const char *name) {
    static const int sizes[17] = {[1] = 4, 1, 1, 2, 2, 4, 8, 1, 1, 2, 8, 4, 8, [16] = 2}; /* of ONNX's types */
    char *at = (char *)(content + 2);
    for (int64_t n = content[1]; n > 0; n--) {
        struct record *record = (struct record *)at;
        int64_t size = sizes[record->type];
        if (!strcmp(record->name, name)) return record;
        for (int axis = 0; axis < record->rank; axis++) size *= record->dims[axis];
        at += sizeof *record + (size + 7) / 8 * 8;
    }
    return NULL;
}

static int64_t attribute(const char *name, int64_t index, int64_t otherwise) {
    struct record *found = find(name);
    return found ? ((int64_t *)(found + 1))[index] : otherwise;
}

static int is_text(const char *name, const char *text) {
    struct record *found = find(name);
    return found && found->dims[0] == (int64_t)strlen(text) && !memcmp(found + 1, text, strlen(text));
}

static void refuse(const char *why) { fprintf(stderr, "%s\n", why), exit(1); }

static float maximum(int64_t i) { /* of the window of output element i */
    float largest = -INFINITY, *elements = (float *)(x + 1);
    int64_t inside = 0;
    for (int64_t t = 0; t < taps && largest == largest; t++) { /* NaN ends it */
        int64_t offset = 0, step = 1, valid = 1, output = i, tap = t;
        for (int64_t a = x->rank - 1; a >= 0; output /= y.dims[a--]) {
            int64_t at = output % y.dims[a] * stride[a] - before[a] + tap % kernel[a] * dilation[a];
            valid &= at >= 0 && at < x->dims[a];
            offset += at * step, step *= x->dims[a], tap /= kernel[a];
        }
        if (valid && !(elements[offset] <= largest)) largest = elements[offset];
        inside += valid;
    }
    return inside ? largest : -3.402823466e38f;
}

int main(int count, char **folders) {
    char path[4096] = "";
    if (count == 3) snprintf(path, sizeof path, "%s/test.flat", folders[1]);
    FILE *file = fopen(path, "rb");
    if (!file || fread(content, 1, sizeof content, file) < 16 || !(x = find("input_0"))) refuse("no test.flat");
    if (!is_text("operator", "max_pool") || x->type != 1 || find("output_1")) refuse("only MaxPool of float32");
    if (find("attributes.auto_pad") && !is_text("attributes.auto_pad", "NOTSET")) refuse("only explicit pads");
    if (attribute("attributes.ceil_mode", 0, 0)) refuse("no ceil_mode");
    y.rank = x->rank, outputs = (y.dims[0] = x->dims[0]) * (y.dims[1] = x->dims[1]);
    for (int64_t a = 2; a < x->rank; a++) {
        taps *= kernel[a] = attribute("attributes.kernel_shape", a - 2, 1);
        stride[a] = attribute("attributes.strides", a - 2, 1);
        dilation[a] = attribute("attributes.dilations", a - 2, 1);
        before[a] = attribute("attributes.pads", a - 2, 0);
        int64_t padded = x->dims[a] + before[a] + attribute("attributes.pads", a - 4 + x->rank, 0);
        int64_t last = padded - (kernel[a] - 1) * dilation[a] - 1; /* where the last window may start */
        outputs *= y.dims[a] = last < 0 ? 0 : last / stride[a] + 1;
    }
    snprintf(path, sizeof path, "%s/output_0.flat", folders[2]);
    if (!(file = fopen(path, "wb"))) refuse("the output cannot be written");
    fwrite("FLAT0001\1\0\0\0\0\0\0", 16, 1, file), fwrite(&y, sizeof y, 1, file);
    for (int64_t i = 0; i < outputs + outputs % 2; i++) { /* padded to 8 bytes */
        float element = i < outputs ? maximum(i) : 0;
        fwrite(&element, sizeof element, 1, file);
    }
    return fclose(file) != 0;
}
