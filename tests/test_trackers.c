/* Trackers: what is read back from the files. The reader of event files below knows TFRecord's frames, the CRC and
   protobuf by itself. */
#define ACCEL_IMPLEMENTATION
#include "accel_io.h"
#include "test.h"
#include "helpers.h"
#include "files.h"
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

#define FOLDER "build/tmp/trackers"

static const char *const pair[] = {"loss", "lr"};

static bool file_is(const char *path, const char *expected) {
    size_t bytes;
    char *text = read_bytes(path, &bytes);
    bool same = text && bytes == strlen(expected) && memcmp(text, expected, bytes) == 0;
    if (!same) printf("  %s holds:\n%s", path, text ? text : "(nothing)\n");
    free(text);
    return same;
}

/* ---- JSON lines ---- */

TEST(json_lines) {
    const char *path = FOLDER "/run.jsonl";
    accel_t *acc = context();
    write_text(path, "what was there before\n");
    accel_tracker *tracker = accel_tracker_open(acc, ACCEL_TRACKER_JSONL, path, NULL);
    CHECK(accel_track_all(tracker, 1, 2, pair, (double[]){0.5, 2e-5}));
    CHECK(file_is(path, "{\"step\": 1, \"loss\": 0.5, \"lr\": 2e-05}\n")); /* at once */
    CHECK(accel_track(tracker, -2, "a \"b\\\" \xc3\xa9/x", INFINITY));
    CHECK(accel_track(tracker, INT64_MAX, "loss", -NAN));
    accel_free(tracker);
    CHECK_FINE(acc);
    CHECK(file_is(path, "{\"step\": 1, \"loss\": 0.5, \"lr\": 2e-05}\n"
                        "{\"step\": -2, \"a \\\"b\\\\\\\" \xc3\xa9/x\": null}\n"
                        "{\"step\": 9223372036854775807, \"loss\": null}\n"));
    size_t bytes;
    char *text = read_bytes(path, &bytes), *line = strchr(text, '\n') + 1;
    *strchr(line, '\n') = 0;
    cJSON *json = cJSON_Parse(line);
    CHECK(cJSON_IsNull(cJSON_GetObjectItem(json, "a \"b\\\" \xc3\xa9/x")));
    cJSON_Delete(json);
    free(text);
    accel_destroy(acc);
}

/* Every double comes back as it was. */
TEST(numbers_come_back) {
    const char *path = FOLDER "/numbers.jsonl";
    static const double numbers[] = {0, 1, -1, 0.1, 1 / 3.0, 1e300, -4.9e-324, 123456789, 0x1.fffffffffffffp+1023,
                                     16777217, (double)0.1f, 5e-5};
    accel_t *acc = context();
    accel_tracker *tracker = accel_tracker_open(acc, ACCEL_TRACKER_JSONL, path, NULL);
    uint64_t state = 4;
    double random[100];
    for (int i = 0; i < 100; i++) {
        random[i] = random_between(&state, -1, 1) * pow(10, random_int(&state, -30, 30));
        accel_track(tracker, i, "x", i < COUNT(numbers) ? numbers[i] : random[i]);
    }
    CHECK_FINE(acc);
    size_t bytes;
    char *text = read_bytes(path, &bytes), *line = text;
    for (int i = 0; i < 100; i++, line = strchr(line, '\n') + 1) {
        char begin[64];
        int length = snprintf(begin, sizeof begin, "{\"step\": %d, \"x\": ", i);
        CHECK(!strncmp(line, begin, (size_t)length));
        CHECK(strtod(line + length, NULL) == (i < COUNT(numbers) ? numbers[i] : random[i]));
    }
    CHECK(!*line);
    free(text);
    accel_destroy(acc);
}

TEST(names_that_are_refused) {
    accel_t *acc = context();
    static const char *const bad[] = {"", "step", "a\nb", "\x7f", "\xff\xfe", NULL};
    const char *twice[] = {"x", "y", "x"};
    for (int kind = ACCEL_TRACKER_JSONL; kind <= ACCEL_TRACKER_TENSORBOARD; kind++) {
        accel_tracker *tracker = accel_tracker_open(acc, (accel_tracker_kind)kind, FOLDER "/refused", NULL);
        CHECK_FINE(acc);
        for (int i = 0; i < COUNT(bad); i++) {
            CHECK(!accel_track(tracker, 1, bad[i], 0));
            CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "name 0 is '");
        }
        CHECK(!accel_track_all(tracker, 1, 3, twice, (double[]){1, 2, 3}));
        CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "name x stands twice");
        CHECK(!accel_track_all(tracker, 1, 0, pair, (double[]){1, 2}));
        CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "0 are given");
        char path[4096];
        snprintf(path, sizeof path, "%s", accel_tracker_path(tracker));
        accel_free(tracker);
        if (kind != ACCEL_TRACKER_TENSORBOARD) CHECK(file_is(path, ""));
        remove(path);
    }
    rmdir(FOLDER "/refused");
    accel_destroy(acc);
}

