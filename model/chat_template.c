// SPDX-License-Identifier: Apache-2.0
#include "model/chat_template.h"
#include "base/mem.h"
#include "model/template/eval.h"
#include "model/template/parser.h"

enum {
    MAX_TEMPLATE = 1 << 20,      // bytes of a template's text
    MAX_TREE_MEMORY = 128 << 20, // bytes of its tree
    DEFAULT_STEPS = 2000000,
    DEFAULT_OUTPUT = 16 << 20,
    DEFAULT_MEMORY = 64 << 20,
};

enum err chat_template_parse(const char *text, size_t len, struct chat_template **out,
                             struct err_info *info) {
    *out = NULL;
    if (len > MAX_TEMPLATE)
        return err_set(info, ERR_LIMIT, NULL, "a chat template of %zu bytes; at most %d work", len,
                       MAX_TEMPLATE);
    struct chat_template *t = mem_zalloc(sizeof *t);
    if (!t)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    arena_init(&t->arena, MAX_TREE_MEMORY);
    t->text = arena_strndup(&t->arena, text, len);
    t->len = len;
    enum err e =
        t->text ? tpl_parse(t, text, len, info) : err_set(info, ERR_NOMEM, NULL, "out of memory");
    if (e) {
        chat_template_destroy(t);
        return e;
    }
    *out = t;
    return ERR_OK;
}

void chat_template_destroy(struct chat_template *t) {
    if (!t)
        return;
    arena_fini(&t->arena);
    mem_free(t);
}

const char *chat_template_text(const struct chat_template *t, size_t *len) {
    *len = t->len;
    return t->text;
}

enum err chat_template_digest(const struct chat_template *t, char hex[2 * SHA256_BYTES + 1],
                              struct err_info *info) {
    uint8_t sum[SHA256_BYTES];
    enum err e = sha256(t->text, t->len, sum);
    if (e)
        return err_set(info, e, NULL, "the chat template's digest: %s", err_text(e));
    hex_encode(sum, sizeof sum, hex);
    return ERR_OK;
}

void chat_output_fini(struct chat_output *o) {
    buf_fini(&o->text);
    mem_free(o->spans);
    *o = (struct chat_output){0};
}

static enum err render(struct tpl_ctx *c, const struct chat_template *t, json_t *vars) {
    enum tpl_jump jump;
    enum err e = hash_key_random(&c->key);
    if (e)
        return err_set(c->info, e, NULL, "no random key for hashing");
    e = tpl_vars_from_json(c, vars, &c->vars);
    if (!e)
        e = tpl_frame_new(c, t->scope, NULL, &c->frame);
    return e ? e : tpl_exec(c, &t->body, &jump);
}

enum err chat_template_render(const struct chat_template *t, const struct chat_render_opts *opts,
                              struct chat_output *out, struct err_info *info) {
    const struct chat_limits *l = &opts->limits;
    struct tpl_ctx c = {.now = opts->now,
                        .max_steps = l->max_steps ? l->max_steps : DEFAULT_STEPS,
                        .line = 1,
                        .info = info};
    struct tpl_sb b;
    *out = (struct chat_output){0};
    buf_init(&out->text, l->max_output ? l->max_output : DEFAULT_OUTPUT);
    arena_init(&c.arena, l->max_memory ? l->max_memory : DEFAULT_MEMORY);
    tpl_sb_init_output(&b, &c, out);
    c.out = &b;
    enum err e = render(&c, t, opts->vars);
    arena_fini(&c.arena);
    if (e)
        chat_output_fini(out);
    return e;
}
