// SPDX-License-Identifier: Apache-2.0
#include "base/options.h"
#include "tests/support/cmocka_all.h"
#include <stdlib.h>
#include <string.h>

struct values {
    bool flag, on;
    int64_t count, size;
    double ratio, time;
    const char *text, *mode, *key, *again, *folder;
    struct opt_list list;
};

#define AT(f) offsetof(struct values, f)
static const struct opt_def defs[] = {
    {.kind = OPT_HEADING, .help = "Things"},
    {OPT_FLAG, "flag", AT(flag), NULL, NULL, 0, 0, NULL, "A flag.", false},
    {OPT_FLAG, "on", AT(on), NULL, "true", 0, 0, NULL, "On unless told.", false},
    {OPT_INT, "count", AT(count), "N", "3", 1, 10, NULL, "A count.", false},
    {OPT_SIZE, "size", AT(size), NULL, NULL, 0, 0, NULL, "A size.", false},
    {OPT_FLOAT, "ratio", AT(ratio), NULL, NULL, 0, 1, NULL, "A ratio.", false},
    {OPT_SECONDS, "time", AT(time), NULL, "2s", 0, 0, NULL, "A time.", false},
    {OPT_STRING, "text", AT(text), NULL, NULL, 0, 0, NULL, "A text.", false},
    {OPT_ENUM, "mode", AT(mode), NULL, "fast", 0, 0, "fast|slow", "A mode.", false},
    {OPT_STRING, "key", AT(key), NULL, NULL, 0, 0, NULL, "A key.", true},
    {OPT_OPTIONAL, "again", AT(again), "DIR", NULL, 0, 0, NULL, "Once more.", false},
    {OPT_STRING, "data-dir", AT(folder), NULL, NULL, 0, 0, NULL, "A folder.", false},
    {OPT_LIST, "list", AT(list), "X", NULL, 0, 0, NULL, "A list.", false},
};
static const struct opt_table table = {"prog", "prog [options] FILE",      "Does things.",
                                       defs,   sizeof defs / sizeof *defs, 1};

static enum err parse(struct values *v, struct opt_result *res, struct err_info *info, ...) {
    static char storage[16][64];
    char *argv[17] = {storage[0]};
    int argc = 1;
    va_list ap;
    va_start(ap, info);
    strcpy(storage[0], "prog");
    for (const char *a; argc < 16 && (a = va_arg(ap, const char *)); argc++)
        argv[argc] = strcpy(storage[argc], a);
    va_end(ap);
    *v = (struct values){0};
    enum err rc = opt_parse(&table, argc, argv, v, res, info);
    for (int i = 1; i < argc; i++)
        assert_null(strstr(argv[i], "s3cret"));
    return rc;
}

static void test_kinds(void **state) {
    (void)state;
    struct values v;
    struct opt_result res;
    struct err_info info;
    assert_int_equal(parse(&v, &res, &info, "--flag", "--no-on", "--count=7", "--size", "1.5G",
                           "--ratio", "0.25", "--time", "250ms", "--mode", "slow", "--list", "a",
                           "--list=b", "file", NULL),
                     ERR_OK);
    assert_true(v.flag);
    assert_false(v.on);
    assert_int_equal(v.count, 7);
    assert_int_equal(v.size, 3LL << 29);
    assert_true(v.ratio == 0.25 && v.time == 0.25);
    assert_string_equal(v.mode, "slow");
    assert_int_equal(v.list.n, 2);
    assert_string_equal(v.list.items[1], "b");
    assert_int_equal(res.n_positional, 1);
    assert_string_equal(res.positional[0], "file");
    opt_result_fini(&res);
}

static void test_optional(void **state) {
    (void)state;
    struct values v;
    struct opt_result res;
    struct err_info info;
    assert_int_equal(parse(&v, &res, &info, NULL), ERR_OK);
    assert_null(v.again);
    assert_false(opt_given(&table, &res, "again"));
    opt_result_fini(&res);
    assert_int_equal(parse(&v, &res, &info, "--again", NULL), ERR_OK);
    assert_string_equal(v.again, "");
    opt_result_fini(&res);
    assert_int_equal(parse(&v, &res, &info, "--again", "--flag", NULL), ERR_OK);
    assert_string_equal(v.again, "");
    assert_true(v.flag);
    opt_result_fini(&res);
    assert_int_equal(parse(&v, &res, &info, "--again", "here", NULL), ERR_OK);
    assert_string_equal(v.again, "here");
    opt_result_fini(&res);
    assert_int_equal(parse(&v, &res, &info, "--again=-x", "--no-on", NULL), ERR_OK);
    assert_string_equal(v.again, "-x");
    assert_true(opt_given(&table, &res, "again") && opt_given(&table, &res, "on"));
    assert_false(opt_given(&table, &res, "flag") || opt_given(&table, &res, "count"));
    opt_result_fini(&res);
}