/* ---- CSV ---- */

TEST(csv) {
    const char *path = FOLDER "/run.csv";
    accel_t *acc = context();
    accel_tracker *tracker = accel_tracker_open(acc, ACCEL_TRACKER_CSV, path, NULL);
    static const char *const names[] = {"loss", "f1, \"macro\"", "lr"};
    CHECK(accel_track_all(tracker, 1, 3, names, (double[]){0.25, 0.5, NAN}));
    CHECK(accel_track_all(tracker, 2, 2, (const char *const[]){"lr", "loss"}, (double[]){1, 2})); /* another order */
    CHECK_FINE(acc);
    CHECK(!accel_track_all(tracker, 3, 2, (const char *const[]){"loss", "accuracy"}, (double[]){1, 2}));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "no column accuracy; its header is step, loss, f1, \"macro\", lr");
    CHECK(accel_track(tracker, 4, "lr", -INFINITY));
    accel_free(tracker);
    CHECK(file_is(path, "step,loss,\"f1, \"\"macro\"\"\",lr\n1,0.25,0.5,\n2,2,,1\n4,,,\n"));
    accel_table *table = accel_table_read(acc, path, NULL);
    CHECK(accel_table_rows(table) == 3 && accel_table_column(table, names[1]) == 2);
    CHECK_FINE(acc);
    accel_destroy(acc);
}

TEST(csv_with_given_columns) {
    const char *path = FOLDER "/given.csv";
    accel_t *acc = context();
    accel_tracker_desc desc = {.columns = pair, .column_count = 2};
    accel_tracker *tracker = accel_tracker_open(acc, ACCEL_TRACKER_CSV, path, &desc);
    CHECK(file_is(path, "step,loss,lr\n"));
    CHECK(accel_track(tracker, 7, "lr", 0.125));
    accel_free(tracker);
    CHECK(file_is(path, "step,loss,lr\n7,,0.125\n"));
    CHECK_FINE(acc);
    CHECK(!accel_tracker_open(acc, ACCEL_TRACKER_JSONL, path, &desc));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "columns for CSV alone");
    CHECK(!accel_tracker_open(acc, ACCEL_TRACKER_CSV, path,
                              &(accel_tracker_desc){.columns = (const char *const[]){"a", "a"}, .column_count = 2}));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "name a stands twice");
    CHECK(file_is(path, "step,loss,lr\n7,,0.125\n")); /* a refused call destroys nothing */
    accel_destroy(acc);
}

/* ---- going on ---- */

TEST(lines_go_on) {
    const char *csv = FOLDER "/on.csv", *jsonl = FOLDER "/on.jsonl";
    accel_t *acc = context();
    accel_tracker_desc on = {.append = true};
    remove(csv), remove(jsonl);
    for (int run = 0; run < 3; run++) {
        accel_tracker *a = accel_tracker_open(acc, ACCEL_TRACKER_CSV, csv, &on);
        accel_tracker *b = accel_tracker_open(acc, ACCEL_TRACKER_JSONL, jsonl, &on);
        CHECK(accel_track_all(a, run, 2, pair, (double[]){run, 0.5}) && accel_track(b, run, "loss", run));
        accel_free(a), accel_free(b);
        FILE *torn = fopen(run % 2 ? csv : jsonl, "ab"); /* as if killed within a record */
        fputs(run % 2 ? "1000,2" : "{\"step\": 1000, \"lo", torn);
        fclose(torn);
    }
    CHECK(file_is(csv, "step,loss,lr\n0,0,0.5\n1,1,0.5\n2,2,0.5\n"));
    CHECK(file_is(jsonl, "{\"step\": 0, \"loss\": 0}\n{\"step\": 1, \"loss\": 1}\n{\"step\": 2, \"loss\": 2}\n"
                         "{\"step\": 1000, \"lo"));
    CHECK_FINE(acc);
    accel_tracker *tracker = accel_tracker_open(acc, ACCEL_TRACKER_CSV, csv, &on);
    CHECK(!accel_track(tracker, 3, "accuracy", 1));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "no column accuracy; its header is step, loss, lr");
    accel_destroy(acc);
}

