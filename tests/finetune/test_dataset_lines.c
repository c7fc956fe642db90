// SPDX-License-Identifier: Apache-2.0
// What is wrong with a line, in exact words; what changes nothing; counts and limits of a file.
#include "base/mem.h"
#include "tests/finetune/dataset_support.h"
#include "tests/support/cmocka_all.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GOOD                                                                                       \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"    \
    "\"b\"}]}"
#define U "{\"role\":\"user\",\"content\":\"a\"}"
#define A "{\"role\":\"assistant\",\"content\":\"b\"}"
#define PAIR(in, yes, no)                                                                          \
    "{\"input\":{\"messages\":[" in "]},\"preferred_output\":[" yes                                \
    "],\"non_preferred_output\":[" no "]}"

struct bad {
    const char *line, *text, *code;
};

// Each is line 2, behind a good chat line.
static const struct bad bad_chat[] = {
    {"hello", "line 2 is not valid JSON (byte 5)", "invalid_jsonl"},
    {"[1, 2]", "line 2 is not a JSON object", "invalid_jsonl"},
    {"\"text\"", "line 2 is not a JSON object", "invalid_jsonl"},
    {"7", "line 2 is not a JSON object", "invalid_jsonl"},
    {"null", "line 2 is not a JSON object", "invalid_jsonl"},
    {"{\"messages\":", "line 2 ends before its JSON does", "invalid_jsonl"},
    {"{\"messages\":[]", "line 2 ends before its JSON does", "invalid_jsonl"},
    {GOOD GOOD, "line 2 is not valid JSON (byte 80)", "invalid_jsonl"},
    {"{\"messages\":[],\"messages\":[]}", "line 2 has a key twice (byte 25)", "invalid_jsonl"},
    {"{'messages':[]}", "line 2 is not valid JSON (byte 2)", "invalid_jsonl"},
    {"{\"a\":\"\xff\"}", "line 2 is not valid UTF-8 (byte 7)", "invalid_jsonl"},
    {"{\"a\":\"\xed\xa0\x80\"}", "line 2 is not valid UTF-8 (byte 7)", "invalid_jsonl"},
    {"{\"a\":\"\xe2\x82", "line 2 is not valid UTF-8 (byte 7)", "invalid_jsonl"},
    {"{\"a\":\"\\ud800\"}", "line 2 is not valid JSON (byte 13)", "invalid_jsonl"},
    {"{}", "line 2: it has none of messages, prompt and input", "invalid_jsonl"},
    {"{\"message\":[]}", "line 2: it has none of messages, prompt and input", "invalid_jsonl"},
    {"{\"messages\":[],\"prompt\":\"\"}",
     "line 2: it mixes messages, prompt and input; a line holds one of them", "invalid_jsonl"},
    {"{\"messages\":null}", "line 2: messages is required", "invalid_jsonl"},
    {"{\"messages\":{}}", "line 2: messages must be a list, not an object", "invalid_jsonl"},
    {"{\"messages\":[]}", "line 2: messages must hold 1 to 16384 messages, got 0", "invalid_jsonl"},
    {"{\"messages\":[\"hi\"]}", "line 2: messages[0] must be an object, not a string",
     "invalid_jsonl"},
    {"{\"messages\":[" U ",{\"content\":\"b\"}]}", "line 2: messages[1].role must be a string",
     "invalid_jsonl"},
    {"{\"messages\":[{\"role\":7,\"content\":\"b\"}]}", "line 2: messages[0].role must be a string",
     "invalid_jsonl"},
    {"{\"messages\":[{\"role\":\"human\",\"content\":\"b\"}]}",
     "line 2: messages[0].role 'human' is not one of system, user, assistant, tool, developer",
     "invalid_jsonl"},
    {"{\"messages\":[" U ",{\"role\":\"assistant\"}]}", "line 2: messages[1].content is required",
     "invalid_jsonl"},
    {"{\"messages\":[" U ",{\"role\":\"assistant\",\"content\":null}]}",
     "line 2: messages[1].content is required", "invalid_jsonl"},
    {"{\"messages\":[" U ",{\"role\":\"assistant\",\"content\":42}]}",
     "line 2: messages[1].content must be a string or a list of text parts, not a number",
     "invalid_jsonl"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":[\"a\"]}," A "]}",
     "line 2: messages[0].content[0] must be an object with a type", "invalid_jsonl"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}," A "]}",
     "line 2: messages[0].content[0].type 'image_url' is not supported; use text", "invalid_jsonl"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":1}]}," A "]}",
     "line 2: messages[0].content[0].text must be a string", "invalid_jsonl"},
    {"{\"messages\":[" U "]}", "line 2: messages has no assistant message", "invalid_jsonl"},
    {"{\"messages\":[" A "," U "]}",
     "line 2: messages[0] is the assistant's; put a message before it or give it weight 0",
     "invalid_jsonl"},
    {"{\"messages\":[" U ",{\"role\":\"assistant\",\"content\":\"b\",\"weight\":2}]}",
     "line 2: messages[1].weight must be 0 or 1", "invalid_jsonl"},
    {"{\"messages\":[" U ",{\"role\":\"assistant\",\"content\":\"b\",\"weight\":0.5}]}",
     "line 2: messages[1].weight must be 0 or 1", "invalid_jsonl"},
    {"{\"messages\":[" U ",{\"role\":\"assistant\",\"content\":\"b\",\"weight\":\"1\"}]}",
     "line 2: messages[1].weight must be 0 or 1", "invalid_jsonl"},
    {"{\"messages\":[" U ",{\"role\":\"assistant\",\"content\":\"b\",\"weight\":true}]}",
     "line 2: messages[1].weight must be 0 or 1", "invalid_jsonl"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"weight\":1}," A "]}",
     "line 2: messages[0].weight is for assistant messages of chat lines only", "invalid_jsonl"},
    {"{\"messages\":[" U ",{\"role\":\"assistant\",\"content\":\"b\",\"weight\":0}]}",
     "line 2 has no supervised token", "no_supervised_tokens"},
    {"{\"messages\":[" U "," A "],\"tools\":{}}", "line 2: tools must be a list, not an object",
     "invalid_jsonl"},
    {"{\"messages\":[" U "," A "],\"tools\":[1]}",
     "line 2: tools[0] must be an object, not a number", "invalid_jsonl"},
    {"{\"messages\":[" U "," A "],\"functions\":[]}",
     "line 2: functions is not supported; use tools", "invalid_jsonl"},
    {"{\"messages\":[" U "," A "],\"parallel_tool_calls\":1}",
     "line 2: parallel_tool_calls must be a boolean, not a number", "invalid_jsonl"},
    {"{\"prompt\":\"a\",\"completion\":\"b\"}",
     "line 2 is a completion line, but line 1 is a chat line", "invalid_jsonl"},
    {PAIR(U, A, A), "line 2 is a preference line, but line 1 is a chat line", "invalid_jsonl"},
    {"{\"messages\":[" U "," A "," U
     ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[]}]}",
     "line 2: chat template: line 2: can only concatenate str (not \"NoneType\") to str",
     "invalid_template"},
};

