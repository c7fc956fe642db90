// SPDX-License-Identifier: Apache-2.0
// multipart/form-data: what each body says, however it is cut, and what is refused.
#include "base/buf.h"
#include "gateway/multipart.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <string.h>

#define B "xyz"
#define NAME(n) "Content-Disposition: form-data; name=\"" n "\"\r\n"
#define PART(n, content) "--" B "\r\n" NAME(n) "\r\n" content "\r\n"
#define END "--" B "--"

struct record {
    struct buf text; // {name|filename|type:content}
    int open;
    size_t fail_at; // this call fails; 0: none
    size_t calls;
};

static enum err step(struct record *r, struct err_info *info) {
    return ++r->calls == r->fail_at ? err_set(info, ERR_DISK_FULL, NULL, "no room") : ERR_OK;
}

static enum err begin(void *arg, const struct mp_part *p, struct err_info *info) {
    struct record *r = arg;
    assert_int_equal(r->open++, 0);
    buf_printf(&r->text, "{%s|%s|%s:", p->name, p->filename ? p->filename : "-",
               p->content_type ? p->content_type : "-");
    return step(r, info);
}

static enum err content(void *arg, const char *p, size_t n, struct err_info *info) {
    struct record *r = arg;
    assert_int_equal(r->open, 1);
    assert_true(n > 0);
    buf_append(&r->text, p, n);
    return step(r, info);
}

static enum err end(void *arg, struct err_info *info) {
    struct record *r = arg;
    assert_int_equal(--r->open, 0);
    buf_putc(&r->text, '}');
    return step(r, info);
}

static const struct mp_calls calls = {begin, content, end};

// Feeds the body in two pieces cut at `cut`, or one byte at a time where cut is n + 1.
static enum err read_cut(struct record *r, const char *body, size_t n, size_t cut,
                         struct err_info *info) {
    struct multipart m;
    enum err e = ERR_OK;
    mp_init(&m, B, &calls, r);
    if (cut <= n) {
        e = mp_feed(&m, body, cut, info);
        if (!e)
            e = mp_feed(&m, body + cut, n - cut, info);
    } else {
        for (size_t i = 0; i < n && !e; i++)
            e = mp_feed(&m, body + i, 1, info);
    }
    return e ? e : mp_finish(&m, info);
}

static void check(const char *body, size_t n, const char *want) {
    for (size_t cut = 0; cut <= n + 1; cut++) {
        struct record r = {0};
        struct err_info info = {0};
        enum err e = read_cut(&r, body, n, cut, &info);
        if (e)
            fail_msg("cut at %zu: %s: %s", cut, body, info.message);
        if (strcmp(r.text.data ? r.text.data : "", want) != 0)
            fail_msg("cut at %zu of %s:\n got %s\nwant %s", cut, body, r.text.data, want);
        buf_fini(&r.text);
    }
}