TEST(files_that_cannot_go_on) {
    const char *path = FOLDER "/other.csv";
    accel_t *acc = context();
    accel_tracker_desc on = {.append = true};
    write_text(path, "time,loss\n1,2\n");
    CHECK(!accel_tracker_open(acc, ACCEL_TRACKER_CSV, path, &on));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "header begins with time");
    CHECK(file_is(path, "time,loss\n1,2\n"));
    write_text(path, "no line");
    CHECK(!accel_tracker_open(acc, ACCEL_TRACKER_JSONL, path, &on));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "last line has no end");
    CHECK(file_is(path, "no line"));
    write_text(path, "step,loss\n1,2\n");
    on.columns = pair, on.column_count = 2;
    CHECK(!accel_tracker_open(acc, ACCEL_TRACKER_CSV, path, &on));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "no column lr");
    accel_destroy(acc);
}

TEST(buffered) {
    const char *path = FOLDER "/buffered.jsonl";
    accel_t *acc = context();
    accel_tracker *tracker =
        accel_tracker_open(acc, ACCEL_TRACKER_JSONL, path, &(accel_tracker_desc){.buffered = true});
    CHECK(accel_track(tracker, 1, "x", 1) && file_is(path, ""));
    CHECK(accel_tracker_flush(tracker) && file_is(path, "{\"step\": 1, \"x\": 1}\n"));
    CHECK(accel_track(tracker, 2, "x", 2));
    accel_free(tracker);
    CHECK(file_is(path, "{\"step\": 1, \"x\": 1}\n{\"step\": 2, \"x\": 2}\n"));
    tracker = accel_tracker_open(acc, ACCEL_TRACKER_JSONL, path, &(accel_tracker_desc){.buffered = true});
    for (int i = 0; i < 10000; i++) accel_track(tracker, i, "x", 0.5);
    struct stat info;
    CHECK(stat(path, &info) == 0 && info.st_size >= 65536); /* much is written without being asked for */
    accel_destroy(acc);                                     /* so is the rest */
    size_t bytes, lines = 0;
    char *text = read_bytes(path, &bytes);
    for (size_t i = 0; i < bytes; i++) lines += text[i] == '\n';
    CHECK(lines == 10000);
    free(text);
}

TEST(places_that_cannot_be_written) {
    accel_t *acc = context();
    CHECK(!accel_tracker_open(acc, ACCEL_TRACKER_JSONL, FOLDER "/no/such.jsonl", NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "no/such.jsonl cannot be written");
    write_text(FOLDER "/file", "");
    CHECK(!accel_tracker_open(acc, ACCEL_TRACKER_TENSORBOARD, FOLDER "/file", NULL));
    CHECK_ERROR(acc, ACCEL_BAD_FILE, FOLDER "/file cannot be made");
    CHECK(!accel_tracker_open(acc, ACCEL_TRACKER_CSV, NULL, NULL));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "a path");
    CHECK(!accel_tracker_open(acc, (accel_tracker_kind)9, FOLDER "/file", NULL));
    CHECK_ERROR(acc, ACCEL_BAD_ARGUMENT, "a kind");
    if (file_exists("/dev/full")) {
        accel_tracker *full = accel_tracker_open(acc, ACCEL_TRACKER_JSONL, "/dev/full", NULL);
        CHECK(!accel_track(full, 1, "x", 1));
        CHECK_ERROR(acc, ACCEL_BAD_FILE, "/dev/full cannot be written: No space");
        accel_free(full); /* what is left fails again */
        CHECK_ERROR(acc, ACCEL_BAD_FILE, "No space");
    }
    CHECK(!accel_tracker_open(NULL, ACCEL_TRACKER_CSV, FOLDER "/x", NULL) && !accel_track(NULL, 1, "x", 1));
    CHECK(!accel_tracker_flush(NULL) && !*accel_tracker_path(NULL));
    accel_destroy(acc);
}

