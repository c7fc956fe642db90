// SPDX-License-Identifier: Apache-2.0
// The character tables of the template interpreter against Python's str methods, for every
// character: tests/golden/chat_template/unicode.json holds digests, unicode_digest.py beside it
// says of what.
#include "base/buf.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "model/template/unicode.h"
#include "tests/support/cmocka_all.h"
#include <jansson.h>
#include <string.h>

static const char *golden = "tests/golden/chat_template/unicode.json";

static uint32_t next_char(uint32_t cp) {
    return cp == 0xd7ff ? 0xe000 : cp + 1;
}

static void compare(const char *name, const struct buf *b) {
    json_error_t je;
    json_t *file = json_load_file(golden, 0, &je);
    if (!file)
        fail_msg("%s: %s", golden, je.text);
    uint8_t digest[SHA256_BYTES];
    char hex[2 * SHA256_BYTES + 1];
    const char *want = json_string_value(json_object_get(file, name));
    assert_non_null(want);
    assert_int_equal(buf_err(b), ERR_OK);
    assert_int_equal(sha256(b->data, b->len, digest), ERR_OK);
    hex_encode(digest, sizeof digest, hex);
    if (strcmp(hex, want) != 0)
        fail_msg("%s differs from Python", name);
    json_decref(file);
}

static void properties(void **state) {
    (void)state;
    static const struct {
        const char *name;
        enum tpl_uc_prop prop;
    } table[] = {{"alpha", TPL_UC_ALPHA},         {"decimal", TPL_UC_DECIMAL},
                 {"digit", TPL_UC_DIGIT},         {"numeric", TPL_UC_NUMERIC},
                 {"alnum", TPL_UC_ALNUM},         {"space", TPL_UC_SPACE},
                 {"printable", TPL_UC_PRINTABLE}, {"upper", TPL_UC_UPPER},
                 {"lower", TPL_UC_LOWER},         {"title", TPL_UC_TITLE}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct buf b;
        buf_init(&b, 0);
        for (uint32_t cp = 0; cp < 0x110000; cp = next_char(cp))
            buf_putc(&b, (char)tpl_uc_is(table[i].prop, cp));
        compare(table[i].name, &b);
        buf_fini(&b);
    }
}

static void mappings(void **state) {
    (void)state;
    static const char *const names[] = {"to_upper", "to_lower", "to_title"};
    for (int to = TPL_UC_TO_UPPER; to <= TPL_UC_TO_TITLE; to++) {
        struct buf b;
        buf_init(&b, 0);
        for (uint32_t cp = 0; cp < 0x110000; cp = next_char(cp)) {
            uint32_t out[3];
            char u[4];
            size_t n = tpl_uc_map((enum tpl_uc_case_to)to, cp, out);
            for (size_t i = 0; i < n; i++)
                buf_append(&b, u, (size_t)utf8_encode(out[i], u));
            buf_putc(&b, '\0');
        }
        compare(names[to], &b);
        buf_fini(&b);
    }
}

static void decimal_values(void **state) {
    (void)state;
    struct buf b;
    buf_init(&b, 0);
    for (uint32_t cp = 0; cp < 0x110000; cp = next_char(cp))
        buf_putc(&b, (char)tpl_uc_decimal_value(cp));
    compare("decimal_value", &b);
    buf_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(properties),
        cmocka_unit_test(mappings),
        cmocka_unit_test(decimal_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