static const struct {
    const char *body, *want;
} good[] = {
    {PART("a", "1") END, "{a|-|-:1}"},
    {PART("a", "1") END "\r\n", "{a|-|-:1}"},
    {PART("a", "1") END " \t\r\n", "{a|-|-:1}"},
    {PART("a", "1") END "\r\nepilogue\r\n--" B "\r\n", "{a|-|-:1}"},
    {"preamble\r\nmore\r\n" PART("a", "1") END, "{a|-|-:1}"},
    {"\r\n" PART("a", "1") END, "{a|-|-:1}"},
    {PART("a", "1") PART("b", "22") END, "{a|-|-:1}{b|-|-:22}"},
    {PART("a", "") END, "{a|-|-:}"},
    {"--" B "\r\n" NAME("a") "\r\n" END, "{a|-|-:}"}, // the empty line's end is the delimiter's
    {"--" B "  \t\r\n" NAME("a") "\r\n1\r\n" END, "{a|-|-:1}"},
    {END, ""},
    {"--" B "\n" NAME("a") "\r\n1\r\n" END, ""}, // no delimiter line: it stands before all parts
    {"--" B "\r\n" NAME("f") "Content-Type: text/plain; x=y\r\n\r\nhi\r\n" END,
     "{f|-|text/plain; x=y:hi}"},
    {"--" B "\r\ncontent-disposition:form-data;name=f;filename=a.jsonl\r\nCONTENT-TYPE:  a/b  \r\n"
     "Content-Transfer-Encoding: binary\r\nX-Other: ignored\r\n\r\nhi\r\n" END,
     "{f|a.jsonl|a/b:hi}"},
    {"--" B
     "\r\nContent-Disposition: form-data; name=\"f\"; filename=\"C:\\dir\\a \\\"b\\\\.txt\"\r\n"
     "\r\n1\r\n" END,
     "{f|C:\\dir\\a \"b\\.txt|-:1}"},
    {"--" B "\r\nContent-Disposition: form-data; name=\"f\"; filename=\"\"\r\n\r\n1\r\n" END,
     "{f||-:1}"},
    {"--" B
     "\r\nContent-Disposition: form-data; name=\"f\"; filename=\"caf\xc3\xa9\"\r\n\r\n1\r\n" END,
     "{f|caf\xc3\xa9|-:1}"},
    {"--" B "\r\nContent-Disposition: form-data; name=\"f\"; filename=\"x\"; "
     "filename*=UTF-8''caf%C3%A9%20b\r\n\r\n1\r\n" END,
     "{f|caf\xc3\xa9 b|-:1}"},
    {"--" B "\r\nContent-Disposition: form-data; name=\"f\"; other=\"x;y\"\r\n\r\n1\r\n" END,
     "{f|-|-:1}"},
    // Lines that only look like a delimiter are content.
    {PART("a", "\r\n\r\n--xy\r\n--xyzz\r\n--xyz-\r\n--xyz --\r\n--xyz--x\r\n --xyz\r\n-xyz") END,
     "{a|-|-:\r\n\r\n--xy\r\n--xyzz\r\n--xyz-\r\n--xyz --\r\n--xyz--x\r\n --xyz\r\n-xyz}"},
    {PART("a", "--xyzz") END, "{a|-|-:--xyzz}"},
    {PART("a", "x--xyz\r\n\r--xyz\r\r\n\n--xyz") END, "{a|-|-:x--xyz\r\n\r--xyz\r\r\n\n--xyz}"},
    {PART("a", "1\n--xyz\n--xyz--\n") END, "{a|-|-:1\n--xyz\n--xyz--\n}"},
    {PART("a", "1\r\n--xyz\rx\r\n--xyz--\rx\r\n--xyz--\r\r\n--xyz \r") END,
     "{a|-|-:1\r\n--xyz\rx\r\n--xyz--\rx\r\n--xyz--\r\r\n--xyz \r}"},
    {PART("a", "\r") END, "{a|-|-:\r}"},
    {PART("a", "\r\n") END, "{a|-|-:\r\n}"},
    {PART("a", "\r\n-\r\n--\r\n--x") END, "{a|-|-:\r\n-\r\n--\r\n--x}"},
};

static void test_good(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        check(good[i].body, strlen(good[i].body), good[i].want);
}

#define DISPOSITION(s) "--" B "\r\nContent-Disposition: " s "\r\n\r\n1\r\n" END
static const struct {
    const char *body, *why;
} bad[] = {
    {"", "ends before"},
    {"--", "ends before"},
    {"--" B, "ends before"},
    {"--" B "-", "ends before"},
    {"--" B "\r\n", "ends before"},
    {"--" B "\r\n" NAME("a") "\r\n1", "ends before"},
    {PART("a", "1"), "ends before"},
    {PART("a", "1") END "x", "ends before"},
    {PART("a", "1") END "\r", "ends before"},
    {PART("a", "1") "--" B "--x\r\n", "ends before"},
    {"--" B "\r\n\r\n1\r\n" END, "no Content-Disposition"},
    {"--" B "\r\n" END "\r\n\r\n", "no field"},
    {"--" B "\r\n" NAME("a") NAME("b") "\r\n1\r\n" END, "two Content-Dispositions"},
    {"--" B "\r\n" NAME("a") "no colon\r\n\r\n1\r\n" END, "no field"},
    {"--" B "\r\n" NAME("a") ": v\r\n\r\n1\r\n" END, "no field"},
    {"--" B "\r\n" NAME("a") "X : v\r\n\r\n1\r\n" END, "no field"},
    {"--" B "\r\n" NAME("a") " folded\r\n\r\n1\r\n" END, "folded"},
    {"--" B "\r\n folded\r\n" NAME("a") "\r\n1\r\n" END, "folded"},
    {"--" B "\r\n" NAME("a") "X: a\x01\r\n\r\n1\r\n" END, "control character"},
    {"--" B "\r\n" NAME("a") "X: a\rb\r\n\r\n1\r\n" END, "control character"},
    {"--" B "\r\n" NAME("a") "X: a\n\r\n1\r\n" END, "CR LF"},
    {"--" B "\r\n" NAME("a") "Content-Type: a/b\r\nContent-Type: a/b\r\n\r\n1\r\n" END,
     "two Content-Types"},
    {"--" B "\r\n" NAME("a") "Content-Transfer-Encoding: base64\r\n\r\nMQ==\r\n" END, "not binary"},
    {DISPOSITION("attachment; name=a"), "not form-data"},
    {DISPOSITION("form-data"), "no name"},
    {DISPOSITION("form-data; name=\"\""), "no name"},
    {DISPOSITION("form-data; name"), "name=value"},
    {DISPOSITION("form-data; name="), "name=value"},
    {DISPOSITION("form-data; name=\"a"), "name=value"},
    {DISPOSITION("form-data; name=\"a\" filename=b"), "name=value"},
    {DISPOSITION("form-data; name=a b"), "name=value"},
    {DISPOSITION("form-data; name=\"a\";"), "name=value"},
    {DISPOSITION("form-datax; name=\"a\""), "name=value"},
    {DISPOSITION("form-data; name=a; name=b"), "more than once"},
    {DISPOSITION("form-data; name=a; filename=b; filename=c"), "more than once"},
    {DISPOSITION("form-data; name=\"\xff\""), "plain UTF-8"},
    {DISPOSITION("form-data; name=a; filename=\"\xc3\""), "plain UTF-8"},
    {DISPOSITION("form-data; name=a; filename=\"a\tb\""), "plain UTF-8"},
    {DISPOSITION("form-data; name=a; filename*=UTF-8''a%0Ab"), "plain UTF-8"},
    {DISPOSITION("form-data; name=a; filename*=UTF-8''a%00b"), "plain UTF-8"},
    {DISPOSITION("form-data; name=a; filename*=UTF-8''%c3"), "plain UTF-8"},
    {DISPOSITION("form-data; name=a; filename*=latin1''a"), "percent-encoded"},
    {DISPOSITION("form-data; name=a; filename*=UTF-8''a%4"), "percent-encoded"},
    {DISPOSITION("form-data; name=a; filename*=UTF-8''a%"), "percent-encoded"},
};