/* A disk that is full in mid-record: once there is room, the record's rest is written, and nothing twice. */
TEST(records_go_on_after_a_full_disk) {
    const char *path = FOLDER "/full.jsonl";
    accel_t *acc = context();
    accel_tracker *tracker = accel_tracker_open(acc, ACCEL_TRACKER_JSONL, path, NULL);
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    small = before, small.rlim_cur = 30;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    bool first = accel_track(tracker, 1, "x", 1), second = accel_track(tracker, 2, "x", 2);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, handler);
    CHECK(first && !second);
    CHECK_ERROR(acc, ACCEL_BAD_FILE, "full.jsonl cannot be written");
    CHECK(file_is(path, "{\"step\": 1, \"x\": 1}\n{\"step\": 2"));
    CHECK(accel_track(tracker, 3, "x", 3));
    CHECK(file_is(path, "{\"step\": 1, \"x\": 1}\n{\"step\": 2, \"x\": 2}\n{\"step\": 3, \"x\": 3}\n"));
    CHECK_FINE(acc);
    accel_destroy(acc);
}

/* ---- TensorBoard ---- */

typedef struct event {
    double wall_time;
    int64_t step;
    char version[32];
    int scalars;
    char tag[4][64];
    float value[4];
    bool good;
} event;

/* The remainder of the message, reflected, as a polynomial over GF(2): a table for every byte. */
static uint32_t crc32c(const unsigned char *data, size_t bytes) {
    static uint32_t table[256];
    for (uint32_t n = 0; n < 256 && !table[255]; n++) {
        table[n] = n;
        for (int bit = 0; bit < 8; bit++) table[n] = (table[n] & 1) ? (table[n] >> 1) ^ 0x82F63B78u : table[n] >> 1;
    }
    uint32_t crc = UINT32_MAX;
    while (bytes--) crc = table[(crc ^ *data++) & 255] ^ (crc >> 8);
    return crc ^ UINT32_MAX;
}

static uint64_t little(const unsigned char *data, int bytes) {
    uint64_t value = 0;
    while (bytes--) value = value * 256 + data[bytes];
    return value;
}

static bool crc_fits(const unsigned char *data, size_t bytes, const unsigned char *stored) {
    uint32_t crc = (uint32_t)little(stored, 4) - 0xA282EAD8u; /* unmask */
    return ((crc << 15) | (crc >> 17)) == crc32c(data, bytes);
}

typedef struct field {
    int number, type;
    uint64_t value; /* or length of data */
    const unsigned char *data;
} field;

static bool read_varint(const unsigned char **at, const unsigned char *end, uint64_t *value) {
    *value = 0;
    for (int shift = 0; *at < end && shift < 64; shift += 7) {
        unsigned char byte = *(*at)++;
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return true;
    }
    return false;
}

static bool read_field(const unsigned char **at, const unsigned char *end, field *f) {
    uint64_t key;
    if (!read_varint(at, end, &key)) return false;
    f->number = (int)(key >> 3), f->type = (int)(key & 7), f->data = *at;
    if (f->type == 0) return read_varint(at, end, &f->value);
    if (f->type == 2 && (!read_varint(at, end, &f->value) || f->value > (uint64_t)(end - *at))) return false;
    if (f->type != 1 && f->type != 2 && f->type != 5) return false;
    size_t bytes = f->type == 1 ? 8 : f->type == 5 ? 4 : (size_t)f->value;
    if (bytes > (size_t)(end - *at)) return false;
    f->data = *at;
    if (f->type != 2) f->value = little(f->data, (int)bytes);
    *at += bytes;
    return true;
}

static void read_scalar(event *e, const field *value) {
    const unsigned char *at = value->data, *end = at + value->value;
    field f;
    while (at < end && e->good) {
        e->good = read_field(&at, end, &f);
        if (f.number == 1 && f.type == 2) snprintf(e->tag[e->scalars], 64, "%.*s", (int)f.value, (const char *)f.data);
        else if (f.number == 2 && f.type == 5) memcpy(&e->value[e->scalars], f.data, 4);
        else e->good = false;
    }
    e->scalars++;
}

