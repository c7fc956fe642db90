// SPDX-License-Identifier: Apache-2.0
// Which tokens are targets, beside what the golden cases say: templates that are refused,
// truncation, completions, preference pairs, end tokens, text that looks like a special token.
#include "tests/finetune/dataset_support.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <string.h>

#define MSG(role, text) "{\"role\":\"" role "\",\"content\":\"" text "\"}"
#define CHAT(messages) "{\"messages\":[" messages "]}"
#define FOUR                                                                                       \
    CHAT(MSG("user", "one") "," MSG("assistant",                                                   \
                                    "two") "," MSG("user", "three") "," MSG("assistant", "four"))

// Shows a sequence as text with the targets in brackets.
static void show(const struct ds *d, const int32_t *ids, const uint8_t *mask, int32_t n,
                 struct buf *out) {
    bool in = false;
    for (int32_t i = 0; i < n; i++) {
        size_t len;
        const char *bytes = tokenizer_token_bytes(d->tokenizer, ids[i], &len);
        if (mask[i] != in)
            buf_putc(out, in ? ']' : '[');
        in = mask[i];
        buf_append(out, bytes, len);
    }
    if (in)
        buf_putc(out, ']');
}

static void expect_sample(struct ds *d, int64_t i, const char *want, const char *want2) {
    struct ft_dataset *set = ds_load(d, "cache");
    struct ft_sample s = {0};
    struct buf text;
    buf_init(&text, 0);
    if (ft_dataset_read(set, i, &s, &d->info))
        fail_msg("%s", d->info.message);
    show(d, s.ids, s.mask, s.n, &text);
    assert_string_equal(text.data, want);
    buf_clear(&text);
    assert_int_equal(s.n2 > 0, want2 != NULL);
    if (want2) {
        show(d, s.ids2, s.mask2, s.n2, &text);
        assert_string_equal(text.data, want2);
    }
    buf_fini(&text);
    ft_sample_fini(&s);
    ft_dataset_close(set);
}

static void expect(struct ds *d, const char *line, const char *want) {
    if (ds_build_text(d, line))
        fail_msg("%s: %s", line, d->info.message);
    expect_sample(d, 0, want, NULL);
}

static void refuse(struct ds *d, enum err rc, const char *line, const char *why) {
    assert_int_equal(ds_build_text(d, line), rc);
    assert_string_equal(d->info.message, why);
}

static void turns(void **state) {
    (void)state;
    struct ds d;
    ds_open_chatml(&d);
    expect(&d, FOUR,
           "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n[two<|im_end|>]\n"
           "<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n[four<|im_end|>]\n");
    // What looks like a special token is text, and does not end the turn.
    expect(&d, CHAT(MSG("user", "<|im_end|>") "," MSG("assistant", "a<|im_end|>b")),
           "<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n"
           "[a<|im_end|>b<|im_end|>]\n");
    assert_int_equal(d.report.kind, FT_CHAT);
    ds_close(&d);
}

static void literal_text_is_not_special(void **state) {
    (void)state;
    struct ds d;
    ds_open_chatml(&d);
    assert_int_equal(ds_build_text(&d, CHAT(MSG("user", "x") "," MSG("assistant", "<|im_end|>"))),
                     ERR_OK);
    struct ft_dataset *set = ds_load(&d, "cache");
    struct ft_sample s = {0};
    assert_int_equal(ft_dataset_read(set, 0, &s, &d.info), ERR_OK);
    int32_t ends = 0, targets = 0;
    for (int32_t i = 0; i < s.n; i++) {
        ends += s.ids[i] == tokenizer_eos(d.tokenizer);
        targets += s.mask[i];
    }
    assert_int_equal(ends, 2);
    assert_true(targets > 2);
    ft_sample_fini(&s);
    ft_dataset_close(set);
    ds_close(&d);
}

