// SPDX-License-Identifier: Apache-2.0
#include "gateway/train_options.h"
#include <stddef.h>

#define AT(field) offsetof(struct train_options, field)
#define HEADING(text)                                                                              \
    { .kind = OPT_HEADING, .help = text }

static const struct opt_def defs[] = {
    HEADING("Model and data"),
    {OPT_STRING, "model", AT(model), "PATH", NULL, 0, 0, NULL,
     "GGUF file or Hugging Face folder of the base model. Required.", false},
    {OPT_STRING, "data", AT(data), "PATH", NULL, 0, 0, NULL,
     "JSONL file with a chat, completion or preference sample in each line. Required, but for "
     "--resume.",
     false},
    {OPT_STRING, "validation", AT(validation), "PATH", NULL, 0, 0, NULL,
     "JSONL file to evaluate on during training and at its end.", false},
    {OPT_STRING, "output", AT(output), "DIR", NULL, 0, 0, NULL,
     "Folder for the adapter, checkpoints, metrics.csv and loss.svg. Required, but where --resume "
     "names a run's folder and goes on in it.",
     false},
    {OPT_OPTIONAL, "resume", AT(resume), "DIR", NULL, 0, 0, NULL,
     "Go on from the newest whole checkpoint, with the very same bits: in --output, or from DIR, "
     "which "
     "is a run's folder or a set that graft export has written. Data and parameters come from "
     "there; "
     "--model must be given.",
     false},
    {OPT_STRING, "chat-template", AT(chat_template), "PATH", NULL, 0, 0, NULL,
     "Jinja file to use instead of the model's own chat template.", false},
    {OPT_STRING, "cache-dir", AT(cache_dir), "DIR", NULL, 0, 0, NULL,
     "Folder that remembers model digests. Default: $XDG_CACHE_HOME/graft or ~/.cache/graft.",
     false},
    HEADING("Adapter"),
    {OPT_LIST, "target-modules", AT(targets), "NAME", NULL, 0, 0, NULL,
     "Linear layers to train: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, or "
     "all-linear for all of them, which is the default.",
     false},
    {OPT_INT, "lora-r", AT(r), "N", "16", 1, 256, NULL, "Rank.", false},
    {OPT_FLOAT, "lora-alpha", AT(alpha), "X", "32", 1e-6, 1e6, NULL,
     "The adapter's output is scaled by alpha / r.", false},
    {OPT_FLOAT, "lora-dropout", AT(dropout), "X", "0", 0, 0.95, NULL,
     "Share of the adapter's inputs that is left out in training.", false},
    {OPT_FLAG, "use-rslora", AT(rslora), NULL, "false", 0, 0, NULL,
     "Scale by alpha / sqrt(r) instead.", false},
    HEADING("Training"),
    {OPT_ENUM, "method", AT(method), NULL, "supervised", 0, 0, "supervised|dpo",
     "Supervised fine-tuning, or direct preference optimization.", false},
    {OPT_INT, "epochs", AT(epochs), "N", "3", 1, 1000, NULL, "Times each sample is seen.", false},
    {OPT_INT, "batch-size", AT(batch_size), "N", "8", 1, 2000, NULL,
     "Samples of an optimizer step, however they share rows.", false},
    {OPT_FLOAT, "learning-rate", AT(lr), "X", "2e-4", 0, 10, NULL, "Largest learning rate.", false},
    {OPT_ENUM, "lr-scheduler", AT(schedule), NULL, "cosine", 0, 0, "constant|linear|cosine",
     "How the learning rate falls after the warm-up.", false},
    {OPT_FLOAT, "warmup-ratio", AT(warmup_ratio), "X", "0.03", 0, 1, NULL,
     "Share of the steps in which the learning rate rises.", false},
    {OPT_FLOAT, "weight-decay", AT(weight_decay), "X", "0", 0, 1, NULL, "Of AdamW.", false},
    {OPT_FLOAT, "adam-beta1", AT(beta1), "X", "0.9", 0, 0.99999, NULL, "Of AdamW.", false},
    {OPT_FLOAT, "adam-beta2", AT(beta2), "X", "0.999", 0, 0.9999999, NULL, "Of AdamW.", false},
    {OPT_FLOAT, "adam-epsilon", AT(eps), "X", "1e-8", 1e-20, 1, NULL, "Of AdamW.", false},
    {OPT_FLOAT, "max-grad-norm", AT(max_grad_norm), "X", "1", 0, 1e9, NULL,
     "Longer gradients are shortened to this norm. 0: never.", false},
    {OPT_FLOAT, "dpo-beta", AT(beta_dpo), "X", "0.1", 1e-6, 2, NULL,
     "How strongly DPO holds to the base model.", false},
    {OPT_INT, "max-seq-length", AT(max_seq_length), "N", "0", 0, 1 << 20, NULL,
     "Most tokens of a sample, and of a row. 0: 2048, or the model's context if that is less.",
     false},
    {OPT_ENUM, "truncation", AT(truncation), NULL, "error", 0, 0, "error|truncate|drop",
     "What becomes of longer samples.", false},
    {OPT_FLAG, "packing", AT(packing), NULL, "true", 0, 0, NULL,
     "Samples of a step share rows; none sees another.", false},
    {OPT_INT, "seed", AT(seed), "N", "42", 0, 2147483647, NULL,
     "Of the adapter's first values, the order of samples, and dropout.", false},
    HEADING("Checkpoints and evaluation"),
    {OPT_INT, "save-steps", AT(save_steps), "N", "0", 0, 1 << 30, NULL,
     "A checkpoint every so many steps. 0: at the end, and when stopped.", false},
    {OPT_INT, "save-total-limit", AT(save_limit), "N", "2", 0, 1 << 20, NULL,
     "Checkpoints that are kept. 0: all.", false},
    {OPT_INT, "eval-steps", AT(eval_steps), "N", "0", 0, 1 << 30, NULL,
     "Evaluate every so many steps. 0: at the end.", false},
    {OPT_INT, "eval-samples", AT(eval_samples), "N", "0", 0, 1 << 30, NULL,
     "Samples of the validation file that --eval-steps looks at. 0: all.", false},
    HEADING("Machine"),
    {OPT_INT, "threads", AT(threads), "N", "0", 0, 256, NULL,
     "Compute threads. 0: the CPUs that affinity and the cgroup allow.", false},
    {OPT_ENUM, "isa", AT(isa), NULL, "auto", 0, 0, "auto|avx512bf16|avx512|avx2|portable",
     "Instruction set of the CPU kernels.", false},
    {OPT_SIZE, "activation-memory", AT(activation_bytes), "SIZE", "0", 0, 0x1p50, NULL,
     "Memory for activations; what does not fit is computed again. 0: from the memory limit.",
     false},
};

const struct opt_table train_option_table = {
    .command = "graft train",
    .usage = "graft train --model MODEL --data FILE --output DIR [options]",
    .summary = "Trains a LoRA adapter on the base model as it is stored, without a server.",
    .defs = defs,
    .n = sizeof defs / sizeof *defs,
    .max_positional = 0,
};