static void check_bad(const struct bad *b, size_t n, const char *good, bool preference) {
    struct ds d;
    ds_open_chatml(&d);
    d.opts.preference = preference;
    for (size_t i = 0; i < n; i++) {
        char text[2048];
        snprintf(text, sizeof text, "%s\n%s\n%s\n", good, b[i].line, good);
        enum err rc = ds_build_text(&d, text);
        if (strcmp(b[i].text, d.report.errors[0].text) != 0 || !d.report.errors[0].code ||
            strcmp(b[i].code, d.report.errors[0].code) != 0)
            fail_msg("%s\n gives    '%s' (%s)\n expected '%s' (%s)", b[i].line,
                     d.report.errors[0].text, d.report.errors[0].code, b[i].text, b[i].code);
        assert_int_equal(rc, strcmp(b[i].code, "invalid_template") ? ERR_INVALID : ERR_TEMPLATE);
        assert_int_equal(d.report.n_errors, 1);
        assert_int_equal(d.report.errors[0].line, 2);
        assert_string_equal(d.info.message, b[i].text);
        assert_int_equal(d.report.lines, 3);
        assert_int_equal(d.report.samples, 2); // the others are still counted
        assert_int_not_equal(access(ds_path(&d, "cache"), F_OK), 0);
    }
    ds_close(&d);
}

