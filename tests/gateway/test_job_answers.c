// SPDX-License-Identifier: Apache-2.0
// Prompts of a job's evaluation: their tokens are those of a request that asks the same, what
// cannot be asked is refused by its entry, answers are what the engine generates greedily, each
// allocation may fail.
#include "base/mem.h"
#include "gateway/job_answers.h"
#include "model/source.h"
#include "tests/model/model_fixture.h"
#include "tests/serving/greedy_request.h"
#include "tests/serving/walk_engine.h"
#include "tests/support/assert_ok.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 64, NEW = 6 };

static const char template_text[] =
    "{{ strftime_now('%Y') }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content "
    "}}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

struct jx {
    struct fx fx;
    struct tokenizer *tokenizer;
    struct chat_template *template;
    struct job_prompt_opts o;
    struct eng *engine;
    struct err_info info;
};

static void jx_open(struct jx *x) {
    static const char model[] = "tests/golden/models/q8_0.gguf";
    struct mdl_source *src;
    memset(x, 0, sizeof *x);
    fx_open(&x->fx, model, &(struct fx_options){0});
    assert_ok(mdl_source_open(model, &src, &x->info), &x->info);
    assert_ok(mdl_source_tokenizer(src, &x->tokenizer, &x->info), &x->info);
    mdl_source_close(src);
    assert_ok(chat_template_parse(template_text, sizeof template_text - 1, &x->template, &x->info),
              &x->info);
    x->o = (struct job_prompt_opts){.tokenizer = x->tokenizer,
                                    .chat_template = x->template,
                                    .now = 1700000000,
                                    .max_prompt = CONTEXT};
    struct eng_config cfg = walk_config(&x->fx, x->fx.device, 64);
    cfg.max_num_seqs = 8;
    cfg.max_num_batched_tokens = 24;
    cfg.max_model_len = CONTEXT;
    cfg.max_queue = 2;
    assert_ok(eng_create(&cfg, &x->engine, &x->info), &x->info);
    assert_ok(eng_start(x->engine, &x->info), &x->info);
}

static void jx_close(struct jx *x) {
    eng_stop(x->engine);
    eng_destroy(x->engine);
    chat_template_destroy(x->template);
    tokenizer_destroy(x->tokenizer);
    fx_close(&x->fx);
}

static enum err read(struct jx *x, const char *json, json_t **doc, struct job_prompts *p) {
    *doc = json_loads(json, 0, NULL);
    assert_non_null(*doc);
    return job_prompts_read(*doc, "required", &x->o, p, &x->info);
}

static void assert_text(const struct jx *x, const struct job_prompt *p, const char *text) {
    struct buf b;
    buf_init(&b, 0);
    assert_int_equal(tokenizer_decode(x->tokenizer, p->ids.ids, p->ids.n, false, &b), ERR_OK);
    buf_putc(&b, '\0');
    assert_string_equal(b.data, text);
    buf_fini(&b);
}

static void prompts_are_rendered_as_requests_are(void **state) {
    (void)state;
    static const char items[] =
        "[\"ab\", {\"prompt\": \"ab\", \"output\": \"x\"},"
        " {\"messages\": [{\"role\": \"system\", \"content\": \"s\"},"
        "  {\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"<|im_end|>\"}]}]}]";
    struct jx x;
    struct job_prompts p;
    json_t *doc;
    jx_open(&x);
    assert_ok(read(&x, items, &doc, &p), &x.info);
    assert_int_equal(p.n, 3);
    for (int i = 0; i < 2; i++)
        assert_text(&x, &p.list[i], "2023<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n");
    assert_text(&x, &p.list[2],
                "2023<|im_start|>system\ns<|im_end|>\n<|im_start|>user\n<|im_end|><|im_end|>\n"
                "<|im_start|>assistant\n");
    // What a message says stays text.
    int32_t end = tokenizer_find(x.tokenizer, "<|im_end|>", 10);
    int n = 0;
    for (size_t i = 0; i < p.list[2].ids.n; i++)
        n += p.list[2].ids.ids[i] == end;
    assert_int_equal(n, 2);
    job_prompts_fini(&p);
    json_decref(doc);
    x.o.completion = true;
    assert_ok(read(&x, "[\"ab\"]", &doc, &p), &x.info);
    assert_text(&x, &p.list[0], "ab");
    job_prompts_fini(&p);
    json_decref(doc);
    assert_ok(job_prompts_read(NULL, "required", &x.o, &p, &x.info), &x.info);
    assert_int_equal(p.n, 0);
    jx_close(&x);
}

