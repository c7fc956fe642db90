// SPDX-License-Identifier: Apache-2.0
// The cache file: what is torn or changed is noticed, an interrupted build leaves nothing, running
// out of memory is an error, duplicates and overlap are counted.
#include "base/mem.h"
#include "finetune/dataset_internal.h"
#include "tests/finetune/dataset_support.h"
#include "tests/support/cmocka_all.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE(q, a)                                                                                 \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"" q                                           \
    "\"},{\"role\":\"assistant\",\"content\":\"" a "\"}]}\n"

static const char three[] = LINE("a", "b") LINE("c", "d") LINE("e", "f");

static int files_in(const struct ds *d) {
    int n = 0;
    DIR *dir = opendir(d->folder);
    struct dirent *e;
    while (dir && (e = readdir(dir)))
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(dir);
    return n;
}

static uint8_t *slurp(const struct ds *d, const char *name, size_t *n) {
    FILE *f = fopen(ds_path(d, name), "rb");
    assert_non_null(f);
    uint8_t *p = malloc(1 << 20);
    assert_non_null(p);
    *n = fread(p, 1, 1 << 20, f);
    fclose(f);
    return p;
}

// Opens and reads all of it: the first failure.
static enum err try_all(const struct ds *d, const char *name, struct err_info *info) {
    struct ft_dataset *set;
    struct ft_sample s = {0};
    enum err rc = ft_dataset_open(ds_path(d, name), &set, info);
    for (int64_t i = 0; !rc && i < ft_dataset_samples(set); i++)
        rc = ft_dataset_read(set, i, &s, info);
    ft_sample_fini(&s);
    ft_dataset_close(set);
    return rc;
}

static void report_comes_back(void **state) {
    (void)state;
    struct ds d;
    ds_open_chatml(&d);
    d.opts.truncation = FT_TRUNC_DROP;
    d.opts.max_seq_len = 20;
    memset(d.opts.renderer, 7, 32);
    assert_int_equal(ds_build_text(&d, LINE("a", "b") LINE("a", "b") "\n" LINE(
                                           "c", "a b c d e f g h i j k l m n o p q r s t u v")),
                     ERR_OK);
    struct ft_dataset *set = ds_load(&d, "cache");
    const struct ft_dataset_report *r = ft_dataset_report(set);
    assert_memory_equal(r, &d.report, sizeof *r);
    assert_int_equal(r->lines, 4);
    assert_int_equal(r->samples, 2);
    assert_int_equal(r->dropped, 1);
    assert_int_equal(r->duplicates, 1);
    uint8_t key[32];
    assert_int_equal(ft_dataset_key(&d.opts, key), ERR_OK);
    assert_memory_equal(key, ft_dataset_key_of(set), 32);
    struct ft_sample s = {0};
    assert_int_equal(ft_dataset_read(set, 2, &s, &d.info), ERR_INVALID);
    assert_int_equal(ft_dataset_read(set, -1, &s, &d.info), ERR_INVALID);
    ft_dataset_close(set);
    assert_int_equal(files_in(&d), 2); // nothing written aside is left
    // Checking alone writes nothing.
    unlink(ds_path(&d, "cache"));
    struct ft_dataset_report again;
    assert_int_equal(ft_dataset_build(ds_path(&d, "data.jsonl"), NULL, &d.opts, &again, &d.info),
                     ERR_OK);
    assert_memory_equal(&again, &d.report, sizeof again);
    assert_int_equal(files_in(&d), 1);
    ds_close(&d);
}

static void key_knows_every_option(void **state) {
    (void)state;
    struct ds d;
    ds_open_chatml(&d);
    const int32_t ends[] = {1};
    struct ft_dataset_opts o[9];
    for (int i = 0; i < 9; i++)
        o[i] = d.opts;
    o[1].max_seq_len++;
    o[2].truncation = FT_TRUNC_DROP;
    o[3].now++;
    o[4].eos = 3;
    o[5].ends = ends;
    o[5].n_ends = 1;
    o[6].renderer[31] = 1;
    o[7].template_vars = json_pack("{s:i}", "x", 1);
    o[8].preference = true;
    uint8_t key[9][32];
    for (int i = 0; i < 9; i++)
        assert_int_equal(ft_dataset_key(&o[i], key[i]), ERR_OK);
    for (int i = 0; i < 9; i++)
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(key[i], key[j], 32);
    json_decref(o[7].template_vars);
    ds_close(&d);
}

