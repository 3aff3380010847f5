/* safetensors: what is written is read again, conversions are exact or rounded to nearest even, and no file, however
   damaged or lying, does more than fail with a message. */
#define ACCEL_IMPLEMENTATION
#include "accel_io.h"

#include <signal.h>
#include <sys/resource.h>

#include "test.h"
#include "helpers.h"
#include "files.h"

#define FOLDER "build/tmp/safetensors"
#define PATH FOLDER "/file.safetensors"

static accel_t *open_context(void) {
    accel_t *acc = context();
    accel__make_folder(acc, FOLDER);
    CHECK_FINE(acc);
    return acc;
}

/* A file with this header, as it stands, and so many bytes of data. */
static void write_raw(const char *header, size_t data_bytes) {
    char raw[4096] = {0};
    uint64_t length = strlen(header);
    memcpy(raw, &length, 8);
    memcpy(raw + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++) raw[8 + length + i] = (char)i;
    write_bytes(PATH, raw, 8 + length + data_bytes);
}

/* ---- writing and reading ---- */

static const float floats[6] = {0, -1.5f, 3.25f, 1e30f, -0.0f, 0.1f};
static const int32_t ints[4] = {0, -7, INT32_MAX, INT32_MIN};
static const int64_t longs[4] = {5, -6, INT32_MAX, INT32_MIN};

static const accel_named_array arrays[] = {
    {"second", ACCEL_F32, {2, {2, 3, 1, 1}}, floats},
    {"halves", ACCEL_F16, {1, {3, 1, 1, 1}}, floats},
    {"brains", ACCEL_BF16, {4, {1, 3, 1, 2}}, floats},
    {"ints", ACCEL_I32, {1, {4, 1, 1, 1}}, ints},
    {"longs", ACCEL_I64, {3, {1, 2, 2, 1}}, longs},
    {"scalar \"\xc3\xa9\"\n", ACCEL_F32, {0, {1, 1, 1, 1}}, floats + 5},
};