static void test_take(void **state) {
    (void)state;
    static const struct {
        const char *name, *same, *other, *named;
    } cases[] = {
        {"count", "7", "8", "--count is 7, and 8 in run.json"},
        {"ratio", "0.250", "0.5", "--ratio is 0.25, and 0.5 in run.json"},
        {"flag", "true", "false", "--flag is true, and false in run.json"},
        {"mode", "slow", "fast", "--mode is slow, and fast in run.json"},
        {"text", "a", "b", "--text is a, and b in run.json"},
    };
    struct values v;
    struct opt_result res;
    struct err_info info;
    assert_int_equal(parse(&v, &res, &info, "--count=7", "--ratio=0.25", "--flag", "--mode=slow",
                           "--text", "a", NULL),
                     ERR_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(
            opt_take(&table, cases[i].name, cases[i].same, "run.json", &v, &res, &info), ERR_OK);
        assert_int_equal(
            opt_take(&table, cases[i].name, cases[i].other, "run.json", &v, &res, &info),
            ERR_INVALID);
        assert_non_null(strstr(info.message, cases[i].named));
    }
    assert_true(v.count == 7 && v.ratio == 0.25 && v.flag);
    opt_result_fini(&res);
    assert_int_equal(parse(&v, &res, &info, NULL), ERR_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(
            opt_take(&table, cases[i].name, cases[i].same, "run.json", &v, &res, &info), ERR_OK);
    assert_true(v.count == 7 && v.ratio == 0.25 && v.flag);
    assert_string_equal(v.mode, "slow");
    assert_string_equal(v.text, "a");
    // Checked like any other.
    assert_int_equal(opt_take(&table, "count", "11", "run.json", &v, &res, &info), ERR_INVALID);
    assert_non_null(strstr(info.message, "run.json: count: '11'"));
    assert_int_equal(opt_take(&table, "list", "a", "run.json", &v, &res, &info), ERR_INTERNAL);
    assert_int_equal(opt_take(&table, "none", "a", "run.json", &v, &res, &info), ERR_INTERNAL);
    opt_result_fini(&res);
}

static void test_defaults_and_environment(void **state) {
    (void)state;
    struct values v;
    struct opt_result res;
    struct err_info info;
    setenv("GRAFT_COUNT", "9", 1);
    setenv("GRAFT_LIST", "x,y,z", 1);
    assert_int_equal(parse(&v, &res, &info, NULL), ERR_OK);
    assert_int_equal(v.count, 9);
    assert_true(v.time == 2);
    assert_int_equal(v.list.n, 3);
    assert_string_equal(v.list.items[2], "z");
    opt_result_fini(&res);
    assert_int_equal(parse(&v, &res, &info, "--count", "4", "--list", "only", NULL), ERR_OK);
    assert_int_equal(v.count, 4);
    assert_int_equal(v.list.n, 1);
    opt_result_fini(&res);
    setenv("GRAFT_COUNT", "many", 1);
    assert_int_equal(parse(&v, &res, &info, NULL), ERR_INVALID);
    assert_non_null(strstr(info.message, "count"));
    unsetenv("GRAFT_COUNT");
    unsetenv("GRAFT_LIST");
}

static void test_secret_leaves_the_command_line(void **state) {
    (void)state;
    struct values v;
    struct opt_result res;
    struct err_info info;
    assert_int_equal(parse(&v, &res, &info, "--key", "s3cret", NULL), ERR_OK);
    assert_string_equal(v.key, "s3cret");
    opt_result_fini(&res);
    assert_int_equal(parse(&v, &res, &info, "--key=s3cret", NULL), ERR_OK);
    assert_string_equal(v.key, "s3cret");
    opt_result_fini(&res);
}

static void test_errors_name_the_option(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"--count", "11", "from 1 to 10"},
        {"--count", "2x", "count"},
        {"--ratio", "nan", "ratio"},
        {"--size", "3Q", "size"},
        {"--time", "5d", "time"},
        {"--mode", "warm", "fast|slow"},
        {"--flag=maybe", NULL, "flag"},
        {"--cuont", "3", "--count?"},
        {"--data", "x", "did you mean --data-dir?"},
        {"--count-all", "x", "did you mean --count?"},
        {"--zz", "x", "--help"},
        {"--text", NULL, "needs a value"},
        {"a", "b", "unexpected"},
        {"-x", NULL, "-x"},
        {"--size", "9999999T", "size"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct values v;
        struct opt_result res;
        struct err_info info;
        assert_int_equal(parse(&v, &res, &info, cases[i][0], cases[i][1], NULL), ERR_INVALID);
        assert_non_null(strstr(info.message, cases[i][2]));
    }
}

static void test_help_names_every_option(void **state) {
    (void)state;
    struct buf help, page;
    buf_init(&help, 0);
    buf_init(&page, 0);
    opt_print_help(&table, &help, 80);
    opt_print_markdown(&table, &page);
    for (size_t i = 1; i < table.n; i++) {
        char flag[64] = "--";
        strcat(flag, defs[i].name);
        assert_non_null(strstr(help.data, flag));
        assert_non_null(strstr(page.data, flag));
    }
    assert_non_null(strstr(help.data, "[default: fast]"));
    buf_fini(&help);
    buf_fini(&page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_optional),
        cmocka_unit_test(test_take),
        cmocka_unit_test(test_defaults_and_environment),
        cmocka_unit_test(test_secret_leaves_the_command_line),
        cmocka_unit_test(test_errors_name_the_option),
        cmocka_unit_test(test_help_names_every_option),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
