// SPDX-License-Identifier: Apache-2.0
#include "base/buf.h"
#include "base/mem.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void test_append_and_consume(void **state) {
    (void)state;
    struct buf b;
    buf_init(&b, 0);
    for (int i = 0; i < 1000; i++)
        buf_printf(&b, "%d,", i);
    assert_int_equal(buf_err(&b), ERR_OK);
    assert_int_equal(b.len, strlen(b.data));
    assert_memory_equal(b.data, "0,1,2,3,", 8);
    buf_consume(&b, 4);
    assert_memory_equal(b.data, "2,3,", 4);
    buf_consume(&b, SIZE_MAX);
    assert_int_equal(b.len, 0);
    buf_append(&b, "a\0b", 3);
    assert_int_equal(b.len, 3);
    size_t len;
    char *taken = buf_take(&b, &len);
    assert_memory_equal(taken, "a\0b", 4);
    assert_int_equal(len, 3);
    mem_free(taken);
    buf_fini(&b);
}

static void test_limit_is_sticky_until_cleared(void **state) {
    (void)state;
    struct buf b;
    buf_init(&b, 5);
    buf_puts(&b, "12345");
    assert_int_equal(buf_err(&b), ERR_OK);
    buf_putc(&b, '6');
    assert_int_equal(buf_err(&b), ERR_LIMIT);
    buf_puts(&b, "");
    assert_int_equal(b.len, 5);
    buf_clear(&b);
    buf_puts(&b, "ok");
    assert_string_equal(b.data, "ok");
    buf_fini(&b);
}

static void test_out_of_memory_keeps_the_content(void **state) {
    (void)state;
    struct buf b;
    buf_init(&b, 0);
    buf_puts(&b, "kept");
    mem_fail_after(1, true);
    char big[200] = {0};
    buf_append(&b, big, sizeof big);
    mem_fail_after(0, false);
    assert_int_equal(buf_err(&b), ERR_NOMEM);
    assert_string_equal(b.data, "kept");
    buf_fini(&b);
    assert_int_equal(mem_live_blocks(), 0);
}

static int file_of(const char *text, size_t n) {
    FILE *f = tmpfile();
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    rewind(f);
    int fd = dup(fileno(f));
    fclose(f);
    assert_true(fd >= 0);
    return fd;
}

static void test_read(void **state) {
    (void)state;
    enum { BYTES = 200000 };
    char *text = mem_alloc(BYTES);
    assert_non_null(text);
    for (size_t i = 0; i < BYTES; i++)
        text[i] = (char)(i * 7 >> 3);
    struct buf b;
    buf_init(&b, BYTES + 1); // what fills it to the last byte fits
    buf_putc(&b, 'x');
    int fd = file_of(text, BYTES);
    assert_int_equal(buf_read(&b, fd), ERR_OK);
    assert_int_equal(b.len, BYTES + 1);
    assert_memory_equal(b.data + 1, text, BYTES);
    assert_int_equal(b.data[b.len], '\0');
    close(fd);
    buf_clear(&b);
    b.max = BYTES - 1;
    fd = file_of(text, BYTES);
    assert_int_equal(buf_read(&b, fd), ERR_LIMIT);
    assert_int_equal(buf_err(&b), ERR_LIMIT);
    close(fd);
    buf_fini(&b);
    buf_init(&b, 0);
    fd = file_of("", 0);
    assert_int_equal(buf_read(&b, fd), ERR_OK);
    assert_int_equal(b.len, 0);
    close(fd);
    assert_int_equal(buf_read(&b, fd), ERR_IO);
    buf_fini(&b);
    mem_free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_append_and_consume),
        cmocka_unit_test(test_limit_is_sticky_until_cleared),
        cmocka_unit_test(test_out_of_memory_keeps_the_content),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
