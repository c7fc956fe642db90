// SPDX-License-Identifier: Apache-2.0
// The state database: schema changes, transactions, values, what is refused, and each allocation
// failing once.
#include "base/db.h"
#include "base/mem.h"
#include "base/thread.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct db_migration list[] = {
    {"things", "CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT UNIQUE, x REAL, raw BLOB);"},
    {"parts", "CREATE TABLE parts (thing INTEGER NOT NULL REFERENCES things(id), n INTEGER);"
              "CREATE INDEX parts_by_thing ON parts (thing);"},
    {"colour", "ALTER TABLE things ADD COLUMN colour TEXT NOT NULL DEFAULT 'grey';"},
};

static char folder[TEMP_PATH], path[96];

static int setup(void **state) {
    (void)state;
    temp_folder(folder, "db");
    snprintf(path, sizeof path, "%s/graft.db", folder);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    temp_remove(folder);
    return 0;
}

static struct db *open_db(size_t n) {
    struct db *d;
    struct err_info info = {0};
    assert_ok(db_open(path, list, n, &d, &info), &info);
    return d;
}

static int64_t one_int(struct db *d, const char *sql) {
    struct db_rows q;
    struct err_info info = {0};
    assert_ok(db_begin(d, &info), &info);
    assert_ok(db_query(d, &q, &info, sql, DB_NONE), &info);
    assert_true(db_next(&q));
    int64_t v = db_int(&q, 0);
    enum err e = db_rows_end(&q, &info);
    assert_ok(db_end(d, e, &info), &info);
    return v;
}

static void test_values(void **state) {
    (void)state;
    struct err_info info = {0};
    struct db *d = open_db(3);
    struct db_rows q;
    size_t n;
    int64_t changed = 0;
    assert_ok(db_begin(d, &info), &info);
    assert_ok(db_run(d, &changed, &info, "INSERT INTO things (name, x, raw) VALUES (?, ?, ?)",
                     DB_ARGS(db_t("caf\xc3\xa9"), db_x(0.5), db_b("\0\1", 2))),
              &info);
    assert_int_equal(changed, 1);
    assert_int_equal(db_last_id(d), 1);
    assert_ok(db_run(d, NULL, &info, "INSERT INTO things (id, name) VALUES (?, ?)",
                     DB_ARGS(db_i(INT64_MAX), db_t(NULL))),
              &info);
    assert_ok(db_end(d, ERR_OK, &info), &info);
    db_close(d);
    d = open_db(3);
    assert_ok(db_begin(d, &info), &info);
    assert_ok(
        db_query(d, &q, &info, "SELECT id, name, x, raw, colour FROM things ORDER BY id", DB_NONE),
        &info);
    assert_true(db_next(&q));
    assert_int_equal(db_int(&q, 0), 1);
    assert_string_equal(db_text(&q, 1), "caf\xc3\xa9");
    assert_true(db_real(&q, 2) == 0.5);
    assert_memory_equal(db_blob(&q, 3, &n), "\0\1", 2);
    assert_int_equal(n, 2);
    assert_string_equal(db_text(&q, 4), "grey");
    assert_true(db_next(&q));
    assert_true(db_int(&q, 0) == INT64_MAX);
    assert_true(db_is_null(&q, 1));
    assert_null(db_text(&q, 1));
    assert_false(db_next(&q));
    assert_ok(db_rows_end(&q, &info), &info);
    assert_ok(db_end(d, ERR_OK, &info), &info);
    db_close(d);
}

static void test_settings(void **state) {
    (void)state;
    struct db *d = open_db(3);
    struct err_info info = {0};
    struct db_rows q;
    assert_int_equal(one_int(d, "PRAGMA synchronous"), 2); // FULL
    assert_int_equal(one_int(d, "PRAGMA foreign_keys"), 1);
    assert_ok(db_begin(d, &info), &info);
    assert_ok(db_query(d, &q, &info, "PRAGMA journal_mode", DB_NONE), &info);
    assert_true(db_next(&q));
    assert_string_equal(db_text(&q, 0), "wal");
    assert_ok(db_rows_end(&q, &info), &info);
    assert_ok(db_end(d, ERR_OK, &info), &info);
    db_close(d);
}

