/* The least that a journalled commit takes, built as ours is, in C: the bound of this design, in whatever language.

   One writer of bench_commit.py, that serves as commit_worker.py does. Arguments: MODE DATABASE SYNCHRONOUS WRITERS
   POOL; the pool is a file in shared memory.

   plain    BEGIN IMMEDIATE, INSERT, COMMIT.
   door     The same; a hook that copies the row, a guard trigger; the row of a ring beside it, in the same transaction;
            a region lock and a commit lock that die with their holder (flock); a frame written to a journal before
            COMMIT, to a pool behind it; under FULL (SQLite's own is NORMAL then) the journal is flushed, by whoever
            comes first for all that have been written by then, while the others sleep (futex); who wrote the frame
            before, too, has the kernel begin with it before COMMIT.
   company  door, but a flush waits until the last of all writers has come. Nobody could know that there will be one.
   ringless door, but no row beside the application's: then nothing in the region says which commit was its last.

   Left out, though a door needs it: checks, sequence numbers that are looked up, the chain's hash, schema versions,
   looks for files that were replaced, errors, voids, recovery, heartbeats, a process that reads. Not for any other use:
   what it writes can not be recovered. Not a bound of other designs: locks in shared memory that outlive their holder
   (robust futexes) would save most of what four calls of flock take, three microseconds of a commit. */

#define _GNU_SOURCE
#define SQLITE_ENABLE_PREUPDATE_HOOK /* as Debian's library was compiled; its header declares the hook on demand */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sqlite3.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define JOURNAL_BYTES (32u << 20)
#define POOL_BYTES (4u << 20)
#define RING_SLOTS 512
#define HEAD_BYTES 64
#define FRAME_MAX 512
#define COMPANY_S 500e-6

/* What the writers share. Words are written under the commit lock but for `durable` and `flushing`. */
typedef struct {
    volatile uint64_t journal_at, pool_at;
    volatile uint32_t seqno, durable, flushing, last_pid;
} Words;

static sqlite3 *database;
static sqlite3_stmt *begin, *insert, *commit, *ring;
static Words *words;
static char *pool;
static int journal, region_lock, commit_lock, is_ringless;
static uint32_t own_pid;
static char frame[FRAME_MAX];
static int frame_bytes;