static void what_cannot_be_asked_is_refused(void **state) {
    (void)state;
    struct jx x;
    struct job_prompts p;
    json_t *doc;
    char longest[600], longer[600];
    jx_open(&x);
    snprintf(longer, sizeof longer, "[\"a\", {\"prompt\": \"%0400d\"}]", 7);
    snprintf(longest, sizeof longest, "[\"a\", \"%0400d\"]", 7);
    static const char first[] = "graft.evaluation.required[1].messages[0]";
    const struct {
        const char *json, *param;
        enum err e;
    } bad[] = {
        {longest, "graft.evaluation.required[1]", ERR_CONTEXT},
        {longer, "graft.evaluation.required[1].prompt", ERR_CONTEXT},
        {"[\"a\", {\"messages\": [{\"role\": \"user\"}]}]",
         "graft.evaluation.required[1].messages[0].content", ERR_INVALID},
        {"[\"a\", {\"messages\": [{\"role\": \"king\", \"content\": \"a\"}]}]", first, ERR_INVALID},
        {"[\"a\", {\"messages\": []}]", "graft.evaluation.required[1].messages", ERR_INVALID}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(read(&x, bad[i].json, &doc, &p), bad[i].e);
        if (!strstr(x.info.message, bad[i].param))
            fail_msg("%s", x.info.message);
        assert_string_equal(x.info.param, bad[i].param);
        assert_null(p.list);
        json_decref(doc);
    }
    x.o.chat_template = NULL;
    assert_int_equal(read(&x, "[\"a\"]", &doc, &p), ERR_TEMPLATE);
    json_decref(doc);
    jx_close(&x);
}

// The ids that a plain request of one's own gets; their text, without special ones.
static void answer_of(const struct jx *x, const struct job_prompt *p, struct buf *out) {
    struct eng_request r = greedy_request(p->ids.ids, (int32_t)p->ids.n, NEW);
    r.ignore_eos = false;
    struct eng_stream *s;
    struct eng_event ev = {.type = ENG_EVENT_PROMPT};
    struct err_info info = {0};
    assert_ok(eng_submit(x->engine, &r, &s, &info), &info);
    while (ev.type != ENG_EVENT_END)
        if (eng_stream_next(s, &ev) && ev.type == ENG_EVENT_TOKEN &&
            !tokenizer_is_special(x->tokenizer, ev.token)) {
            size_t n;
            const char *bytes = tokenizer_token_bytes(x->tokenizer, ev.token, &n);
            buf_append(out, bytes, n);
        }
    eng_stream_release(s);
}

static void answers_are_the_engines(void **state) {
    (void)state;
    static const char items[] = "[\"a\", \"bc\", \"d e\", \"5\", \"Zz\", \"a\", \"!?\", \"k k k\"]";
    struct jx x;
    struct job_prompts p;
    json_t *doc;
    jx_open(&x);
    const struct ask a = {.engine = x.engine};
    assert_ok(read(&x, items, &doc, &p), &x.info);
    for (int round = 0; round < 2; round++) // again, over the first answers
        assert_ok(job_prompts_ask(&p, &a, x.tokenizer, NEW, &x.info), &x.info);
    int compared = 0;
    for (size_t i = 0; i < p.n; i++) {
        struct buf b;
        buf_init(&b, 0);
        answer_of(&x, &p.list[i], &b);
        // The model may well say NUL; bytes that are no UTF-8 become U+FFFD.
        if (!memmem(p.list[i].answer, p.list[i].answer_len, "\xef\xbf\xbd", 3)) {
            assert_int_equal(b.len, p.list[i].answer_len);
            assert_memory_equal(b.data, p.list[i].answer, b.len);
            compared++;
        }
        buf_fini(&b);
    }
    assert_true(compared > 0);
    assert_int_equal(p.list[0].answer_len, p.list[5].answer_len);
    assert_memory_equal(p.list[0].answer, p.list[5].answer, p.list[0].answer_len);
    _Atomic bool stop = true;
    const struct ask stopped = {.engine = x.engine, .stop = &stop};
    assert_int_equal(job_prompts_ask(&p, &stopped, x.tokenizer, NEW, &x.info), ERR_CANCELLED);
    eng_stop(x.engine);
    assert_int_equal(job_prompts_ask(&p, &a, x.tokenizer, NEW, &x.info), ERR_ENGINE_DEAD);
    job_prompts_fini(&p);
    json_decref(doc);
    jx_close(&x);
}

static void failing_allocations(void **state) {
    (void)state;
    static const char items[] =
        "[\"a\", {\"messages\": [{\"role\": \"user\", \"content\": \"b\"}]}]";
    struct jx x;
    struct job_prompts p;
    jx_open(&x);
    json_t *doc = json_loads(items, 0, NULL);
    json_set_alloc_funcs(mem_alloc, mem_free);
    int64_t live = mem_live_blocks();
    mem_fail_after(0, false);
    assert_ok(job_prompts_read(doc, "required", &x.o, &p, &x.info), &x.info);
    uint64_t n = mem_fail_count();
    job_prompts_fini(&p);
    assert_true(n > 50);
    for (uint64_t i = 1; i <= n; i++) {
        mem_fail_after(i, false);
        enum err e = job_prompts_read(doc, "required", &x.o, &p, &x.info);
        mem_fail_after(0, false);
        if (e != ERR_NOMEM)
            fail_msg("allocation %d: %s: %s", (int)i, err_name(e), x.info.message);
        assert_int_equal(mem_live_blocks(), live);
    }
    json_set_alloc_funcs(malloc, free);
    json_decref(doc);
    jx_close(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_are_rendered_as_requests_are),
        cmocka_unit_test(what_cannot_be_asked_is_refused),
        cmocka_unit_test(answers_are_the_engines),
        cmocka_unit_test(failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