static void chat_lines(void **state) {
    (void)state;
    check_bad(bad_chat, sizeof bad_chat / sizeof *bad_chat, GOOD, false);
}

static void completion_lines(void **state) {
    (void)state;
    static const struct bad bad[] = {
        {"{\"prompt\":\"a\"}", "line 2: completion is required", "invalid_jsonl"},
        {"{\"completion\":\"a\"}", "line 2: prompt is required", "invalid_jsonl"},
        {"{\"prompt\":\"a\",\"completion\":\"\"}", "line 2: completion must not be empty",
         "invalid_jsonl"},
        {"{\"prompt\":[\"a\"],\"completion\":\"b\"}",
         "line 2: prompt must be a string, not an array", "invalid_jsonl"},
        {"{\"prompt\":\"a\",\"completion\":1.5}",
         "line 2: completion must be a string, not a number", "invalid_jsonl"},
        {GOOD, "line 2 is a chat line, but line 1 is a completion line", "invalid_jsonl"},
    };
    check_bad(bad, sizeof bad / sizeof *bad, "{\"prompt\":\"a\",\"completion\":\"b\"}", false);
}

static void preference_lines(void **state) {
    (void)state;
    static const struct bad bad[] = {
        {"{\"preferred_output\":[" A "],\"non_preferred_output\":[" A "]}",
         "line 2: input is required", "invalid_jsonl"},
        {"{\"input\":[],\"preferred_output\":[" A "],\"non_preferred_output\":[" A "]}",
         "line 2: input must be an object, not an array", "invalid_jsonl"},
        {"{\"input\":{},\"preferred_output\":[" A "],\"non_preferred_output\":[" A "]}",
         "line 2: input.messages is required", "invalid_jsonl"},
        {PAIR("", A, A), "line 2: input.messages must hold 1 to 16384 messages, got 0",
         "invalid_jsonl"},
        {PAIR(U, "", A), "line 2: preferred_output must hold 1 message, got 0", "invalid_jsonl"},
        {PAIR(U, A "," A, A), "line 2: preferred_output must hold 1 message, got 2",
         "invalid_jsonl"},
        {PAIR(U, A, ""), "line 2: non_preferred_output must hold 1 message, got 0",
         "invalid_jsonl"},
        {PAIR(U, A, U), "line 2: non_preferred_output[0].role must be assistant", "invalid_jsonl"},
        {PAIR(U, "7", A), "line 2: preferred_output[0] must be an object, not a number",
         "invalid_jsonl"},
        {PAIR(U, A, "{\"role\":\"assistant\",\"content\":\"b\",\"weight\":1}"),
         "line 2: non_preferred_output[0].weight is for assistant messages of chat lines only",
         "invalid_jsonl"},
        {"{\"input\":{\"messages\":[" U "]},\"preferred_output\":[" A "]}",
         "line 2: non_preferred_output is required", "invalid_jsonl"},
        {"{\"input\":{\"messages\":[" U "]},\"preferred_output\":" A
         ",\"non_preferred_output\":[]}",
         "line 2: preferred_output must be a list, not an object", "invalid_jsonl"},
        {"{\"input\":{\"messages\":[" U "]},\"preferred_output\":[" A
         "],\"preferred_completion\":[" A "],\"non_preferred_output\":[]}",
         "line 2: preferred_output and preferred_completion are the same field", "invalid_jsonl"},
        {"{\"input\":{\"messages\":[" U "],\"tools\":7},\"preferred_output\":[" A
         "],\"non_preferred_output\":[" A "]}",
         "line 2: input.tools must be a list, not a number", "invalid_jsonl"},
    };
    check_bad(bad, sizeof bad / sizeof *bad, PAIR(U, A, A), true);
}