static void test_bad(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        size_t n = strlen(bad[i].body);
        for (size_t cut = 0; cut <= n + 1; cut++) {
            struct record r = {0};
            struct err_info info = {0};
            enum err e = read_cut(&r, bad[i].body, n, cut, &info);
            if (e != ERR_INVALID || !strstr(info.message, bad[i].why))
                fail_msg("cut at %zu: %s\n%s: %s", cut, bad[i].body, err_name(e), info.message);
            buf_fini(&r.text);
        }
    }
}

// NULs in content are content; in a head they are not.
static void test_binary(void **state) {
    (void)state;
    static const char with_nul[] = PART("a", "1\0002") END;
    static const char head[] = "--" B "\r\n" NAME("a") "X: \0\r\n\r\n1\r\n" END;
    struct record r = {0};
    struct err_info info = {0};
    assert_int_equal(read_cut(&r, with_nul, sizeof with_nul - 1, 0, &info), ERR_OK);
    assert_int_equal(r.text.len, strlen("{a|-|-:}") + 3);
    assert_memory_equal(r.text.data + 7, "1\0002", 3);
    buf_fini(&r.text);
    assert_int_equal(read_cut(&r, head, sizeof head - 1, 0, &info), ERR_INVALID);
    buf_fini(&r.text);
}

static void feed_bounded(const char *before, char fill, size_t n, const char *why) {
    struct multipart m;
    struct record r = {0};
    struct err_info info = {0};
    char c[2] = {fill, '\n'};
    mp_init(&m, B, &calls, &r);
    enum err e = mp_feed(&m, before, strlen(before), &info);
    size_t i = 0;
    for (; i < n && !e; i++)
        e = mp_feed(&m, c, 1, &info);
    buf_fini(&r.text);
    if (!why) {
        assert_int_equal(e, ERR_OK);
        return;
    }
    assert_int_equal(e, ERR_INVALID);
    assert_non_null(strstr(info.message, why));
}

