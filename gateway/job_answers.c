// SPDX-License-Identifier: Apache-2.0
#include "gateway/job_answers.h"
#include "base/mem.h"
#include "model/chat_prompt.h"
#include "serving/assemble.h"
#include <stdio.h>
#include <string.h>

static enum err no_memory(struct err_info *info) {
    return err_set(info, ERR_NOMEM, NULL, "out of memory for the prompts of the evaluation");
}

// ---- prompts

static enum err render(const json_t *messages, const char *field, const struct job_prompt_opts *o,
                       struct tok_ids *ids, struct err_info *info) {
    json_t *list = NULL, *vars = NULL;
    struct chat_output text = {0};
    const struct tok_encode_opts encode = {.parse_special = true, .max_ids = (size_t)o->max_prompt};
    if (!o->chat_template)
        return err_set(info, ERR_TEMPLATE, field, "%s: the model has no chat template", field);
    enum err e = chat_messages_copy(messages, field, &list, info);
    const struct chat_prompt p = {
        .tokenizer = o->tokenizer, .messages = list, .add_generation_prompt = true};
    if (!e)
        e = chat_prompt_vars(&p, &vars, info);
    const struct chat_render_opts opts = {.vars = vars, .now = o->now};
    if (!e)
        e = chat_template_render(o->chat_template, &opts, &text, info);
    if (!e)
        e = chat_prompt_encode(o->tokenizer, &text, &encode, ids, info);
    chat_output_fini(&text);
    json_decref(vars);
    json_decref(list);
    return e;
}

static enum err read_asked(const json_t *item, const char *where, const struct job_prompt_opts *o,
                           struct tok_ids *ids, struct err_info *info) {
    const json_t *prompt = json_is_string(item) ? item : json_object_get(item, "prompt");
    const char *text = json_string_value(prompt);
    const struct tok_encode_opts encode = {
        .add_special = true, .parse_special = true, .max_ids = (size_t)o->max_prompt};
    json_t *messages = NULL;
    enum err e;
    if (text && o->completion) {
        e = tokenizer_encode(o->tokenizer, text, json_string_length(prompt), &encode, ids, info);
    } else if (text) {
        messages = json_pack("[{s:s,s:s}]", "role", "user", "content", text);
        e = messages ? render(messages, where, o, ids, info) : no_memory(info);
    } else {
        e = render(json_object_get(item, "messages"), where, o, ids, info);
    }
    json_decref(messages);
    return e;
}

static enum err read_one(const json_t *item, const char *entry, const struct job_prompt_opts *o,
                         struct tok_ids *ids, struct err_info *info) {
    char field[80];
    const char *below = json_is_string(item)                              ? ""
                        : json_is_string(json_object_get(item, "prompt")) ? ".prompt"
                                                                          : ".messages";
    snprintf(field, sizeof field, "%s%s", entry, below);
    enum err e = read_asked(item, field, o, ids, info);
    if (e == ERR_CONTEXT || (!e && ids->n >= (size_t)o->max_prompt))
        return err_set(info, ERR_CONTEXT, field,
                       "%s has more tokens than the model takes: %d, answer and all", field,
                       (int)o->max_prompt);
    if (!e && !ids->n)
        return err_set(info, ERR_INVALID, field, "%s must hold at least one token", field);
    if (e && e != ERR_NOMEM && !strstr(info->message, field))
        err_prefix(info, "%s", field);
    if (e && e != ERR_NOMEM && !info->param[0])
        snprintf(info->param, sizeof info->param, "%s", field);
    return e;
}

enum err job_prompts_read(const json_t *items, const char *field, const struct job_prompt_opts *o,
                          struct job_prompts *out, struct err_info *info) {
    size_t n = json_array_size(items);
    enum err e = ERR_OK;
    *out = (struct job_prompts){0};
    if (!n)
        return ERR_OK;
    out->list = mem_calloc(n, sizeof *out->list);
    if (!out->list)
        return no_memory(info);
    out->n = n;
    for (size_t i = 0; i < n && !e; i++) {
        char path[64];
        snprintf(path, sizeof path, "graft.evaluation.%s[%zu]", field, i);
        out->list[i].item = json_array_get(items, i);
        e = read_one(out->list[i].item, path, o, &out->list[i].ids, info);
    }
    if (e)
        job_prompts_fini(out);
    return e;
}

void job_prompts_fini(struct job_prompts *p) {
    for (size_t i = 0; i < p->n; i++) {
        tok_ids_fini(&p->list[i].ids);
        mem_free(p->list[i].answer);
    }
    mem_free(p->list);
    *p = (struct job_prompts){0};
}

// ---- answers

// As a request that asks for text gets it: special tokens are left out, what is no UTF-8 becomes
// U+FFFD.
static enum err to_text(const struct tokenizer *t, const struct ask_item *it,
                        struct job_prompt *p) {
    static const struct asm_config config = {0};
    struct assembler a;
    struct buf text;
    enum err e = ERR_OK;
    buf_init(&text, 0);
    assembler_init(&a, &config);
    for (int32_t i = 0; i < it->n_answer && !e; i++) {
        size_t len;
        const char *bytes = tokenizer_token_bytes(t, it->answer[i], &len);
        if (!tokenizer_is_special(t, it->answer[i]))
            e = assembler_push(&a, bytes, len, &text);
    }
    if (!e)
        e = assembler_end(&a, &text);
    size_t whole;
    p->answer_len = text.len;
    buf_putc(&text, '\0');
    if (!e)
        e = buf_err(&text);
    mem_free(p->answer);
    p->answer = e ? NULL : buf_take(&text, &whole);
    assembler_fini(&a);
    buf_fini(&text);
    return e;
}

enum err job_prompts_ask(struct job_prompts *p, const struct ask *a, const struct tokenizer *t,
                         int32_t max_tokens, struct err_info *info) {
    if (!p->n)
        return ERR_OK;
    struct ask_item *items = mem_calloc(p->n, sizeof *items);
    int32_t *ids = mem_calloc(p->n * (size_t)max_tokens, sizeof *ids);
    enum err e = items && ids ? ERR_OK : no_memory(info);
    for (size_t i = 0; i < p->n && !e; i++)
        items[i] = (struct ask_item){.ids = p->list[i].ids.ids,
                                     .n = (int32_t)p->list[i].ids.n,
                                     .max_tokens = max_tokens,
                                     .answer = ids + i * (size_t)max_tokens};
    if (!e)
        e = ask_all(a, items, p->n, info);
    for (size_t i = 0; i < p->n && !e; i++)
        if ((e = to_text(t, &items[i], &p->list[i])))
            no_memory(info);
    mem_free(items);
    mem_free(ids);
    return e;
}