static void odd_bytes(void **state) {
    (void)state;
    struct ds d;
    ds_open_chatml(&d);
    char nul[] = GOOD "\n{\"a\":\"x\"}\n";
    char *x = strchr(nul + sizeof GOOD, 'x');
    *x = '\0';
    assert_int_equal(ds_build(&d, nul, sizeof nul - 1), ERR_INVALID);
    assert_string_equal(d.info.message, "line 2 holds a NUL (byte 7)");
    char deep[400];
    memset(deep, '[', 200);
    memset(deep + 200, ']', 200);
    assert_int_equal(ds_build(&d, deep, sizeof deep), ERR_INVALID);
    assert_string_equal(d.info.message, "line 1 nests deeper than 64 levels");
    d.opts.max_line = sizeof GOOD - 1; // bytes of GOOD: just enough
    assert_int_equal(ds_build_text(&d, GOOD "\n" GOOD " \n" GOOD), ERR_INVALID);
    assert_int_equal(d.report.n_errors, 1);
    char want[80];
    snprintf(want, sizeof want, "line 2 has more than %zu bytes", sizeof GOOD - 1);
    assert_string_equal(d.info.message, want);
    assert_int_equal(d.report.samples, 2);
    ds_close(&d);
}

// Files that are no JSONL at all get one error that says so, and their whole digest.
static void other_kinds(void **state) {
    (void)state;
    static const char array[] =
        "Training file looks like a JSON array; JSONL has one JSON object a "
        "line, and no brackets or commas around them",
                      wide[] = "Training file looks like UTF-16; save it as UTF-8";
    static const struct {
        const char *text;
        size_t n;
        const char *says;
    } all[] = {
#define TEXT(s) s, sizeof s - 1
        {TEXT("[\n  {\n    \"messages\": []\n  }\n]\n"), array},
        {TEXT("\xef\xbb\xbf\n [ " GOOD ",\n" GOOD "]"), array},
        {TEXT("\xff\xfe{\0\"\0a\0\"\0\n\0}\0\n\0"), wide},
        {TEXT("\xfe\xff\0{\0}\0\n"), wide},
        {TEXT("\0{\0}\0\n"), wide},
        {TEXT("\n\0{\0}\0\n\0"), wide},
#undef TEXT
    };
    struct ds d;
    ds_open_chatml(&d);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        uint8_t digest[32];
        assert_int_equal(sha256(all[i].text, all[i].n, digest), ERR_OK);
        assert_int_equal(ds_build(&d, all[i].text, all[i].n), ERR_INVALID);
        assert_string_equal(d.info.message, all[i].says);
        assert_int_equal(d.report.n_errors, 1);
        assert_int_equal(d.report.errors[0].line, 0);
        assert_string_equal(d.report.errors[0].code, "invalid_jsonl");
        assert_memory_equal(d.report.digest, digest, sizeof digest);
    }
    ds_close(&d);
}

static void assert_told(const struct ds *d, int64_t i, const char *want) {
    char text[FT_ERROR_TEXT];
    assert_true(i < d->report.n_told);
    ft_line_error_text(&d->report.errors[i], text, sizeof text);
    assert_string_equal(text, want);
}

static void same_errors(void **state) {
    (void)state;
    struct ds d;
    ds_open_chatml(&d);
    assert_int_equal(ds_build_text(&d, "7\n8\n9\n{}\n{}\n" GOOD "\n{}\n7\n"), ERR_INVALID);
    assert_int_equal(d.report.n_errors, 7);
    assert_int_equal(d.report.n_told, 4);
    assert_told(&d, 0, "lines 1 to 3: each is not a JSON object");
    assert_told(&d, 1, "lines 4 to 5: it has none of messages, prompt and input");
    assert_told(&d, 2, "line 7: it has none of messages, prompt and input");
    assert_told(&d, 3, "line 8 is not a JSON object");
    assert_string_equal(d.info.message, "line 1 is not a JSON object");
    struct buf text;
    buf_init(&text, 0);
    for (int i = 0; i < 120; i++) // digits of the number that the text begins with
        buf_puts(&text, "7\n");
    assert_int_equal(ds_build(&d, text.data, text.len), ERR_INVALID);
    assert_int_equal(d.report.n_told, 1);
    assert_told(&d, 0, "lines 1 to 120: each is not a JSON object");
    buf_fini(&text);
    ds_close(&d);
}