TEST(what_is_written_is_read_again) {
    accel_t *acc = open_context();
    const char *metadata[] = {"format", "pt", "note", "a \"b\"", NULL};
    CHECK(accel_safetensors_write(acc, PATH, arrays, COUNT(arrays), metadata));
    accel_safetensors *file = accel_safetensors_open(acc, PATH);
    CHECK_FINE(acc);
    CHECK(accel_safetensors_count(file) == COUNT(arrays));
    float read[6] = {0};
    int32_t read_ints[4] = {0};
    for (int i = 0; i < COUNT(arrays); i++) {
        int index = accel_safetensors_find(file, arrays[i].name);
        accel_shape shape = accel_safetensors_shape(file, index);
        CHECK(index >= 0 && strcmp(accel_safetensors_name(file, index), arrays[i].name) == 0);
        CHECK(accel_safetensors_dtype(file, index) == arrays[i].dtype);
        CHECK(memcmp(&shape, &arrays[i].shape, sizeof shape) == 0);
    }
    CHECK(accel_safetensors_read(file, accel_safetensors_find(file, "second"), read, 6));
    CHECK(memcmp(read, floats, sizeof floats) == 0);
    CHECK(accel_safetensors_read(file, accel_safetensors_find(file, "halves"), read, 3) && read[1] == -1.5f &&
          read[2] == 3.25f);
    CHECK(accel_safetensors_read(file, accel_safetensors_find(file, "brains"), read, 6) && read[2] == 3.25f);
    CHECK_NEAR(read[5], 0.1, 0.0004);
    CHECK(signbit(read[4]) && read[4] == 0);
    CHECK(accel_safetensors_read(file, accel_safetensors_find(file, arrays[5].name), read, 1) && read[0] == 0.1f);
    CHECK(accel_safetensors_read_ints(file, accel_safetensors_find(file, "ints"), read_ints, 4));
    CHECK(memcmp(read_ints, ints, sizeof ints) == 0);
    CHECK(accel_safetensors_read_ints(file, accel_safetensors_find(file, "longs"), read_ints, 4));
    CHECK(read_ints[0] == 5 && read_ints[1] == -6 && read_ints[2] == INT32_MAX && read_ints[3] == INT32_MIN);
    CHECK(accel_safetensors_find(file, "third") == -1 && accel_safetensors_find(file, "") == -1);
    accel_free(file);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(large_tensors_are_read_in_pieces) {
    accel_t *acc = open_context();
    int n = 3 * (int)ACCEL__CONVERT_PIECE + 17;
    float *values = malloc((size_t)n * sizeof *values), *read = calloc((size_t)n, sizeof *read);
    for (int i = 0; i < n; i++) values[i] = (float)(i % 251) - 100;
    const accel_named_array large[] = {{"b", ACCEL_BF16, accel_1d(n), values}, {"f", ACCEL_F32, accel_1d(n), values}};
    CHECK(accel_safetensors_write(acc, PATH, large, 2, NULL));
    accel_safetensors *file = accel_safetensors_open(acc, PATH);
    for (int i = 0; i < 2; i++) {
        memset(read, 0, (size_t)n * sizeof *read);
        CHECK(accel_safetensors_read(file, i, read, n));
        CHECK(memcmp(read, values, (size_t)n * sizeof *read) == 0);
    }
    CHECK_FINE(acc);
    accel_destroy(acc); /* frees the open file too */
    free(values);
    free(read);
}

/* The header is padded to 8 bytes, wide elements come first, then names count; the order of the arrays does not. */
TEST(files_are_deterministic_and_aligned) {
    accel_t *acc = open_context();
    accel_named_array reversed[COUNT(arrays)];
    for (int i = 0; i < COUNT(arrays); i++) reversed[i] = arrays[COUNT(arrays) - 1 - i];
    size_t bytes = 0, other_bytes = 0;
    CHECK(accel_safetensors_write(acc, PATH, arrays, COUNT(arrays), NULL));
    char *text = accel__read_file(acc, PATH, &bytes);
    CHECK(accel_safetensors_write(acc, PATH, reversed, COUNT(arrays), NULL));
    char *other = accel__read_file(acc, PATH, &other_bytes);
    CHECK(text && other && bytes == other_bytes && memcmp(text, other, bytes) == 0);
    uint64_t header = 0;
    memcpy(&header, text, 8);
    CHECK(header % 8 == 0 && text[8] == '{' && strchr("} ", text[8 + header - 1]));
    accel_safetensors *file = accel_safetensors_open(acc, PATH);
    for (int i = 0; i < accel_safetensors_count(file); i++)
        CHECK(file->entries[i].begin * 8 % (uint64_t)file->entries[i].dtype->bits == 0);
    accel__free(acc, text);
    accel__free(acc, other);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(a_file_without_tensors_is_a_file) {
    accel_t *acc = open_context();
    CHECK(accel_safetensors_write(acc, PATH, NULL, 0, NULL));
    accel_safetensors *file = accel_safetensors_open(acc, PATH);
    CHECK(file && accel_safetensors_count(file) == 0 && accel_safetensors_find(file, "x") == -1);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(other_dtypes_are_listed_but_not_read) {
    accel_t *acc = open_context();
    float value;
    write_raw("{\"d\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]},"
              "\"f\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1],\"data_offsets\":[8,12]},\"q\":{\"dtype\":\"F4\","
              "\"shape\":[2],\"data_offsets\":[12,13]},"
              "\"e\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[13,13]},\"h\":{\"dtype\":\"F32\",\"shape\":["
              "0,3000000000],\"data_offsets\":[13,13]}}",
              13);
    accel_safetensors *file = accel_safetensors_open(acc, PATH);
    CHECK_FINE(acc);
    CHECK(accel_safetensors_count(file) == 5 && accel_safetensors_dtype(file, 0) == ACCEL_OTHER_DTYPE);
    CHECK(!accel_safetensors_read(file, 0, &value, 1));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "tensor d has dtype F64");
    int five = accel_safetensors_find(file, "f");
    accel_shape shape = accel_safetensors_shape(file, five);
    CHECK(shape.rank == 0 && shape.dim[0] == 0);
    CHECK(!accel_safetensors_read(file, five, &value, 1));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "tensor f has 5 dimensions");
    CHECK(accel_safetensors_read(file, accel_safetensors_find(file, "e"), NULL, 0));
    CHECK(!accel_safetensors_read(file, accel_safetensors_find(file, "h"), NULL, 0));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "too large");
    accel_destroy(acc);
}

