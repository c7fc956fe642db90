// SPDX-License-Identifier: Apache-2.0
// The block's dot product in portable C. See dot.h.
#pragma once

enum { D_ROWS = 2 };

// 16 weight rows, columns 4t..4t+3: w holds four unsigned values a row.
V_FN void dot_rows(const uint8_t *w, const int shift, const int mask, const int8_t *x,
                   int32_t sums[V_LANES]) {
    for (int r = 0; r < V_LANES; r++) {
        int32_t sum = 0;
        for (int j = 0; j < 4; j++)
            sum += ((w[4 * r + j] >> shift) & mask) * x[j];
        sums[r] += sum;
    }
}

V_FN void dot_block(const int bits, const enum dot_start start, const int mr, const uint8_t *w,
                    const struct cpu_q8_block *x, int64_t ldx, v16i acc[][2]) {
    const size_t panel = bits == 8 ? 512 : 256;
    for (int i = 0; i < mr; i++) {
        const struct cpu_q8_block *xi = &x[i * ldx];
        for (int h = 0; h < 2; h++) {
            int32_t sums[V_LANES];
            for (int r = 0; r < V_LANES; r++)
                sums[r] = dot_start_value(start, xi);
            for (int t = 0; t < (bits == 8 ? 8 : 4); t++) {
                const uint8_t *v = w + (size_t)h * panel + t * 64;
                dot_rows(v, 0, bits == 8 ? 255 : 15, xi->q + 4 * t, sums);
                if (bits == 4)
                    dot_rows(v, 4, 15, xi->q + 16 + 4 * t, sums);
            }
            acc[i][h] = vi_load(sums);
        }
    }
}

V_FN v16i dot_four_columns(const int bits, const uint8_t *w, int32_t t, int32_t x) {
    int32_t sums[V_LANES] = {0};
    int8_t bytes[4];
    memcpy(bytes, &x, sizeof bytes);
    if (bits == 8)
        dot_rows(w + t * 64, 0, 255, bytes, sums);
    else
        dot_rows(w + t % 4 * 64, t & 4, 15, bytes, sums);
    return vi_load(sums);
}