static void test_rollback(void **state) {
    (void)state;
    struct err_info info = {0};
    struct db *d = open_db(3);
    assert_ok(db_begin(d, &info), &info);
    assert_ok(db_run(d, NULL, &info, "INSERT INTO things (name) VALUES ('a')", DB_NONE), &info);
    assert_ok(db_end(d, ERR_OK, &info), &info);
    // A constraint that does not hold: the owner's other changes go with it.
    assert_ok(db_begin(d, &info), &info);
    assert_ok(db_run(d, NULL, &info, "INSERT INTO things (name) VALUES ('b')", DB_NONE), &info);
    enum err e = db_run(d, NULL, &info, "INSERT INTO things (name) VALUES ('a')", DB_NONE);
    assert_int_equal(e, ERR_INVALID);
    assert_non_null(strstr(info.message, "things.name"));
    assert_int_equal(db_end(d, e, &info), ERR_INVALID);
    assert_int_equal(one_int(d, "SELECT count(*) FROM things"), 1);
    // Foreign keys hold.
    assert_ok(db_begin(d, &info), &info);
    e = db_run(d, NULL, &info, "INSERT INTO parts (thing, n) VALUES (77, 1)", DB_NONE);
    assert_int_equal(e, ERR_INVALID);
    db_end(d, e, &info);
    // A statement that is none.
    struct db_rows q;
    assert_ok(db_begin(d, &info), &info);
    assert_int_equal(db_query(d, &q, &info, "SELECT nothing FROM nowhere", DB_NONE), ERR_IO);
    assert_false(db_next(&q));
    assert_int_equal(db_rows_end(&q, &info), ERR_IO);
    db_end(d, ERR_CANCELLED, &info);
    assert_int_equal(one_int(d, "SELECT count(*) FROM things"), 1);
    db_close(d);
}

static void test_migrations(void **state) {
    (void)state;
    struct err_info info = {0};
    struct db *d = open_db(1);
    assert_ok(db_begin(d, &info), &info);
    assert_ok(db_run(d, NULL, &info, "INSERT INTO things (name) VALUES ('old')", DB_NONE), &info);
    assert_ok(db_end(d, ERR_OK, &info), &info);
    db_close(d);
    d = open_db(3); // the later ones are applied, and what was there stays
    assert_int_equal(one_int(d, "SELECT count(*) FROM things WHERE colour = 'grey'"), 1);
    assert_int_equal(one_int(d, "SELECT count(*) FROM migrations"), 3);
    db_close(d);
    // A binary that knows less refuses the file, by the first change it does not know.
    assert_int_equal(db_open(path, list, 2, &d, &info), ERR_UNSUPPORTED);
    assert_null(d);
    assert_non_null(strstr(info.message, "'colour'"));
    const struct db_migration other[] = {list[0], {"otherwise", "SELECT 1;"}, list[2]};
    assert_int_equal(db_open(path, other, 3, &d, &info), ERR_UNSUPPORTED);
    assert_non_null(strstr(info.message, "'parts'"));
    d = open_db(3);
    db_close(d);
    // One that fails is named and leaves nothing of itself.
    const struct db_migration bad[] = {
        list[0], list[1], list[2], {"bad", "CREATE TABLE half (a); CREATE TABLE half (a);"}};
    assert_int_equal(db_open(path, bad, 4, &d, &info), ERR_IO);
    assert_non_null(strstr(info.message, "'bad'"));
    d = open_db(3);
    assert_int_equal(one_int(d, "SELECT count(*) FROM sqlite_master WHERE name = 'half'"), 0);
    db_close(d);
}

static void test_not_a_database(void **state) {
    (void)state;
    struct err_info info = {0};
    struct db *d;
    FILE *f = fopen(path, "w");
    for (int i = 0; i < 2000; i++)
        fputs("not a database ", f);
    fclose(f);
    assert_int_equal(db_open(path, list, 3, &d, &info), ERR_FORMAT);
    assert_non_null(strstr(info.message, "graft.db"));
    assert_int_equal(db_open("/nowhere/graft.db", list, 3, &d, &info), ERR_IO);
}

// What is committed is there for another connection although this one never closed: what a killed
// process leaves.
static void test_committed_lasts(void **state) {
    (void)state;
    struct err_info info = {0};
    struct db *d = open_db(3), *other;
    assert_ok(db_begin(d, &info), &info);
    assert_ok(db_run(d, NULL, &info, "INSERT INTO things (name) VALUES ('kept')", DB_NONE), &info);
    assert_ok(db_end(d, ERR_OK, &info), &info);
    other = open_db(3);
    assert_int_equal(one_int(other, "SELECT count(*) FROM things"), 1);
    db_close(other);
    db_close(d);
}