TEST(reading_checks_type_count_and_range) {
    accel_t *acc = open_context();
    const int64_t big[2] = {1, INT64_C(1) << 40};
    const accel_named_array two[] = {{"f", ACCEL_F32, {1, {3, 1, 1, 1}}, floats},
                                     {"l", ACCEL_I64, {1, {2, 1, 1, 1}}, big}};
    float values[4];
    int32_t whole[4];
    CHECK(accel_safetensors_write(acc, PATH, two, 2, NULL));
    accel_safetensors *file = accel_safetensors_open(acc, PATH);
    CHECK(!accel_safetensors_read(file, 0, values, 4));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "tensor f has 3 elements, there is room for 4");
    CHECK(!accel_safetensors_read(file, 0, NULL, 3));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "room for 0");
    CHECK(!accel_safetensors_read(file, 1, values, 2));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "tensor l has dtype I64; F32, F16 and BF16");
    CHECK(!accel_safetensors_read_ints(file, 0, whole, 3));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "tensor f has dtype F32; I32 and I64");
    CHECK(!accel_safetensors_read_ints(file, 1, whole, 2));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "element 1 is 1099511627776");
    CHECK(!accel_safetensors_read(file, 2, values, 1));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "number 2 of 2");
    CHECK(!accel_safetensors_read(file, -1, values, 1));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "number -1 of 2");
    CHECK(accel_safetensors_name(file, 2) == NULL && accel_safetensors_shape(file, 2).dim[0] == 0);
    accel_destroy(acc);
}

TEST(null_is_accepted_everywhere) {
    accel_t *acc = open_context();
    CHECK(accel_safetensors_open(NULL, PATH) == NULL && accel_safetensors_count(NULL) == 0);
    CHECK(accel_safetensors_name(NULL, 0) == NULL && accel_safetensors_find(NULL, "a") == -1);
    CHECK(accel_safetensors_shape(NULL, 0).dim[0] == 0 && accel_safetensors_dtype(NULL, 0) == ACCEL_OTHER_DTYPE);
    CHECK(!accel_safetensors_read(NULL, 0, NULL, 0) && !accel_safetensors_read_ints(NULL, 0, NULL, 0));
    CHECK(!accel_safetensors_write(NULL, PATH, NULL, 0, NULL));
    CHECK(accel_safetensors_open(acc, NULL) == NULL);
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "path is NULL");
    CHECK(!accel_safetensors_write(acc, NULL, NULL, 0, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "path or arrays are NULL");
    accel__fail(acc, ACCEL_BAD_STATE, "before");
    CHECK(accel_safetensors_open(acc, PATH) == NULL && !accel_safetensors_write(acc, PATH, arrays, 1, NULL));
    CHECK_TEXT(accel_message(acc), "before");
    accel_destroy(acc);
}

/* ---- 16-bit floats ---- */

static bool is_nan16(unsigned bits, unsigned infinity) {
    return (bits & 0x7fff) > infinity;
}

/* Every 16-bit number goes to float and back unchanged; each value half way to its neighbour goes to the even one, and
   the floats next to half way go to the nearer one. */
static void check_16_bits(float (*widen)(uint16_t), uint16_t (*narrow)(float), unsigned infinity) {
    for (unsigned bits = 0; bits < 65536; bits++) {
        float value = widen((uint16_t)bits);
        if (is_nan16(bits, infinity)) {
            CHECK(isnan(value) && is_nan16(narrow(value), infinity) && (narrow(value) & 0x8000) == (bits & 0x8000));
            continue;
        }
        CHECK(narrow(value) == bits);
        if ((bits & 0x7fff) + 1 >= infinity) continue;
        float middle = (float)(((double)value + (double)widen((uint16_t)(bits + 1))) / 2); /* exact */
        unsigned even = bits & 1 ? bits + 1 : bits;
        float to_zero = nextafterf(middle, 0), from_zero = nextafterf(middle, middle > 0 ? INFINITY : -INFINITY);
        CHECK(narrow(middle) == even && narrow(to_zero) == bits && narrow(from_zero) == bits + 1);
    }
    CHECK(narrow(INFINITY) == infinity && narrow(-INFINITY) == (infinity | 0x8000));
    CHECK(narrow(0x1.fffffep127f) == infinity); /* more than half way past the largest */
}

TEST(half_floats_are_exact_and_rounded_to_even) {
    check_16_bits(accel__float_from_half, accel__half_from_float, 0x7c00);
    CHECK(accel__float_from_half(0x0001) == 0x1p-24f && accel__float_from_half(0x03ff) == 0x3ffp-24f);
    CHECK(accel__float_from_half(0x3c00) == 1 && accel__float_from_half(0x7bff) == 65504);
    CHECK(accel__half_from_float(65519.99f) == 0x7bff && accel__half_from_float(65520) == 0x7c00);
    CHECK(accel__half_from_float(0x1p-25f) == 0 && accel__half_from_float(0x1.000002p-25f) == 1);
    CHECK(accel__half_from_float(1e-45f) == 0 && accel__half_from_float(-1e-45f) == 0x8000);
}