static void fail(const char *what) {
    fprintf(stderr, "floor_commit: %s: %s; %s\n", what, database ? sqlite3_errmsg(database) : "", strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static double cpu(void) {
    struct timespec at;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static void run(const char *text) {
    if (sqlite3_exec(database, text, 0, 0, 0)) fail(text);
}

static sqlite3_stmt *prepared(const char *text) {
    sqlite3_stmt *made;
    if (sqlite3_prepare_v3(database, text, -1, SQLITE_PREPARE_PERSISTENT, &made, 0)) fail(text);
    return made;
}

static void step(sqlite3_stmt *statement) {
    if (sqlite3_step(statement) != SQLITE_DONE) fail(sqlite3_sql(statement));
    sqlite3_reset(statement);
}

static void guard(sqlite3_context *context, int count, sqlite3_value **values) {
    (void)count, (void)values;
    sqlite3_result_null(context);
}

/* The row, as it is: nothing is packed. */
static void take(void *nothing, sqlite3 *of, int op, char const *schema, char const *table, sqlite3_int64 before,
                 sqlite3_int64 after) {
    (void)nothing, (void)op, (void)schema, (void)before, (void)after;
    if (*table == '_') return;
    for (int column = 0; column < sqlite3_preupdate_count(of); column++) {
        sqlite3_value *value;
        if (sqlite3_preupdate_new(of, column, &value)) fail("a row's value");
        if (sqlite3_value_type(value) == SQLITE_TEXT) {
            int size = sqlite3_value_bytes(value);
            if (frame_bytes + size > FRAME_MAX) fail("a row that is too long");
            memcpy(frame + frame_bytes, sqlite3_value_text(value), size);
            frame_bytes += size;
        } else {
            double number = sqlite3_value_double(value);
            memcpy(frame + frame_bytes, &number, sizeof number);
            frame_bytes += sizeof number;
        }
    }
}

static const char *beside(const char *path, const char *suffix) {
    static char name[4096];
    snprintf(name, sizeof name, "%s-%s", path, suffix);
    return name;
}

static int opened(const char *name, size_t size) {
    int file = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) fail(name);
    if (size) {
        flock(file, LOCK_EX);
        if (lseek(file, 0, SEEK_END) < (off_t)size) {
            char *zeroes = calloc(1, size);
            if (pwrite(file, zeroes, size, 0) != (ssize_t)size || fsync(file)) fail(name);
            free(zeroes);
        }
        flock(file, LOCK_UN);
    }
    return file;
}

static void open_door(const char *path, const char *pool_path) {
    journal = opened(beside(path, "journal"), JOURNAL_BYTES);
    region_lock = opened(beside(path, "region-lock"), 0);
    commit_lock = opened(beside(path, "commit-lock"), 0);
    int file = opened(pool_path, HEAD_BYTES + POOL_BYTES + FRAME_MAX);
    words = mmap(0, HEAD_BYTES + POOL_BYTES + FRAME_MAX, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (words == MAP_FAILED) fail("pool");
    pool = (char *)words + HEAD_BYTES;
    flock(region_lock, LOCK_EX);
    run("CREATE TABLE IF NOT EXISTS _ring (slot INTEGER PRIMARY KEY, seqno INTEGER NOT NULL, record BLOB)");
    run("WITH RECURSIVE n(i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM n WHERE i < 511) "
        "INSERT OR IGNORE INTO _ring SELECT i, 0, zeroblob(100) FROM n");
    run("CREATE TRIGGER IF NOT EXISTS _guard BEFORE INSERT ON t BEGIN SELECT guard(); END");
    flock(region_lock, LOCK_UN);
    if (sqlite3_create_function(database, "guard", 0, SQLITE_UTF8 | SQLITE_INNOCUOUS, 0, guard, 0, 0)) fail("guard");
    sqlite3_preupdate_hook(database, take, 0);
    ring = prepared("UPDATE _ring SET seqno = ?1, record = ?2 WHERE slot = ?3");
    run("PRAGMA wal_autocheckpoint = 4096"); /* as a writer of ours leaves in the WAL */
}

static void flush(uint32_t seqno, int company) {
    while ((int32_t)(words->durable - seqno) < 0) {
        if (!__sync_bool_compare_and_swap(&words->flushing, 0, 1)) {
            syscall(SYS_futex, &words->flushing, FUTEX_WAIT, 1, 0, 0, 0);
            continue;
        }
        if ((int32_t)(words->durable - seqno) < 0) {
            double begun = now();
            while (company && (int32_t)(words->seqno - words->durable) < company && now() - begun < COMPANY_S)
                sched_yield();
            uint32_t upto = words->seqno;
            if (fdatasync(journal)) fail("fdatasync");
            words->durable = upto;
        }
        __sync_lock_release(&words->flushing);
        syscall(SYS_futex, &words->flushing, FUTEX_WAKE, 1 << 20, 0, 0, 0);
    }
}

static void bind_row(int number) {
    sqlite3_bind_text(insert, 1, "a name of some length", -1, SQLITE_STATIC);
    sqlite3_bind_double(insert, 2, number * 0.5);
}

static void plain_row(int number) {
    step(begin);
    bind_row(number);
    step(insert);
    step(commit);
}

static void door_row(int number, int waits, int company) {
    frame_bytes = 0;
    flock(region_lock, LOCK_EX);
    step(begin);
    bind_row(number);
    step(insert);
    flock(commit_lock, LOCK_EX);
    uint32_t seqno = words->seqno + 1;
    if (!is_ringless) {
        sqlite3_bind_int64(ring, 1, seqno);
        sqlite3_bind_blob(ring, 2, frame, frame_bytes, SQLITE_STATIC);
        sqlite3_bind_int(ring, 3, seqno % RING_SLOTS);
        step(ring);
    }
    if (words->journal_at + FRAME_MAX > JOURNAL_BYTES) words->journal_at = 0;
    if (pwrite(journal, frame, frame_bytes, words->journal_at) != frame_bytes) fail("journal");
    if (waits && words->last_pid == own_pid)
        sync_file_range(journal, words->journal_at, frame_bytes, SYNC_FILE_RANGE_WRITE);
    words->last_pid = own_pid;
    words->journal_at += frame_bytes;
    step(commit);
    memcpy(pool + words->pool_at % POOL_BYTES, frame, frame_bytes);
    words->pool_at += frame_bytes;
    words->seqno = seqno;
    flock(commit_lock, LOCK_UN);
    flock(region_lock, LOCK_UN);
    if (waits) flush(seqno, company);
}

int main(int count, char **arguments) {
    if (count != 6) {
        fprintf(stderr, "usage: floor_commit plain|door|company|ringless DATABASE NORMAL|FULL WRITERS POOL\n");
        return 2;
    }
    int is_plain = !strcmp(arguments[1], "plain"), waits = !strcmp(arguments[3], "FULL");
    own_pid = getpid();
    is_ringless = !strcmp(arguments[1], "ringless");
    int company = !strcmp(arguments[1], "company") ? atoi(arguments[4]) : 0;
    if (sqlite3_open(arguments[2], &database)) fail(arguments[2]);
    sqlite3_busy_timeout(database, 120000);
    run(is_plain && waits ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL");
    begin = prepared("BEGIN IMMEDIATE");
    commit = prepared("COMMIT");
    if (!is_plain) open_door(arguments[2], arguments[5]);
    insert = prepared("INSERT INTO t (name, amount) VALUES (?1, ?2)");
    puts("\"ready\"");
    fflush(stdout);
    int rows;
    while (scanf(" row %d", &rows) == 1) {
        double begun = now(), cpu_s = cpu();
        for (int number = 0; number < rows; number++) {
            if (is_plain) plain_row(number);
            else door_row(number, waits, company);
        }
        cpu_s = cpu() - cpu_s;
        printf("{\"begun\": %.9f, \"ended\": %.9f, \"cpu_s\": %.9f}\n", begun, now(), cpu_s);
        fflush(stdout);
    }
    return 0;
}