static void every_byte_counts(void **state) {
    (void)state;
    struct ds d;
    size_t n;
    ds_open_chatml(&d);
    assert_int_equal(ds_build_text(&d, three), ERR_OK);
    assert_int_equal(try_all(&d, "cache", &d.info), ERR_OK);
    uint8_t *bytes = slurp(&d, "cache", &n);
    size_t padding = 0;
    for (size_t i = 0; i < n; i++) {
        bytes[i] ^= 0x10;
        ds_write(&d, "bad", bytes, n);
        bytes[i] ^= 0x10;
        enum err rc = try_all(&d, "bad", &d.info);
        if (!rc && ++padding < 8)
            continue; // between samples and index
        if (rc != ERR_FORMAT && rc != ERR_UNSUPPORTED)
            fail_msg("byte %zu of %zu changed: %s", i, n, rc ? err_name(rc) : "not noticed");
        assert_non_null(strstr(d.info.message, "/bad: "));
    }
    free(bytes);
    ds_close(&d);
}

static void every_length_counts(void **state) {
    (void)state;
    struct ds d;
    size_t n;
    ds_open_chatml(&d);
    assert_int_equal(ds_build_text(&d, three), ERR_OK);
    uint8_t *bytes = slurp(&d, "cache", &n);
    for (size_t i = 0; i < n; i++) {
        ds_write(&d, "bad", bytes, i);
        assert_int_equal(try_all(&d, "bad", &d.info), ERR_FORMAT);
    }
    ds_write(&d, "bad", bytes, n + 1); // one more than there is
    assert_int_equal(try_all(&d, "bad", &d.info), ERR_FORMAT);
    bytes[8]++;
    ds_write(&d, "bad", bytes, n);
    assert_int_equal(try_all(&d, "bad", &d.info), ERR_UNSUPPORTED);
    assert_non_null(strstr(d.info.message, "it is of version 2, this program reads 1"));
    free(bytes);
    // Cut while it is open.
    struct ft_dataset *set = ds_load(&d, "cache");
    struct ft_sample s = {0};
    assert_int_equal(truncate(ds_path(&d, "cache"), 80), 0);
    assert_int_equal(ft_dataset_read(set, 2, &s, &d.info), ERR_IO);
    ft_sample_fini(&s);
    ft_dataset_close(set);
    ds_close(&d);
}