// A name from the file that the message cuts inside a character must not make it invalid.
static void messages_stay_utf8(void **state) {
    (void)state;
    struct ds d;
    ds_open_chatml(&d);
    struct buf text;
    buf_init(&text, 0);
    buf_puts(&text, "{\"messages\":[{\"role\":\"x");
    for (int i = 0; i < 40; i++)
        buf_puts(&text, "\xc3\xa9");
    buf_puts(&text, "\",\"content\":\"\"}]}");
    assert_int_equal(ds_build(&d, text.data, text.len), ERR_INVALID);
    assert_non_null(strstr(d.report.errors[0].text, "\xc3\xa9?' is not one of system"));
    buf_fini(&text);
    ds_close(&d);
}

static void first_twenty(void **state) {
    (void)state;
    struct ds d;
    ds_open_chatml(&d);
    struct buf text;
    buf_init(&text, 0);
    for (int i = 0; i < 30; i++)
        buf_puts(&text, "7\n" GOOD "\n");
    assert_int_equal(ds_build(&d, text.data, text.len), ERR_INVALID);
    assert_int_equal(d.report.n_errors, 30);
    assert_int_equal(d.report.samples, 30);
    assert_int_equal(d.report.duplicates, 29);
    assert_string_equal(d.report.errors[19].text, "line 39 is not a JSON object");
    buf_fini(&text);
    ds_close(&d);
}

// ---- what changes nothing

static void same_samples(struct ds *d, const void *text, size_t n, const char *name,
                         const int64_t line[2]) {
    if (ds_build(d, text, n))
        fail_msg("%s: %s", name, d->info.message);
    struct ft_dataset *a = ds_load(d, "plain"), *b = ds_load(d, "cache");
    int64_t overlap;
    assert_int_equal(ft_dataset_samples(b), 2);
    assert_int_equal(ft_dataset_overlap(a, b, &overlap), ERR_OK);
    if (overlap != 2)
        fail_msg("%s changes the samples", name);
    for (int64_t i = 0; i < 2; i++)
        assert_int_equal(ft_dataset_line(b, i), line[i]);
    ft_dataset_close(a);
    ft_dataset_close(b);
}

static void bom_and_line_ends(void **state) {
    (void)state;
    static const char one[] = GOOD,
                      two[] = "{\"messages\":[" U ",{\"role\":\"assistant\",\"content\":\"c\"}]}";
    struct ds d;
    ds_open_chatml(&d);
    char text[2048];
    int n = snprintf(text, sizeof text, "%s\n%s\n", one, two);
    assert_int_equal(ds_build(&d, text, (size_t)n), ERR_OK);
    assert_int_equal(rename(ds_path(&d, "cache"), ds_path(&d, "plain")), 0);
    const int64_t near[2] = {1, 2}, apart[2] = {2, 5};
    same_samples(&d, text, (size_t)n - 1, "no last newline", near);
    n = snprintf(text, sizeof text, "\xef\xbb\xbf%s\n%s\n", one, two);
    same_samples(&d, text, (size_t)n, "BOM", near);
    n = snprintf(text, sizeof text, "%s\r\n%s\r\n", one, two);
    same_samples(&d, text, (size_t)n, "CRLF", near);
    n = snprintf(text, sizeof text, "\xef\xbb\xbf%s\r\n%s", one, two);
    same_samples(&d, text, (size_t)n, "BOM, CRLF, no last newline", near);
    n = snprintf(text, sizeof text, "\n%s\n \t\r\n\n  %s  \n\n\n", one, two);
    same_samples(&d, text, (size_t)n, "blank lines", apart);
    assert_int_equal(d.report.lines, 7);
    // A BOM anywhere else is a character that JSON does not have.
    n = snprintf(text, sizeof text, "%s\n\xef\xbb\xbf%s\n", one, two);
    assert_int_equal(ds_build(&d, text, (size_t)n), ERR_INVALID);
    ds_close(&d);
}