TEST(bfloats_are_exact_and_rounded_to_even) {
    check_16_bits(accel__float_from_bfloat, accel__bfloat_from_float, 0x7f80);
    CHECK(accel__float_from_bfloat(0x3f80) == 1 && accel__float_from_bfloat(0x0001) == 0x1p-133f);
    CHECK(accel__bfloat_from_float(accel__from_bits(0x7f800001)) == 0x7fc0); /* a NaN whose payload is all low bits */
}

/* ---- files that lie ---- */

static const struct {
    const char *header;
    size_t data;
    const char *message;
} lies[] = {
    {"", 0, "malformed JSON"},
    {"{", 0, "malformed JSON near byte"},
    {"[]", 0, "no JSON object"},
    {"{} {}", 0, "malformed JSON"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 3,
     "truncated: tensor a ends at byte 4 of the data, the file has 3"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5, "1 bytes behind the last tensor"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8,
     "tensor a begins at byte 4 of the data, where nothing"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_"
     "offsets\":[8,12]}}",
     12, "tensor b begins at byte 8 of the data, where the one before it ends at 4"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_"
     "offsets\":[4,8]}}",
     8, "tensor b begins at byte 4 of the data, where the one before it ends at 8"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_"
     "offsets\":[4,8]}}",
     8, "two tensors have the name a"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
     "tensor a: 2 elements of F32 are not the 4 bytes"},
    {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, "3 elements of F4 are not the 1 bytes"},
    {"{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown dtype \"F31\""},
    {"{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "no dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "dimension 0 of its shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1.5],\"data_offsets\":[0,4]}}", 4, "dimension 1 of its shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[\"1\"],\"data_offsets\":[0,4]}}", 4, "dimension 0 of its shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1e300],\"data_offsets\":[0,4]}}", 4, "dimension 0 of its shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
     "too many elements"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,4]}}", 4, "has no shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "has no shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "a begin and an end"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "a begin and an end"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "a begin and an end"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "a begin and an end"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0.5,4.5]}}", 5, "a begin and an end"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[18446744073709551612,0]}}", 4, "a begin and an end"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "a begin and an end"},
    {"{\"a\":7}", 0, "no JSON object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__"},
    {"{\"__metadata__\":\"a\"}", 0, "__metadata__"},
};

TEST(lying_headers_are_refused_by_name) {
    accel_t *acc = open_context();
    for (int i = 0; i < COUNT(lies); i++) {
        write_raw(lies[i].header, lies[i].data);
        CHECK(accel_safetensors_open(acc, PATH) == NULL);
        CHECK_TEXT(accel_message(acc), PATH);
        CHECK_ERROR(acc, ACCEL_BAD_FILE, lies[i].message);
    }
    accel_destroy(acc);
}

TEST(files_that_are_no_safetensors_are_refused) {
    accel_t *acc = open_context();
    CHECK(!accel_safetensors_open(acc, FOLDER "/absent"));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, FOLDER "/absent cannot be read: No such file");
    CHECK(!accel_safetensors_open(acc, FOLDER));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "no safetensors file");
    write_bytes(PATH, "", 0);
    CHECK(!accel_safetensors_open(acc, PATH));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "8 bytes or more");
    const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
    write_text(PATH, pointer);
    CHECK(!accel_safetensors_open(acc, PATH));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "Git LFS pointer");
    write_bytes(PATH, "\x80\x02}q\x00X\x00\x00\x00\x00", 11);
    CHECK(!accel_safetensors_open(acc, PATH));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "its header would have");
    write_bytes(PATH, "\x03\x00\x00\x00\x00\x00\x00\x00{}\x00", 11); /* a NUL in the header */
    CHECK(!accel_safetensors_open(acc, PATH));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "malformed JSON near byte 2");
    accel_destroy(acc);
}

