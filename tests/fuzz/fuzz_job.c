// SPDX-License-Identifier: Apache-2.0
// The body of a fine-tuning job: whatever comes in, the fields are in range or an error names one;
// and what is stored reads as the same job.
#include "base/mem.h"
#include "finetune/job_spec.h"
#include "gateway/api_json.h"
#include <stdlib.h>
#include <string.h>

static void require(int ok) {
    if (!ok)
        abort();
}

static void check(const struct ft_job_spec *s) {
    require(s->model && s->training_file && s->lr_scheduler && s->truncation);
    require(s->seed >= 0 && s->seed <= INT32_MAX);
    require(s->batch_size >= 0 && s->batch_size <= 256 && s->n_epochs >= 0 && s->n_epochs <= 50);
    require(s->learning_rate_multiplier >= 0 && s->beta >= 0 && s->beta <= 2);
    require(s->lora_r >= 1 && s->lora_r <= 256 && s->lora_alpha > 0 && s->lora_targets);
    require(s->lora_dropout >= 0 && s->lora_dropout < 1 && s->learning_rate >= 0);
    require(s->max_seq_length >= 0 && s->max_seq_length <= 1 << 20);
    require(!s->suffix || (s->suffix[0] && !strchr(s->suffix, ':') && strlen(s->suffix) <= 64));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct err_info info = {0};
    struct ft_job_spec s, again;
    json_t *body = NULL, *stored;
    char *text;
    enum err e = api_json_parse((const char *)data, size, &body, &info);
    if (!e)
        e = ft_job_spec_read(body, &s, &info);
    require(!e || info.message[0]);
    if (!e) {
        check(&s);
        if (!ft_job_spec_store(body, 5, &text, &info)) {
            require((stored = json_loads(text, 0, NULL)) != NULL);
            require(!ft_job_spec_read(stored, &again, &info));
            require(again.seed == 5 && again.dpo == s.dpo && again.n_epochs == s.n_epochs &&
                    again.lora_targets == s.lora_targets && !strcmp(again.model, s.model));
            json_decref(stored);
            mem_free(text);
        }
    }
    json_decref(body);
    return 0;
}