// Lines across the borders of the reader's chunks.
static void long_lines(void **state) {
    (void)state;
    struct ds d;
    ds_open_chatml(&d);
    d.opts.max_seq_len = 1 << 20;
    struct buf text;
    buf_init(&text, 0);
    for (int line = 0; line < 5; line++) {
        buf_puts(&text, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
        for (int i = 0; i < 100000 + line; i++)
            buf_puts(&text, i % 7 ? "a" : " ");
        buf_puts(&text, "\"}," A "]}\r\n");
    }
    assert_int_equal(ds_build(&d, text.data, text.len), ERR_OK);
    assert_int_equal(d.report.samples, 5);
    assert_int_equal(d.report.duplicates, 0);
    buf_fini(&text);
    ds_close(&d);
}

// ---- counts

static void number_of_examples(void **state) {
    (void)state;
    struct ds d;
    ds_open_chatml(&d);
    d.opts.min_examples = 10;
    assert_int_equal(ds_build_text(&d, GOOD "\n" GOOD "\n" GOOD "\n" GOOD "\n" GOOD "\n"),
                     ERR_INVALID);
    assert_string_equal(d.info.message,
                        "Training file has 5 example(s), but must have at least 10 examples");
    assert_string_equal(d.report.errors[0].code, "invalid_n_examples");
    assert_int_equal(d.report.errors[0].line, 0);
    d.opts.file_name = "Validation file";
    d.opts.min_examples = 0;
    assert_int_equal(ds_build_text(&d, "\r\n\n"), ERR_INVALID);
    assert_string_equal(d.info.message,
                        "Validation file has 0 example(s), but must have at least 1 example");
    assert_int_equal(ds_build_text(&d, ""), ERR_INVALID);
    d.opts.min_examples = 2;
    assert_int_equal(ds_build_text(&d, GOOD "\n" GOOD), ERR_OK);
    d.opts.truncation = FT_TRUNC_DROP;
    d.opts.max_seq_len = 4;
    assert_int_equal(ds_build_text(&d, GOOD "\n" GOOD), ERR_INVALID);
    assert_string_equal(d.info.message,
                        "Validation file has 0 example(s), but must have at least 2 examples: 2 "
                        "are longer than the 4 tokens of max_seq_length and were left out");
    assert_string_equal(d.report.errors[0].code, "invalid_n_examples");
    ds_close(&d);
}

// Those that are left out do not count, however few of many they are.
static void number_of_examples_left(void **state) {
    (void)state;
    struct ds d;
    struct buf text;
    ds_open_chatml(&d);
    buf_init(&text, 0);
    for (int i = 0; i < 9; i++)
        buf_puts(&text, GOOD "\n");
    buf_puts(&text, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 200; i++)
        buf_printf(&text, "%d ", i);
    buf_puts(&text, "\"}," A "]}\n");
    d.opts.min_examples = 10;
    d.opts.max_seq_len = 60;
    d.opts.truncation = FT_TRUNC_DROP;
    assert_int_equal(ds_build(&d, text.data, text.len), ERR_INVALID);
    assert_string_equal(d.report.errors[0].code, "invalid_n_examples");
    assert_string_equal(d.info.message,
                        "Training file has 9 example(s), but must have at least 10 examples: 1 are "
                        "longer than the 60 tokens of max_seq_length and were left out");
    buf_puts(&text, GOOD "\n");
    assert_int_equal(ds_build(&d, text.data, text.len), ERR_OK);
    assert_int_equal(d.report.samples, 10);
    assert_int_equal(d.report.dropped, 1);
    buf_fini(&text);
    ds_close(&d);
}

static void kinds_and_options(void **state) {
    (void)state;
    struct ds d;
    ds_open_chatml(&d);
    assert_int_equal(ds_build_text(&d, PAIR(U, A, A)), ERR_INVALID);
    assert_string_equal(d.info.message,
                        "line 1 is a preference line; this method takes chat or completion lines");
    d.opts.preference = true;
    assert_int_equal(ds_build_text(&d, GOOD), ERR_INVALID);
    assert_string_equal(d.info.message,
                        "line 1 is a chat line; this method takes preference lines");
    d.opts.preference = false;
    d.opts.chat_template = NULL;
    assert_int_equal(ds_build_text(&d, GOOD), ERR_TEMPLATE);
    assert_string_equal(d.info.message,
                        "line 1: the model has no chat template; use prompt and completion");
    assert_int_equal(ds_build_text(&d, "{\"prompt\":\"\",\"completion\":\"yes\"}"), ERR_OK);
    d.opts.chat_template = d.chat_template;
    d.opts.max_seq_len = 1;
    assert_int_equal(ds_build_text(&d, GOOD), ERR_INVALID);
    assert_string_equal(d.info.message, "max_seq_length must be from 2 to 16777216, got 1");
    d.opts.max_seq_len = 100;
    d.opts.template_vars = json_pack("{s:s}", "bos_token", "x");
    assert_int_equal(ds_build_text(&d, GOOD), ERR_INVALID);
    assert_string_equal(d.info.message, "template_vars must not set 'bos_token'");
    json_decref(d.opts.template_vars);
    ds_close(&d);
}

static bool stop(void *arg) {
    return --*(int *)arg == 0;
}

struct meddler {
    const struct ds *d;
    int calls;
    bool shrink;
};

static bool meddle(void *arg) {
    struct meddler *m = arg;
    if (m->calls++)
        return false;
    const char *path = ds_path(m->d, "data.jsonl");
    if (m->shrink) {
        assert_int_equal(truncate(path, 300000), 0);
        return false;
    }
    int fd = open(path, O_WRONLY | O_APPEND);
    assert_int_equal(write(fd, "\n", 1), 1);
    close(fd);
    return false;
}

static void cancelled_or_changed(void **state) {
    (void)state;
    struct ds d;
    ds_open_chatml(&d);
    int calls = 2;
    d.opts.cancelled = stop;
    d.opts.cancelled_arg = &calls;
    assert_int_equal(ds_build_text(&d, GOOD "\n" GOOD "\n" GOOD), ERR_CANCELLED);
    assert_int_equal(d.report.samples, 1);
    struct buf text; // more than one chunk
    buf_init(&text, 0);
    while (text.len < 600000)
        buf_puts(&text, GOOD "\n");
    for (int shrink = 0; shrink < 2; shrink++) {
        struct meddler m = {&d, 0, shrink};
        d.opts.cancelled = meddle;
        d.opts.cancelled_arg = &m;
        assert_int_equal(ds_build(&d, text.data, text.len), ERR_IO);
        assert_non_null(strstr(d.info.message, shrink ? "has become shorter" : "changed while"));
        assert_int_not_equal(access(ds_path(&d, "cache"), F_OK), 0);
    }
    buf_fini(&text);
    assert_int_equal(ft_dataset_build(ds_path(&d, "none"), NULL, &d.opts, &d.report, &d.info),
                     ERR_NOT_FOUND);
    assert_int_equal(ft_dataset_build(d.folder, NULL, &d.opts, &d.report, &d.info), ERR_FORMAT);
    ds_close(&d);
}

static void the_digest_is_the_files(void **state) {
    (void)state;
    struct ds d;
    ds_open_chatml(&d);
    assert_int_equal(ds_build_text(&d, "\xef\xbb\xbf" GOOD "\r\n"), ERR_OK);
    // printf '\xef\xbb\xbf{...}\r\n' | sha256sum
    char command[600], hex[2 * 32 + 1], want[65] = "";
    snprintf(command, sizeof command, "sha256sum < %s", ds_path(&d, "data.jsonl"));
    FILE *p = popen(command, "r");
    assert_non_null(p);
    assert_int_equal(fscanf(p, "%64s", want), 1);
    pclose(p);
    for (int i = 0; i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", d.report.digest[i]);
    assert_string_equal(hex, want);
    ds_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat_lines),
        cmocka_unit_test(completion_lines),
        cmocka_unit_test(preference_lines),
        cmocka_unit_test(other_kinds),
        cmocka_unit_test(same_errors),
        cmocka_unit_test(odd_bytes),
        cmocka_unit_test(messages_stay_utf8),
        cmocka_unit_test(first_twenty),
        cmocka_unit_test(bom_and_line_ends),
        cmocka_unit_test(long_lines),
        cmocka_unit_test(number_of_examples),
        cmocka_unit_test(number_of_examples_left),
        cmocka_unit_test(kinds_and_options),
        cmocka_unit_test(cancelled_or_changed),
        cmocka_unit_test(the_digest_is_the_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