// A cache that somebody sealed with wrong content: bounds hold without the checksums' help.
static void sealed_nonsense(void **state) {
    (void)state;
    struct ds d;
    size_t n;
    ds_open_chatml(&d);
    assert_int_equal(ds_build_text(&d, three), ERR_OK);
    uint8_t *bytes = slurp(&d, "cache", &n);
    struct ft__trailer t;
    assert_int_equal(ft__trailer_get(bytes + n - FT__TRAILER, &t, &d.info), ERR_OK);
    size_t index = (size_t)t.index_at;
    const struct {
        size_t at; // of an entry's field
        uint32_t v;
    } wrong[] = {
        {0, 0},  {0, 60}, {0, 0xfffffff0},  {8, 0},  {8, 0x7fffffff},  {8, 0xffffffff},
        {12, 1}, {16, 0}, {16, 0x7fffffff}, {24, 0}, {24, 0x7fffffff}, {28, 99},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        uint8_t *copy = malloc(n);
        assert_non_null(copy);
        memcpy(copy, bytes, n);
        ft__put32(copy + index + wrong[i].at, wrong[i].v);
        assert_int_equal(sha256(copy + index, 3 * FT__ENTRY, t.index_sha), ERR_OK);
        assert_int_equal(ft__trailer_put(copy + n - FT__TRAILER, &t), ERR_OK);
        ds_write(&d, "bad", copy, n);
        if (try_all(&d, "bad", &d.info) != ERR_FORMAT)
            fail_msg("wrong entry %zu is taken", i);
        free(copy);
    }
    // A token outside the vocabulary, with the right hash.
    ft__put32(bytes + FT__HEAD + 8, 0x7ffffff0);
    struct ft__entry e;
    ft__entry_get(bytes + index, &e);
    uint8_t sum[32];
    assert_int_equal(sha256(bytes + FT__HEAD, 8 + 4 * (size_t)e.n, sum), ERR_OK);
    memcpy(e.hash, sum, FT__HASH);
    ft__entry_put(bytes + index, &e);
    assert_int_equal(sha256(bytes + index, 3 * FT__ENTRY, t.index_sha), ERR_OK);
    assert_int_equal(ft__trailer_put(bytes + n - FT__TRAILER, &t), ERR_OK);
    ds_write(&d, "bad", bytes, n);
    assert_int_equal(try_all(&d, "bad", &d.info), ERR_FORMAT);
    assert_non_null(strstr(d.info.message, "sample 0 (line 1): a token is not of the vocabulary"));
    free(bytes);
    ds_close(&d);
}

// Caches that a script made from the layout's description alone.
static void the_layout_is_as_described(void **state) {
    (void)state;
    struct ds d;
    ds_open_chatml(&d);
    for (int pair = 0; pair < 2; pair++) {
        uint8_t bytes[2048];
        FILE *f = fopen(pair ? "tests/fuzz/corpus/fuzz_dataset/cache_pair"
                             : "tests/fuzz/corpus/fuzz_dataset/cache_chat",
                        "rb");
        assert_non_null(f);
        size_t n = fread(bytes, 1, sizeof bytes, f);
        fclose(f);
        ds_write(&d, "cache", bytes + 1, n - 1); // the first byte is the fuzzer's
        if (try_all(&d, "cache", &d.info))
            fail_msg("%s", d.info.message);
        struct ft_dataset *set = ds_load(&d, "cache");
        struct ft_sample s = {0};
        assert_int_equal(ft_dataset_samples(set), pair ? 1 : 2);
        assert_int_equal(ft_dataset_read(set, 0, &s, &d.info), ERR_OK);
        const int32_t chat[] = {260, 65, 66, 261}, yes[] = {1, 2, 3}, no[] = {1, 2, 4, 5};
        const uint8_t mask[] = {0, 0, 1, 1};
        assert_int_equal(s.n, pair ? 3 : 4);
        assert_int_equal(s.n2, pair ? 4 : 0);
        assert_memory_equal(s.ids, pair ? yes : chat, 4 * (size_t)s.n);
        assert_memory_equal(s.mask, mask, (size_t)s.n);
        if (pair) {
            assert_memory_equal(s.ids2, no, sizeof no);
            assert_memory_equal(s.mask2, mask, 4);
        }
        ft_sample_fini(&s);
        ft_dataset_close(set);
    }
    ds_close(&d);
}

static void an_older_cache_stays(void **state) {
    (void)state;
    struct ds d;
    ds_open_chatml(&d);
    assert_int_equal(ds_build_text(&d, three), ERR_OK);
    assert_int_equal(ds_build_text(&d, "7\n"), ERR_INVALID);
    assert_int_equal(try_all(&d, "cache", &d.info), ERR_OK); // of the former build, whole
    assert_int_equal(files_in(&d), 2);
    assert_int_equal(ft_dataset_build(ds_path(&d, "data.jsonl"), ds_path(&d, "no/cache"), &d.opts,
                                      &d.report, &d.info),
                     ERR_NOT_FOUND);
    ds_close(&d);
}