struct adder {
    struct db *db;
    struct thread thread;
};

static void *add_many(void *arg) {
    const struct adder *a = arg;
    for (int i = 0; i < 25; i++) {
        struct err_info info;
        enum err e = db_begin(a->db, &info);
        if (e)
            continue;
        e = db_run(a->db, NULL, &info, "INSERT INTO things (x) VALUES (1)", DB_NONE);
        db_end(a->db, e, &info);
    }
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    struct adder adders[4];
    struct db *d = open_db(3);
    for (int i = 0; i < 4; i++) {
        adders[i].db = d;
        assert_int_equal(thread_start(&adders[i].thread, "adder", add_many, &adders[i]), ERR_OK);
    }
    for (int i = 0; i < 4; i++)
        thread_join(&adders[i].thread);
    assert_int_equal(one_int(d, "SELECT count(*) FROM things"), 100);
    db_close(d);
}

static enum err whole_life(struct err_info *info) {
    struct db *d;
    struct db_rows q;
    enum err e = db_open(path, list, 3, &d, info);
    if (e)
        return e;
    e = db_begin(d, info);
    if (!e) {
        e = db_run(d, NULL, info, "INSERT INTO things (name, raw) VALUES (?, zeroblob(9000))",
                   DB_ARGS(db_t("a name that is longer than what fits anywhere at once")));
        if (!e)
            e = db_query(d, &q, info, "SELECT name, raw FROM things WHERE x IS NULL", DB_NONE);
        if (!e) {
            while (db_next(&q)) {
                size_t n;
                (void)db_text(&q, 0);
                (void)db_blob(&q, 1, &n);
            }
            e = db_rows_end(&q, info);
        }
        if (!e)
            e = db_run(d, NULL, info, "DELETE FROM things", DB_NONE);
        e = db_end(d, e, info);
    }
    db_close(d);
    return e;
}

static void test_without_memory(void **state) {
    (void)state;
    struct err_info info = {0};
    assert_ok(whole_life(&info), &info);
    enum err e = ERR_NOMEM;
    for (uint64_t nth = 1; e; nth++) {
        mem_fail_after(nth, false);
        e = whole_life(&info);
        uint64_t tried = mem_fail_count();
        mem_fail_after(0, false);
        // SQLite does without some allocations.
        if (e && e != ERR_NOMEM)
            fail_msg("allocation %llu: %s: %s", (unsigned long long)nth, err_name(e), info.message);
        if (!e && tried >= nth)
            e = ERR_NOMEM;
        assert_true(nth < 5000);
    }
    struct db *d = open_db(3);
    assert_int_equal(one_int(d, "SELECT count(*) FROM things"), 0);
    db_close(d);
}

// SQLite's allocations, too, go where they can be made to fail. It wants to know their sizes.
static void *lite_alloc(int n) {
    size_t *p = mem_alloc((size_t)n + 16);
    if (!p)
        return NULL;
    *p = (size_t)n;
    return (char *)p + 16;
}
static void lite_free(void *p) {
    if (p)
        mem_free((char *)p - 16);
}
static void *lite_realloc(void *p, int n) {
    if (!p)
        return lite_alloc(n);
    size_t *q = mem_realloc((char *)p - 16, (size_t)n + 16);
    if (!q)
        return NULL;
    *q = (size_t)n;
    return (char *)q + 16;
}
static int lite_size(void *p) {
    return p ? (int)*(size_t *)(void *)((char *)p - 16) : 0;
}
static int lite_round(int n) {
    return (n + 7) & ~7;
}
static int lite_init(void *arg) {
    (void)arg;
    return SQLITE_OK;
}
static void lite_end(void *arg) {
    (void)arg;
}

int main(void) {
    static const sqlite3_mem_methods methods = {lite_alloc, lite_free, lite_realloc, lite_size,
                                                lite_round, lite_init, lite_end,     NULL};
    if (sqlite3_config(SQLITE_CONFIG_MALLOC, &methods) != SQLITE_OK)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_values, setup, teardown),
        cmocka_unit_test_setup_teardown(test_settings, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rollback, setup, teardown),
        cmocka_unit_test_setup_teardown(test_migrations, setup, teardown),
        cmocka_unit_test_setup_teardown(test_not_a_database, setup, teardown),
        cmocka_unit_test_setup_teardown(test_committed_lasts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_threads, setup, teardown),
        cmocka_unit_test_setup_teardown(test_without_memory, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