static void weights(void **state) {
    (void)state;
    struct ds d;
    ds_open_chatml(&d);
    expect(&d,
           "{\"messages\":[" MSG("user",
                                 "a") ",{\"role\":\"assistant\",\"content\":\"b\",\"weight\":0}"
                                      "," MSG("user", "c") ",{\"role\":\"assistant\",\"content\":"
                                                           "\"d\",\"weight\":1.0}]}",
           "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
           "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n[d<|im_end|>]\n");
    ds_close(&d);
    // The template must not see the weight.
    ds_open(&d, "smollm", "<|im_start|>", "<|im_end|>",
            "{% for m in messages %}{{ m | tojson }}{{ eos_token }}{% endfor %}");
    expect(&d,
           "{\"messages\":[" MSG("user",
                                 "a") ",{\"role\":\"assistant\",\"content\":\"b\",\"weight\":1}]}",
           "{\"role\": \"user\", \"content\": \"a\"}<|im_end|>[{\"role\": \"assistant\", "
           "\"content\": \"b\"}<|im_end|>]");
    ds_close(&d);
}

// ---- templates that would train something else than is served

static void refused_templates(void **state) {
    (void)state;
    struct ds d;
    // The system message moves into the last user turn.
    ds_open(&d, "smollm", "<|im_start|>", "<|im_end|>",
            "{% for m in messages %}{% if m.role == 'user' and (loop.last or loop.index == 3) and "
            "messages | length != 4 %}{{ 'last: ' }}{% endif %}{{ m.content + eos_token }}"
            "{% endfor %}");
    refuse(&d, ERR_TEMPLATE, FOUR,
           "line 1: the chat template's prompt for messages[1] is not how the whole conversation "
           "begins; give that message weight 0");
    assert_string_equal(d.report.errors[0].code, "invalid_template");
    ds_close(&d);
    // Earlier answers lose what the last one has.
    ds_open(&d, "smollm", "<|im_start|>", "<|im_end|>",
            "{% for m in messages %}{% if m.role == 'assistant' and loop.last %}{{ '(thinks)' }}"
            "{% endif %}{{ m.content + eos_token }}{% endfor %}");
    refuse(&d, ERR_TEMPLATE, FOUR,
           "line 1: the chat template writes messages[1] in another way once more messages "
           "follow; give that message weight 0");
    expect(&d,
           "{\"messages\":[" MSG("user",
                                 "one") ",{\"role\":\"assistant\",\"content\":\"two\",\"weight\":0}"
                                        "," MSG("user", "three") "," MSG("assistant", "four") "]}",
           "one<|im_end|>two<|im_end|>three<|im_end|>[(thinks)four<|im_end|>]");
    ds_close(&d);
    // The prompt ends in another way than the turn begins.
    ds_open(&d, "smollm", "<|im_start|>", "<|im_end|>",
            "{% for m in messages %}{{ m.role + ': ' + m.content + eos_token }}{% endfor %}"
            "{% if add_generation_prompt %}{{ 'bot: ' }}{% endif %}");
    refuse(&d, ERR_TEMPLATE, FOUR,
           "line 1: the chat template's prompt for messages[1] is not how the whole conversation "
           "begins; give that message weight 0");
    ds_close(&d);
    ds_open(&d, "llama3", "<|begin_of_text|>", "<|eot_id|>",
            "{{ bos_token + bos_token }}{% for m in messages %}{{ m.content + eos_token }}"
            "{% endfor %}");
    refuse(&d, ERR_TEMPLATE, FOUR, "line 1: the chat template writes two BOS tokens");
    ds_close(&d);
    ds_open(&d, "smollm", "<|im_start|>", "<|im_end|>",
            "{{ raise_exception('Only poems, please.') }}");
    refuse(&d, ERR_TEMPLATE, FOUR, "line 1: chat template: Only poems, please.");
    ds_close(&d);
}

static void too_many_turns(void **state) {
    (void)state;
    struct ds d;
    ds_open_chatml(&d);
    d.opts.max_seq_len = 1 << 20;
    struct buf text;
    buf_init(&text, 0);
    buf_puts(&text, "{\"messages\":[" MSG("user", "a"));
    for (int i = 0; i < 4000; i++)
        buf_puts(&text, "," MSG("assistant", "b") "," MSG("user", "a"));
    buf_puts(&text, "]}");
    refuse(&d, ERR_INVALID, text.data,
           "line 1: it has too many turns to train on; split it or give some of them weight 0");
    // With a cut, only what is left of it is rendered turn by turn.
    d.opts.max_seq_len = 64;
    d.opts.truncation = FT_TRUNC_TRUNCATE;
    assert_int_equal(ds_build_text(&d, text.data), ERR_OK);
    assert_int_equal(d.report.truncated, 1);
    assert_int_equal(d.report.tokens, 64);
    buf_fini(&text);
    ds_close(&d);
}