static event read_event(const unsigned char *at, size_t bytes) {
    event e = {.good = true};
    const unsigned char *end = at + bytes;
    field f;
    while (at < end && e.good) {
        e.good = read_field(&at, end, &f);
        if (f.number == 1 && f.type == 1) memcpy(&e.wall_time, f.data, 8);
        else if (f.number == 2 && f.type == 0) e.step = (int64_t)f.value;
        else if (f.number == 3 && f.type == 2) snprintf(e.version, 32, "%.*s", (int)f.value, (const char *)f.data);
        else if (f.number == 5 && f.type == 2) {
            const unsigned char *inner = f.data, *last = inner + f.value;
            for (field value; inner < last && e.good && e.scalars < 4;) {
                e.good = read_field(&inner, last, &value) && value.number == 1 && value.type == 2;
                if (e.good) read_scalar(&e, &value);
            }
        } else e.good = false;
    }
    return e;
}

/* Events of a file, at most `most`; -1 where a frame is broken. */
static int read_events(const char *path, event *events, int most) {
    size_t bytes, at = 0;
    unsigned char *data = (unsigned char *)read_bytes(path, &bytes);
    int count = data ? 0 : -1;
    while (count >= 0 && count < most && at < bytes) {
        size_t length = bytes - at >= 16 ? (size_t)little(data + at, 8) : SIZE_MAX;
        bool good = length <= bytes - at - 16 && bytes - at >= 16 && crc_fits(data + at, 8, data + at + 8) &&
                    crc_fits(data + at + 12, length, data + at + 12 + length);
        if (good) events[count] = read_event(data + at + 12, length);
        count = good && events[count].good ? count + 1 : -1;
        at += length + 16;
    }
    free(data);
    return count;
}

TEST(the_test_s_own_crc) {
    CHECK(crc32c((const unsigned char *)"123456789", 9) == 0xE3069283u); /* the published check value */
    unsigned char zeros[32] = {0};
    CHECK(crc32c(zeros, 32) == 0x8A9136AAu); /* RFC 3720, B.4 */
}

TEST(tensorboard) {
    const char *folder = FOLDER "/board/run";
    empty_folder(folder);
    accel_t *acc = context();
    accel_tracker *tracker = accel_tracker_open(acc, ACCEL_TRACKER_TENSORBOARD, folder, NULL);
    CHECK_TEXT(accel_tracker_path(tracker), FOLDER "/board/run/events.out.tfevents.");
    char path[4096], name[201];
    snprintf(path, sizeof path, "%s", accel_tracker_path(tracker));
    memset(name, 'n', 200), name[200] = 0; /* lengths of two bytes */
    CHECK(accel_track_all(tracker, 1, 2, (const char *const[]){"train/loss", "train/lr"}, (double[]){0.7, 2e-5}));
    CHECK(accel_track(tracker, 300, "eval/\xc3\xa9", NAN));
    CHECK(accel_track(tracker, -1, "x", -INFINITY));
    CHECK(accel_track(tracker, INT64_MAX, name, 3));
    event e[8];
    CHECK(read_events(path, e, 8) == 5); /* each is there at once */
    CHECK(!strcmp(e[0].version, "brain.Event:2") && e[0].scalars == 0);
    CHECK(e[1].step == 1 && e[1].scalars == 2);
    CHECK(!strcmp(e[1].tag[0], "train/loss") && !strcmp(e[1].tag[1], "train/lr"));
    CHECK(e[1].value[0] == 0.7f && e[1].value[1] == 2e-5f);
    CHECK(e[2].step == 300 && !strcmp(e[2].tag[0], "eval/\xc3\xa9") && isnan(e[2].value[0]));
    CHECK(e[3].step == -1 && e[3].value[0] == -INFINITY);
    CHECK(e[4].step == INT64_MAX && e[4].value[0] == 3 && !strncmp(e[4].tag[0], name, 63));
    for (int i = 0; i < 5; i++) CHECK(fabs(e[i].wall_time - (double)time(NULL)) < 3600);
    accel_tracker *second = accel_tracker_open(acc, ACCEL_TRACKER_TENSORBOARD, folder, NULL);
    CHECK(strcmp(accel_tracker_path(second), path) != 0 && files_in(folder) == 2); /* never the same file */
    CHECK_FINE(acc);
    accel_destroy(acc);
    CHECK(read_events(path, e, 8) == 5);
}

