// SPDX-License-Identifier: Apache-2.0
#include "tests/finetune/dataset_support.h"
#include "tests/support/assert_ok.h"
#include "tests/support/disk.h"
#include "tests/support/temp_folder.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char ds_chatml[] =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + "
    "'\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

void ds_open(struct ds *d, const char *tokenizer, const char *bos, const char *eos,
             const char *template_text) {
    char path[128], config[128];
    size_t len;
    *d = (struct ds){0};
    temp_folder(d->folder, "dataset");
    snprintf(path, sizeof path, "tests/golden/tokenizer/%s.json", tokenizer);
    snprintf(config, sizeof config, "{\"bos_token\":\"%s\",\"eos_token\":\"%s\"}", bos, eos);
    char *json = disk_read(path, &len);
    assert_ok(tokenizer_from_hf(json, len, config, strlen(config), &d->tokenizer, &d->info),
              &d->info);
    free(json);
    if (template_text)
        assert_ok(
            chat_template_parse(template_text, strlen(template_text), &d->chat_template, &d->info),
            &d->info);
    d->opts = (struct ft_dataset_opts){
        .tokenizer = d->tokenizer,
        .chat_template = d->chat_template,
        .eos = -1,
        .now = 1721952000,
        .max_seq_len = 4096,
    };
}

void ds_open_chatml(struct ds *d) {
    ds_open(d, "smollm", "<|im_start|>", "<|im_end|>", ds_chatml);
}

void ds_close(struct ds *d) {
    temp_remove(d->folder);
    chat_template_destroy(d->chat_template);
    tokenizer_destroy(d->tokenizer);
}

const char *ds_path(const struct ds *d, const char *name) {
    static char path[3][400];
    static int at;
    at = (at + 1) % 3;
    snprintf(path[at], sizeof path[at], "%s/%s", d->folder, name);
    return path[at];
}

void ds_write(const struct ds *d, const char *name, const void *p, size_t n) {
    FILE *f = fopen(ds_path(d, name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

enum err ds_build(struct ds *d, const void *text, size_t n) {
    ds_write(d, "data.jsonl", text, n);
    d->info = (struct err_info){0};
    return ft_dataset_build(ds_path(d, "data.jsonl"), ds_path(d, "cache"), &d->opts, &d->report,
                            &d->info);
}

enum err ds_build_text(struct ds *d, const char *text) {
    return ds_build(d, text, strlen(text));
}

struct ft_dataset *ds_load(struct ds *d, const char *name) {
    struct ft_dataset *out = NULL;
    assert_ok(ft_dataset_open(ds_path(d, name), &out, &d->info), &d->info);
    return out;
}

json_t *ds_json(const char *path) {
    json_error_t e;
    json_t *v = json_load_file(path, JSON_ALLOW_NUL, &e);
    if (!v)
        fail_msg("%s: %s", path, e.text);
    return v;
}

void ds_check_seq(const char *name, size_t i, int32_t n, const int32_t *ids, const uint8_t *mask,
                  const json_t *want) {
    const json_t *w = json_object_get(want, "ids");
    const char *m = json_string_value(json_object_get(want, "mask"));
    if ((size_t)n != json_array_size(w))
        fail_msg("%s, case %zu: %d tokens, not %zu", name, i, n, json_array_size(w));
    for (int32_t t = 0; t < n; t++) {
        long long id = json_integer_value(json_array_get(w, (size_t)t));
        if (ids[t] != id || mask[t] != (m[t] == '1'))
            fail_msg("%s, case %zu, token %d: %d (mask %d), not %lld (mask %c)", name, i, t, ids[t],
                     mask[t], id, m[t]);
    }
}