static void test_bounds(void **state) {
    (void)state;
    feed_bounded("", 'x', MP_OUTSIDE_MAX, NULL);
    feed_bounded("", 'x', MP_OUTSIDE_MAX + 1, "before the first");
    feed_bounded(PART("a", "1") END "\r\n", 'x', MP_OUTSIDE_MAX, NULL);
    feed_bounded(PART("a", "1") END "\r\n", 'x', MP_OUTSIDE_MAX + 1, "after the last");
    feed_bounded("--" B "\r\nX:", 'x', MP_HEAD_MAX - 2, NULL);
    feed_bounded("--" B "\r\nX:", 'x', MP_HEAD_MAX - 1, "longer than 4096");
    // A line of blanks beyond the bound is no delimiter, but content.
    struct buf body;
    buf_init(&body, 0);
    for (int extra = 0; extra < 2; extra++) {
        buf_clear(&body);
        buf_puts(&body, PART("a", "1") "--" B);
        for (int i = 0; i < MP_BLANKS_MAX + extra; i++)
            buf_putc(&body, ' ');
        buf_puts(&body, "\r\n" NAME("b") "\r\n2\r\n" END);
        struct record r = {0};
        struct err_info info = {0};
        assert_int_equal(read_cut(&r, body.data, body.len, body.len + 1, &info), ERR_OK);
        assert_int_equal(strstr(r.text.data, "{b|-|-:2}") == NULL, extra);
        buf_fini(&r.text);
    }
    buf_clear(&body);
    for (int i = 0; i <= MP_PARTS_MAX; i++)
        buf_puts(&body, PART("a", "1"));
    buf_puts(&body, END);
    struct record r = {0};
    struct err_info info = {0};
    assert_int_equal(read_cut(&r, body.data, body.len, 0, &info), ERR_INVALID);
    assert_non_null(strstr(info.message, "64 parts"));
    buf_fini(&r.text);
    buf_fini(&body);
}

static void test_calls_that_fail(void **state) {
    (void)state;
    static const char body[] = PART("a", "1") PART("b", "2") END;
    for (size_t at = 1; at <= 6; at++)
        for (size_t cut = 0; cut < sizeof body; cut += sizeof body - 1) {
            struct record r = {.fail_at = at};
            struct err_info info = {0};
            assert_int_equal(read_cut(&r, body, sizeof body - 1, cut, &info), ERR_DISK_FULL);
            assert_string_equal(info.message, "no room");
            assert_int_equal(r.calls, at); // and none after it
            buf_fini(&r.text);
        }
}

static void test_boundary(void **state) {
    (void)state;
    static const struct {
        const char *type, *want; // NULL: refused
        enum err e;
    } cases[] = {
        {"multipart/form-data; boundary=abc", "abc", ERR_OK},
        {"Multipart/Form-Data;Boundary=\"a b:c?\" ; charset=utf-8", "a b:c?", ERR_OK},
        {"multipart/form-data; x=y; boundary=----WebKitFormBoundaryA1b2",
         "----WebKitFormBoundaryA1b2", ERR_OK},
        {"multipart/form-data; boundary="
         "1234567890123456789012345678901234567890123456789012345678901234567890",
         "1234567890123456789012345678901234567890123456789012345678901234567890", ERR_OK},
        {"multipart/form-data; boundary="
         "12345678901234567890123456789012345678901234567890123456789012345678901",
         NULL, ERR_INVALID},
        {NULL, NULL, ERR_MEDIA_TYPE},
        {"application/json", NULL, ERR_MEDIA_TYPE},
        {"multipart/form-data2; boundary=a", NULL, ERR_MEDIA_TYPE},
        {"multipart/mixed; boundary=a", NULL, ERR_MEDIA_TYPE},
        {"multipart/form-data", NULL, ERR_INVALID},
        {"multipart/form-data; boundary", NULL, ERR_INVALID},
        {"multipart/form-data; boundary=", NULL, ERR_INVALID},
        {"multipart/form-data; boundary=\"\"", NULL, ERR_INVALID},
        {"multipart/form-data; boundary=\"a \"", NULL, ERR_INVALID},
        {"multipart/form-data; boundary=\"a\x01\"", NULL, ERR_INVALID},
        {"multipart/form-data; boundary=\"a\xc3\xa9\"", NULL, ERR_INVALID},
        {"multipart/form-data; boundary=\"a", NULL, ERR_INVALID},
        {"multipart/form-data; boundary=a; boundary=b", NULL, ERR_INVALID},
        {"multipart/form-data; boundary=a b", NULL, ERR_INVALID},
        {"multipart/form-data boundary=a", NULL, ERR_INVALID},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[MP_BOUNDARY_MAX + 1];
        struct err_info info = {0};
        enum err e = mp_boundary(cases[i].type, out, &info);
        if (e != cases[i].e)
            fail_msg("%s: %s", cases[i].type, err_name(e));
        if (!e)
            assert_string_equal(out, cases[i].want);
        else
            assert_true(info.message[0] != '\0');
    }
    char longer[700];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    memcpy(longer, "multipart/form-data; boundary=a; y=", 35);
    char out[MP_BOUNDARY_MAX + 1];
    assert_int_equal(mp_boundary(longer, out, NULL), ERR_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),     cmocka_unit_test(test_bad),
        cmocka_unit_test(test_binary),   cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_boundary), cmocka_unit_test(test_calls_that_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