/* Opens the bytes as a file. Where it is accepted, every tensor must lie within the data and be read without fault. */
static bool try_bytes(accel_t *acc, const char *raw, size_t bytes) {
    float values[64];
    int32_t whole[64];
    write_bytes(PATH, raw, bytes);
    accel_safetensors *file = accel_safetensors_open(acc, PATH);
    bool accepted = file != NULL;
    CHECK(accepted != accel_failed(acc));
    CHECK(accepted || accel_error(acc) == ACCEL_BAD_FILE);
    for (int i = 0; i < accel_safetensors_count(file); i++) {
        const accel__entry *entry = &file->entries[i];
        CHECK(entry->begin <= entry->end && entry->end <= file->data_bytes && entry->elements <= 64);
        if (accel_safetensors_dtype(file, i) == ACCEL_I64) accel_safetensors_read_ints(file, i, whole, entry->elements);
        else accel_safetensors_read(file, i, values, entry->elements);
    }
    accel_free(file);
    accel_clear(acc);
    return accepted;
}

static size_t small_file(accel_t *acc, char *raw, size_t room) {
    const accel_named_array three[] = {{"ab", ACCEL_F32, {2, {2, 3, 1, 1}}, floats},
                                       {"c", ACCEL_BF16, {1, {4, 1, 1, 1}}, floats},
                                       {"de", ACCEL_I64, {1, {2, 1, 1, 1}}, longs}};
    const char *metadata[] = {"format", "pt", NULL};
    size_t bytes = 0;
    CHECK(accel_safetensors_write(acc, PATH, three, 3, metadata));
    char *text = accel__read_file(acc, PATH, &bytes);
    CHECK(text && bytes <= room);
    if (text) memcpy(raw, text, bytes);
    accel__free(acc, text);
    return bytes;
}

TEST(truncated_files_are_refused_at_every_length) {
    accel_t *acc = open_context();
    char raw[1024];
    size_t bytes = small_file(acc, raw, sizeof raw);
    for (size_t length = 0; length < bytes; length++) CHECK(!try_bytes(acc, raw, length));
    CHECK(try_bytes(acc, raw, bytes));
    accel_destroy(acc);
}

TEST(damaged_headers_do_no_harm) {
    static const char stuff[] = {0,   ' ', '"', '\\', '{', '}', '[', ']',        ',',       ':',
                                 '-', '.', '0', '1',  '9', 'e', 'F', (char)0x80, (char)0xff};
    accel_t *acc = open_context();
    char raw[1024];
    size_t bytes = small_file(acc, raw, sizeof raw);
    uint64_t header = 0;
    memcpy(&header, raw, 8);
    int refused = 0;
    for (size_t at = 0; at < 8 + header; at++) {
        char original = raw[at];
        for (int bit = 0; bit < 8; bit++) {
            raw[at] = (char)(original ^ 1 << bit);
            refused += !try_bytes(acc, raw, bytes);
        }
        for (size_t i = 0; i < sizeof stuff; i++) {
            raw[at] = stuff[i];
            refused += !try_bytes(acc, raw, bytes);
        }
        raw[at] = original;
    }
    CHECK(refused > 1000);
    for (size_t at = 8; at < 8 + header; at++) { /* a byte cut out, the length told accordingly */
        char cut[1024];
        uint64_t shorter = header - 1;
        memcpy(cut, &shorter, 8);
        memcpy(cut + 8, raw + 8, at - 8);
        memcpy(cut + at, raw + at + 1, bytes - at - 1);
        try_bytes(acc, cut, bytes - 1);
    }
    accel_destroy(acc);
}

/* ---- nothing is half-written ---- */