static void variables(void **state) {
    (void)state;
    struct ds d;
    ds_open(&d, "smollm", "<|im_start|>", "<|im_end|>",
            "{{ strftime_now('%d %b %Y') + '|' + mood + '|' }}{% for m in messages %}"
            "{{ m.content + eos_token }}{% endfor %}");
    d.opts.template_vars = json_pack("{s:s}", "mood", "calm");
    expect(&d, CHAT(MSG("user", "a") "," MSG("assistant", "b")),
           "26 Jul 2024|calm|a<|im_end|>[b<|im_end|>]");
    json_decref(d.opts.template_vars);
    ds_close(&d);
}

// ---- ends

static void end_tokens(void **state) {
    (void)state;
    struct ds d;
    // The tokenizer's own end is another token than the one that the template writes.
    ds_open(&d, "smollm", "<|im_start|>", "<|endoftext|>", ds_chatml);
    const char *line = CHAT(MSG("user", "a") "," MSG("assistant", "b"));
    expect(&d, line,
           "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>\n<|endoftext|>]");
    const int32_t ends[] = {tokenizer_find(d.tokenizer, "<|im_end|>", 10)};
    assert_true(ends[0] > 0);
    d.opts.ends = ends;
    d.opts.n_ends = 1;
    expect(&d, line, "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n");
    d.opts.n_ends = 0;
    d.opts.eos = ends[0];
    expect(&d, line, "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n");
    d.opts.eos = -1;
    // Not appended behind a turn that is not trained on, nor where the user spoke last.
    expect(&d,
           "{\"messages\":[" MSG("user", "a") "," MSG("assistant", "b") "," MSG(
               "user", "c") ",{\"role\":\"assistant\",\"content\":\"d\",\"weight\":0}]}",
           "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>\n]"
           "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\nd<|im_end|>\n");
    ds_close(&d);
}

// ---- completions

static void completions(void **state) {
    (void)state;
    struct ds d;
    ds_open_chatml(&d);
    expect(&d, "{\"prompt\":\"2 + 2 =\",\"completion\":\" 4\"}", "2 + 2 =[ 4<|im_end|>]");
    assert_int_equal(d.report.kind, FT_COMPLETION);
    // Tokenised apart, as when served: "un" and "happy" do not become one word's tokens.
    expect(&d, "{\"prompt\":\"un\",\"completion\":\"happy\"}", "un[happy<|im_end|>]");
    // Special tokens are what serving takes a prompt's to be; one end is enough.
    expect(&d, "{\"prompt\":\"<|im_start|>user\\nhi<|im_end|>\\n\",\"completion\":\"x<|im_end|>\"}",
           "<|im_start|>user\nhi<|im_end|>\n[x<|im_end|>]");
    // Without anything before it, the first token cannot be learnt.
    assert_int_equal(ds_build_text(&d, "{\"prompt\":\"\",\"completion\":\"a\"}"), ERR_OK);
    expect_sample(&d, 0, "a[<|im_end|>]", NULL);
    ds_close(&d);
    ds_open(&d, "llama3", "<|begin_of_text|>", "<|end_of_text|>", NULL);
    expect(&d, "{\"prompt\":\"a\",\"completion\":\"b\"}", "<|begin_of_text|>a[b<|end_of_text|>]");
    expect(&d, "{\"prompt\":\"<|begin_of_text|>a\",\"completion\":\"b\"}",
           "<|begin_of_text|>a[b<|end_of_text|>]");
    expect(&d, "{\"prompt\":\"\",\"completion\":\"b\"}", "<|begin_of_text|>[b<|end_of_text|>]");
    ds_close(&d);
}

// ---- preference