static void duplicates_and_overlap(void **state) {
    (void)state;
    struct ds d;
    ds_open_chatml(&d);
    assert_int_equal(ds_build_text(&d, LINE("a", "b") LINE("c", "d") LINE("a", "b") LINE("a", "b")
                                           LINE("a", "d")),
                     ERR_OK);
    assert_int_equal(d.report.duplicates, 2);
    assert_int_equal(rename(ds_path(&d, "cache"), ds_path(&d, "train")), 0);
    // Another mask is another sample, though the tokens are the same.
    assert_int_equal(
        ds_build_text(
            &d, LINE("x", "y") LINE("a", "d") LINE(
                    "a", "d") "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":"
                              "\"assistant\",\"content\":\"b\"},{\"role\":\"user\",\"content\":"
                              "\"\"},{\"role\":\"assistant\",\"content\":\"b\"}]}\n"),
        ERR_OK);
    struct ft_dataset *a = ds_load(&d, "train"), *b = ds_load(&d, "cache");
    int64_t n;
    assert_int_equal(ft_dataset_overlap(a, b, &n), ERR_OK);
    assert_int_equal(n, 2);
    assert_int_equal(ft_dataset_overlap(b, a, &n), ERR_OK);
    assert_int_equal(n, 1);
    assert_int_equal(ft_dataset_overlap(a, a, &n), ERR_OK);
    assert_int_equal(n, 5);
    ft_dataset_close(a);
    ft_dataset_close(b);
    ds_close(&d);
}

// ---- memory

static enum err build_and_read(struct ds *d) {
    enum err rc = ft_dataset_build(ds_path(d, "data.jsonl"), ds_path(d, "cache"), &d->opts,
                                   &d->report, &d->info);
    struct ft_dataset *set = NULL;
    struct ft_sample s = {0};
    int64_t n = 0;
    if (!rc)
        rc = ft_dataset_open(ds_path(d, "cache"), &set, &d->info);
    for (int64_t i = 0; !rc && i < ft_dataset_samples(set); i++)
        rc = ft_dataset_read(set, i, &s, &d->info);
    if (!rc)
        rc = ft_dataset_overlap(set, set, &n);
    ft_sample_fini(&s);
    ft_dataset_close(set);
    return rc;
}

static void out_of_memory(void **state) {
    (void)state;
    struct ds d;
    ds_open_chatml(&d);
    json_set_alloc_funcs(mem_alloc, mem_free);
    d.opts.preference = true;
    static const char line[] =
        "{\"input\":{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
        "\"text\":\"a\"}]}],\"tools\":[{}]},\"preferred_output\":[{\"role\":\"assistant\","
        "\"content\":\"b\"}],\"non_preferred_output\":[{\"role\":\"assistant\",\"content\":"
        "\"c d e\"}]}\n";
    ds_write(&d, "data.jsonl", line, sizeof line - 1);
    mem_fail_after(0, false);
    int64_t alive = mem_live_blocks();
    enum err rc = build_and_read(&d);
    if (rc)
        fail_msg("%s", d.info.message);
    uint64_t n = mem_fail_count(), failed = 0;
    assert_true(n > 50);
    for (int all = 0; all < 2; all++)
        for (uint64_t i = 1; i <= n; i++) {
            unlink(ds_path(&d, "cache"));
            mem_fail_after(i, all);
            rc = build_and_read(&d);
            mem_fail_after(0, false);
            if (rc && rc != ERR_NOMEM)
                fail_msg("allocation %llu: %s: %s", (unsigned long long)i, err_name(rc),
                         d.info.message);
            failed += rc == ERR_NOMEM;
            assert_int_equal(mem_live_blocks(), alive);
            assert_true(files_in(&d) <= 2);
        }
    assert_true(failed >= n);
    ds_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(report_comes_back),
        cmocka_unit_test(key_knows_every_option),
        cmocka_unit_test(every_byte_counts),
        cmocka_unit_test(every_length_counts),
        cmocka_unit_test(sealed_nonsense),
        cmocka_unit_test(an_older_cache_stays),
        cmocka_unit_test(the_layout_is_as_described),
        cmocka_unit_test(duplicates_and_overlap),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