TEST(a_refused_write_leaves_the_old_file) {
    accel_t *acc = open_context();
    CHECK(accel_safetensors_write(acc, PATH, arrays, 1, NULL));
    int files = files_in(FOLDER);
    const accel_named_array twice[] = {arrays[0], arrays[0]};
    accel_named_array broken = arrays[0];
    CHECK(!accel_safetensors_write(acc, PATH, twice, 2, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "two tensors have the name second");
    broken.values = NULL;
    CHECK(!accel_safetensors_write(acc, PATH, &broken, 1, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "tensor second: values are NULL");
    broken = arrays[0];
    broken.shape.rank = 5;
    CHECK(!accel_safetensors_write(acc, PATH, &broken, 1, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "tensor second: bad shape");
    broken = arrays[0];
    broken.dtype = ACCEL_OTHER_DTYPE;
    CHECK(!accel_safetensors_write(acc, PATH, &broken, 1, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "cannot be written");
    broken = arrays[0];
    broken.name = NULL;
    CHECK(!accel_safetensors_write(acc, PATH, &broken, 1, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "no name");
    CHECK(files_in(FOLDER) == files);
    accel_safetensors *file = accel_safetensors_open(acc, PATH);
    CHECK(accel_safetensors_count(file) == 1 && accel_safetensors_find(file, "second") == 0);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(a_write_that_fails_halfway_leaves_the_old_file) {
    accel_t *acc = open_context();
    struct rlimit before, small;
    static float zeros[65536];
    const accel_named_array large = {"large", ACCEL_F32, {1, {65536, 1, 1, 1}}, zeros};
    CHECK(accel_safetensors_write(acc, PATH, arrays, 1, NULL));
    int files = files_in(FOLDER);
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    small = before;
    small.rlim_cur = 20000;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    CHECK(!accel_safetensors_write(acc, PATH, &large, 1, NULL));
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    signal(SIGXFSZ, handler);
    CHECK_ERROR(acc, ACCEL_BAD_FILE, PATH " cannot be written: File too large");
    CHECK(files_in(FOLDER) == files);
    accel_safetensors *file = accel_safetensors_open(acc, PATH);
    CHECK(accel_safetensors_find(file, "second") == 0);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(unwritable_targets_are_named) {
    accel_t *acc = open_context();
    CHECK(!accel_safetensors_write(acc, FOLDER "/absent/file", arrays, 1, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, FOLDER "/absent/file cannot be written: No such file");
    CHECK(!accel_safetensors_write(acc, FOLDER, arrays, 1, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "it is a folder");
    char *path = malloc(10001);
    memset(path, 'x', 10000);
    path[10000] = 0;
    CHECK(!accel_safetensors_write(acc, path, arrays, 1, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "path is longer");
    free(path);
    write_bytes(PATH, "x", 1);
    CHECK(!accel__make_folder(acc, PATH "/below"));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "folder " PATH);
    CHECK(accel__make_folder(acc, FOLDER "/a//b/c/") && accel__is_folder(FOLDER "/a/b/c"));
    CHECK(rmdir(FOLDER "/a/b/c") == 0 && rmdir(FOLDER "/a/b") == 0 && rmdir(FOLDER "/a") == 0);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* ---- the common helpers ---- */

TEST(json_files_say_where_they_break) {
    accel_t *acc = open_context();
    write_text(FOLDER "/x.json", "{\n \"a\": 1,\n \"b\" 2\n}\n");
    CHECK(accel__json_read(acc, FOLDER "/x.json") == NULL);
    CHECK_ERROR(acc, ACCEL_BAD_FILE, FOLDER "/x.json: malformed JSON near line 3");
    write_text(FOLDER "/x.json", "{} trailing");
    CHECK(accel__json_read(acc, FOLDER "/x.json") == NULL);
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "malformed JSON near line 1, column 4");
    write_bytes(FOLDER "/x.json", "{\"a\":1}\0", 8);
    CHECK(accel__json_read(acc, FOLDER "/x.json") == NULL);
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "malformed JSON");
    write_text(FOLDER "/x.json", "");
    CHECK(accel__json_read(acc, FOLDER "/x.json") == NULL);
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "malformed JSON");
    write_text(FOLDER "/x.json", " {\"a\":1}\n");
    cJSON *json = accel__json_read(acc, FOLDER "/x.json");
    CHECK_FINE(acc);
    CHECK(cJSON_IsObject(json));
    cJSON_Delete(json);
    accel_destroy(acc);
}

TEST(a_writer_after_a_failure_does_nothing) {
    accel_t *acc = open_context();
    accel__writer w;
    int files = files_in(FOLDER);
    CHECK(accel__writer_open(&w, acc, FOLDER "/new"));
    CHECK(accel__writer_printf(&w, "%d\n", 5));
    accel__fail(acc, ACCEL_BAD_STATE, "elsewhere");
    CHECK(!accel__writer_commit(&w) && !accel__writer_put(&w, "x", 1) && !accel__writer_commit(&w));
    accel__writer_abort(&w);
    CHECK_ERROR(acc, ACCEL_BAD_STATE, "elsewhere");
    CHECK(files_in(FOLDER) == files);
    CHECK(accel__writer_open(&w, acc, FOLDER "/new") && accel__writer_printf(&w, "%d\n", 5) &&
          accel__writer_commit(&w));
    size_t bytes = 0;
    char *text = accel__read_file(acc, FOLDER "/new", &bytes);
    CHECK(text && bytes == 2 && strcmp(text, "5\n") == 0);
    accel__free(acc, text);
    CHECK(unlink(FOLDER "/new") == 0 && files_in(FOLDER) == files);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

int main(int argc, char **argv) {
    return lock_folder(FOLDER) ? test_main(argc, argv) : 1;
}