/* A changed byte is seen: the test's reader can fail. */
TEST(tensorboard_damaged) {
    const char *folder = FOLDER "/damaged";
    empty_folder(folder);
    accel_t *acc = context();
    accel_tracker *tracker = accel_tracker_open(acc, ACCEL_TRACKER_TENSORBOARD, folder, NULL);
    CHECK(accel_track(tracker, 1, "x", 1));
    event e[8];
    size_t bytes;
    char *data = read_bytes(accel_tracker_path(tracker), &bytes), *path = FOLDER "/damaged/copy";
    CHECK(write_bytes(path, data, bytes) && read_events(path, e, 8) == 2);
    for (size_t i = 0; i < bytes; i++) {
        data[i] ^= 4;
        CHECK(write_bytes(path, data, bytes) && read_events(path, e, 8) == -1);
        data[i] ^= 4;
    }
    free(data);
    accel_destroy(acc);
}

/* ---- memory ---- */

TEST(tracking_allocates_nothing_after_the_first_records) {
    accel_t *acc = context();
    static const char *const path[] = {FOLDER "/steady.jsonl", FOLDER "/steady.csv", FOLDER "/steady.d"};
    accel_tracker *tracker[3];
    for (int k = 0; k < 3; k++) tracker[k] = accel_tracker_open(acc, (accel_tracker_kind)k, path[k], NULL);
    uint64_t calls = 0;
    for (int step = 0; step < 20; step++) {
        if (step == 2) calls = accel_memory_used(acc).calls;
        for (int k = 0; k < 3; k++) accel_track_all(tracker[k], step, 2, pair, (double[]){1 / 3.0, 1 / 7.0});
    }
    CHECK(accel_memory_used(acc).calls == calls);
    CHECK_FINE(acc);
    accel_destroy(acc);
    empty_folder(FOLDER "/steady.d");
}

static int allowed;
static void *short_of_memory(void *user, void *pointer, size_t bytes) {
    (void)user;
    if (!bytes) return free(pointer), NULL;
    return --allowed < 0 ? NULL : realloc(pointer, bytes);
}

/* After a refused allocation the program may go on, and the file has whole records only. The long name makes the buffer
   grow in the middle of a record. */
#define LONG "a_name_that_is_longer_than_the_first_piece_of_memory_that_a_tracker_asks_for_its_record"
TEST(trackers_short_of_memory) {
    static const char *const names[] = {"loss", LONG};
    for (int kind = ACCEL_TRACKER_JSONL; kind <= ACCEL_TRACKER_TENSORBOARD; kind++) {
        bool good = false;
        for (int limit = 0; limit < 100 && !good; limit++) {
            const char *path = kind == ACCEL_TRACKER_TENSORBOARD ? FOLDER "/short.d" : FOLDER "/short";
            empty_folder(FOLDER "/short.d");
            allowed = 1000;
            accel_t *acc = context_of(
                (accel_desc){.threads = 1, .allocator = {.reallocate = short_of_memory, .user = NULL}}, NULL);
            allowed = limit;
            accel_tracker *tracker = accel_tracker_open(acc, (accel_tracker_kind)kind, path, NULL);
            good = accel_track_all(tracker, 1, 2, names, (double[]){1, 2});
            CHECK(good == !accel_failed(acc));
            if (!good) CHECK_ERROR(acc, ACCEL_OUT_OF_MEMORY, "out of memory");
            allowed = 1000;
            char file[4096];
            snprintf(file, sizeof file, "%s", accel_tracker_path(tracker));
            if (tracker) CHECK(accel_track_all(tracker, 2, 2, names, (double[]){3, 4}));
            event e[8];
            if (tracker && kind == ACCEL_TRACKER_CSV)
                CHECK(file_is(file, good ? "step,loss," LONG "\n1,1,2\n2,3,4\n" : "step,loss," LONG "\n2,3,4\n"));
            if (tracker && kind == ACCEL_TRACKER_JSONL)
                CHECK(file_is(file, good ? "{\"step\": 1, \"loss\": 1, \"" LONG "\": 2}\n"
                                           "{\"step\": 2, \"loss\": 3, \"" LONG "\": 4}\n"
                                         : "{\"step\": 2, \"loss\": 3, \"" LONG "\": 4}\n"));
            if (tracker && kind == ACCEL_TRACKER_TENSORBOARD) CHECK(read_events(file, e, 8) == 2 + good);
            accel_destroy(acc);
        }
        CHECK(good);
    }
}

int main(int argc, char **argv) {
    if (!lock_folder(FOLDER)) return 1;
    make_folder(FOLDER);
    return test_main(argc, argv);
}
