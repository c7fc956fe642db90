// SPDX-License-Identifier: Apache-2.0
// Token ids and masks against transformers (tests/golden/dataset/make.py), for templates that end a
// turn with a token, with tools, with BOS, and without any end. GRAFT_TEST_MODEL: SmolLM2's GGUF
// file, whose tokenizer is then tried too.
#include "model/chat_prompt.h"
#include "model/source.h"
#include "tests/finetune/dataset_support.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *text_of(const json_t *golden, const char *key) {
    return json_string_value(json_object_get(golden, key));
}

static char *jsonl(const json_t *cases) {
    struct buf text;
    buf_init(&text, 0);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        char *line = json_dumps(json_object_get(json_array_get(cases, i), "line"), 0);
        assert_non_null(line);
        buf_puts(&text, line);
        buf_putc(&text, '\n');
        free(line);
    }
    char *copy = strdup(text.data);
    buf_fini(&text);
    return copy;
}

static void check_cases(struct ds *d, const char *name, const json_t *golden) {
    const json_t *cases = json_object_get(golden, "cases");
    char *text = jsonl(cases);
    if (ds_build_text(d, text))
        fail_msg("%s: %s", name, d->info.message);
    free(text);
    struct ft_dataset *set = ds_load(d, "cache");
    struct ft_sample s = {0};
    int64_t tokens = 0, supervised = 0;
    assert_int_equal(ft_dataset_samples(set), json_array_size(cases));
    for (size_t i = 0; i < json_array_size(cases); i++) {
        if (ft_dataset_read(set, (int64_t)i, &s, &d->info))
            fail_msg("%s", d->info.message);
        ds_check_seq(name, i, s.n, s.ids, s.mask, json_array_get(cases, i));
        assert_int_equal(ft_dataset_line(set, (int64_t)i), i + 1);
        assert_int_equal(ft_dataset_length(set, (int64_t)i), s.n);
        int32_t targets = 0;
        for (int32_t t = 0; t < s.n; t++)
            targets += s.mask[t];
        assert_int_equal(ft_dataset_supervised(set, (int64_t)i), targets);
        tokens += s.n;
        supervised += targets;
    }
    assert_int_equal(d->report.tokens, tokens);
    assert_int_equal(d->report.supervised, supervised);
    ft_sample_fini(&s);
    ft_dataset_close(set);
}

// What serving sends for the conversation up to its last answer, by the path that serving takes.
static void prompt_ids(const struct ds *d, const json_t *line, struct tok_ids *out) {
    json_t *messages = NULL, *vars = NULL;
    struct err_info info;
    struct chat_output text;
    assert_int_equal(
        chat_messages_copy(json_object_get(line, "messages"), "messages", &messages, &info), 0);
    json_array_remove(messages, json_array_size(messages) - 1);
    struct chat_prompt p = {
        .tokenizer = d->tokenizer, .messages = messages, .add_generation_prompt = true};
    assert_int_equal(chat_prompt_vars(&p, &vars, &info), ERR_OK);
    struct chat_render_opts opts = {.vars = vars};
    const struct tok_encode_opts encode = {.parse_special = true};
    assert_int_equal(chat_template_render(d->chat_template, &opts, &text, &info), ERR_OK);
    assert_int_equal(chat_prompt_encode(d->tokenizer, &text, &encode, out, &info), ERR_OK);
    chat_output_fini(&text);
    json_decref(vars);
    json_decref(messages);
}

// The last answer's targets stand behind exactly the ids that serving would send.
static void check_prompts(struct ds *d, const char *name, const json_t *cases) {
    struct ft_dataset *set = ds_load(d, "cache");
    struct ft_sample s = {0};
    size_t checked = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *line = json_object_get(c, "line");
        const json_t *messages = json_object_get(line, "messages");
        const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
        if (strcmp(text_of(last, "role"), "assistant") != 0 || json_object_get(last, "weight") ||
            json_is_true(json_object_get(c, "straddle")))
            continue;
        struct tok_ids ids = {0};
        prompt_ids(d, line, &ids);
        assert_int_equal(ft_dataset_read(set, (int64_t)i, &s, &d->info), ERR_OK);
        assert_true((size_t)s.n > ids.n);
        if (memcmp(s.ids, ids.ids, ids.n * sizeof *ids.ids) != 0 || !s.mask[ids.n] ||
            s.mask[ids.n - 1])
            fail_msg("%s, case %zu: the prompt is not the one that is served", name, i);
        tok_ids_fini(&ids);
        checked++;
    }
    assert_true(checked > 15);
    ft_sample_fini(&s);
    ft_dataset_close(set);
}

static void check(const char *name, const char *tokenizer) {
    char path[128];
    struct ds d;
    snprintf(path, sizeof path, "tests/golden/dataset/%s.json", name);
    json_t *golden = ds_json(path);
    ds_open(&d, tokenizer, text_of(golden, "bos"), text_of(golden, "eos"),
            text_of(golden, "template"));
    check_cases(&d, name, golden);
    if (strcmp(name, "tools") != 0)
        check_prompts(&d, name, json_object_get(golden, "cases"));
    ds_close(&d);
    json_decref(golden);
}

static void chatml(void **state) {
    (void)state;
    check("chatml", "smollm");
}

static void tools(void **state) {
    (void)state;
    check("tools", "smollm");
}

static void llama3(void **state) {
    (void)state;
    check("llama3", "llama3");
}

static void without_an_end(void **state) {
    (void)state;
    check("plain", "smollm");
}

static void smollm2(void **state) {
    (void)state;
    const char *model = getenv("GRAFT_TEST_MODEL");
    if (!model || !model[0])
        skip();
    struct ds d;
    struct mdl_source *source;
    json_t *golden = ds_json("tests/golden/dataset/smollm2.json");
    ds_open(&d, "smollm", text_of(golden, "bos"), text_of(golden, "eos"),
            text_of(golden, "template"));
    tokenizer_destroy(d.tokenizer);
    d.tokenizer = NULL;
    if (mdl_source_open(model, &source, &d.info) ||
        mdl_source_tokenizer(source, &d.tokenizer, &d.info))
        fail_msg("%s", d.info.message);
    mdl_source_close(source);
    d.opts.tokenizer = d.tokenizer;
    check_cases(&d, "smollm2", golden);
    ds_close(&d);
    json_decref(golden);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chatml),         cmocka_unit_test(tools),   cmocka_unit_test(llama3),
        cmocka_unit_test(without_an_end), cmocka_unit_test(smollm2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