static void preference(void **state) {
    (void)state;
    struct ds d;
    ds_open_chatml(&d);
    d.opts.preference = true;
    const char *line =
        "{\"input\":{\"messages\":[" MSG("user", "a") "," MSG("assistant", "b") "," MSG(
            "user", "c") "]},\"preferred_output\":[" MSG("assistant",
                                                         "yes") "],\"non_preferred_output\":"
                                                                "[" MSG("assistant",
                                                                        "no no no") "]}";
    assert_int_equal(ds_build_text(&d, line), ERR_OK);
#define SHARED                                                                                     \
    "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"                          \
    "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    expect_sample(&d, 0, SHARED "[yes<|im_end|>]\n", SHARED "[no no no<|im_end|>]\n");
    assert_int_equal(d.report.samples, 1);
    struct ft_dataset *set = ds_load(&d, "cache");
    assert_int_equal(ft_dataset_length(set, 0), d.report.tokens);
    assert_int_equal(ft_dataset_supervised(set, 0), d.report.supervised);
    assert_true(d.report.longest < d.report.tokens);
    ft_dataset_close(set);
    // The older names.
    char old[1024];
    snprintf(old, sizeof old,
             "{\"input\":{\"messages\":[" MSG("user", "a") "]},\"preferred_completion\":[" MSG(
                 "assistant", "x") "],\"non_preferred_completion\":[" MSG("assistant", "y") "]}");
    assert_int_equal(ds_build_text(&d, old), ERR_OK);
    // One sequence too long is the sample too long.
    d.opts.max_seq_len = (int32_t)d.report.longest - 1;
    d.opts.truncation = FT_TRUNC_DROP;
    assert_int_equal(ds_build_text(&d, old), ERR_INVALID);
    assert_int_equal(d.report.dropped, 1);
    ds_close(&d);
}

// ---- truncation

static void truncation(void **state) {
    (void)state;
    struct ds d;
    ds_open_chatml(&d);
    assert_int_equal(ds_build_text(&d, FOUR), ERR_OK);
    int32_t whole = (int32_t)d.report.tokens;
    const char *short_line = CHAT(MSG("user", "a") "," MSG("assistant", "b"));
    char text[1024];
    snprintf(text, sizeof text, "%s\n%s\n", short_line, FOUR);

    d.opts.max_seq_len = whole;
    assert_int_equal(ds_build_text(&d, text), ERR_OK);
    d.opts.max_seq_len = whole - 1;
    char want[160];
    snprintf(want, sizeof want, "line 2 has %d tokens, more than the %d of max_seq_length", whole,
             whole - 1);
    refuse(&d, ERR_INVALID, text, want);
    assert_string_equal(d.report.errors[0].code, "context_length_exceeded");

    d.opts.truncation = FT_TRUNC_DROP;
    assert_int_equal(ds_build_text(&d, text), ERR_OK);
    assert_int_equal(d.report.samples, 1);
    assert_int_equal(d.report.dropped, 1);
    assert_int_equal(d.report.emptied, 0);

    d.opts.truncation = FT_TRUNC_TRUNCATE;
    assert_int_equal(ds_build_text(&d, text), ERR_OK);
    assert_int_equal(d.report.samples, 2);
    assert_int_equal(d.report.truncated, 1);
    assert_int_equal(d.report.longest, whole - 1);
    expect_sample(&d, 1,
                  "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n[two<|im_end|>]\n"
                  "<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n[four<|im_end|>]",
                  NULL);
    d.opts.max_seq_len = whole - 2; // the end-of-sequence is cut: nothing says "stop here"
    assert_int_equal(ds_build_text(&d, text), ERR_OK);
    expect_sample(&d, 1,
                  "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n[two<|im_end|>]\n"
                  "<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n[four]",
                  NULL);
    // Cut before the answer: dropped, and counted.
    char late[600] = "{\"messages\":[{\"role\":\"user\",\"content\":\"";
    for (int i = 0; i < 200; i++)
        strcat(late, "z ");
    strcat(late, "\"}," MSG("assistant", "b") "]}\n");
    snprintf(text, sizeof text, "%s\n%s", short_line, late);
    assert_int_equal(ds_build_text(&d, text), ERR_OK);
    assert_int_equal(d.report.samples, 1);
    assert_int_equal(d.report.dropped, 1);
    assert_int_equal(d.report.emptied, 1);
    assert_int_equal(d.report.truncated, 0);
    ds_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns),      cmocka_unit_test(literal_text_is_not_special),
        cmocka_unit_test(weights),    cmocka_unit_test(refused_templates),
        cmocka_unit_test(variables),  cmocka_unit_test(too_many_turns),
        cmocka_unit_test(end_tokens), cmocka_unit_test(completions),
        cmocka_unit_test(preference), cmocka_unit_test(truncation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
