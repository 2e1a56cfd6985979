/* The packed form, element by element, from every source type, at odd addresses, in pieces. */
#include "harness/kernels/check.h"

#include "kernels/pack.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const cot_dtype sources[] = {COT_F32, COT_BF16, COT_F16};
static const cot_format targets[] = {COT_FORMAT_FP32, COT_FORMAT_BF16};

static float packed(const void *b, cot_format format, int64_t panel_bytes, int64_t k, int64_t n)
{
    const char *panel = (const char *)b + n / 32 * panel_bytes;
    return format == COT_FORMAT_FP32 ? get_element(panel, COT_F32, k * 32 + n % 32)
                                     : get_element(panel, COT_BF16, (k / 2) * 64 + n % 32 * 2 + k % 2);
}

/* b[k][n] is x[n][k] (columns) or x[k][n] (rows), rounded to the type; all the rest of the panels is zero. */
static void expect(const void *b, cot_format format, int64_t k, int64_t n, const float *x, int64_t k_step,
                   int64_t n_step)
{
    for (int64_t j = 0; j < cot_panels(n) * 32; j++)
        for (int64_t i = 0; i < k + k % 2; i++) {
            float value = i < k && j < n ? x[i * k_step + j * n_step] : 0, found;
            if (format == COT_FORMAT_BF16) value = cot_bf16_to_f32(cot_f32_to_bf16(value));
            found = packed(b, format, cot_panel_bytes(format, k), i, j);
            CHECK(memcmp(&found, &value, 4) == 0, "%s k %lld of %lld, n %lld of %lld: %g, expected %g",
                  cot_formats[format].name, (long long)i, (long long)k, (long long)j, (long long)n,
                  (double)found, (double)value);
        }
}

/* `lines` rows of `width` random elements, the first at an odd address and the last ending at a guard. `x`
 * gets their values, `width` apart. */
static guarded odd_source(check_draws *draws, cot_dtype type, int64_t lines, int64_t width, int64_t stride,
                          float *x)
{
    int64_t size = (int64_t)cot_dtype_bytes(type);
    guarded s = guard(((lines - 1) * stride + width) * size + 1);
    for (int64_t r = 0; r < lines; r++)
        for (int64_t i = 0; i < width; i++) {
            float value = random_value(draws, 3), exact[1];
            put_element(exact, type, 0, value);
            memcpy((char *)s.data + 1 + (r * stride + i) * size, exact, (size_t)size);
            x[r * width + i] = get_element(exact, type, 0);
        }
    memmove(s.data, (char *)s.data + 1, (size_t)(((lines - 1) * stride + width) * size));
    return s;
}

static void columns(check_draws *draws, int64_t k, int64_t n)
{
    for (int s = 0; s < 3; s++)
        for (int t = 0; t < 2; t++) {
            int64_t stride = k + random_between(draws, 0, 3), size = (int64_t)cot_dtype_bytes(sources[s]);
            float *x = malloc((size_t)(n * k) * 4);
            guarded source = odd_source(draws, sources[s], n, k, stride, x);
            guarded b = guard(cot_packed_bytes(targets[t], k, n));
            for (int64_t n0 = 0, count; n0 < n; n0 += count) {
                count = random_between(draws, 1, n - n0);
                cot_pack_columns(b.data, targets[t], k, n, n0, count,
                                 (char *)source.data + n0 * stride * size, sources[s], stride);
            }
            expect(b.data, targets[t], k, n, x, 1, k);
            unguard(b);
            unguard(source);
            free(x);
        }
}

static void rows(check_draws *draws, int64_t k, int64_t n)
{
    for (int s = 0; s < 3; s++)
        for (int t = 0; t < 2; t++) {
            int64_t stride = n + random_between(draws, 0, 3), size = (int64_t)cot_dtype_bytes(sources[s]);
            float *x = malloc((size_t)(n * k) * 4);
            guarded source = odd_source(draws, sources[s], k, n, stride, x);
            guarded b = guard(cot_packed_bytes(targets[t], k, n));
            for (int64_t k0 = 0, count; k0 < k; k0 += count) {
                count = 2 * random_between(draws, 1, (k - k0 + 1) / 2);
                if (k0 + count > k) count = k - k0;
                cot_pack_rows(b.data, targets[t], k, n, k0, count, (char *)source.data + k0 * stride * size,
                              sources[s], stride);
            }
            expect(b.data, targets[t], k, n, x, n, 1);
            unguard(b);
            unguard(source);
            free(x);
        }
}

/* A page filled a row or a column at a time, in any order, is what packing it whole would be. */
static void page(check_draws *draws, int64_t k, int64_t n, bool by_column)
{
    for (int t = 0; t < 2; t++) {
        const int64_t panel = cot_panel_bytes(targets[t], k), stride = panel + 128;
        float *x = malloc((size_t)(n * k) * 4);
        for (int64_t i = 0; i < n * k; i++) x[i] = random_value(draws, 1);
        guarded b = guard((cot_panels(n) - 1) * stride + panel);
        for (int64_t p = 0; p < cot_panels(n); p++) memset((char *)b.data + p * stride, 0, (size_t)panel);
        int64_t lines = by_column ? n : k, width = by_column ? k : n;
        for (int64_t i = lines; i-- > 0;) {
            if (by_column)
                cot_pack_column(b.data, targets[t], stride, i, x + i * width, width);
            else
                cot_pack_row(b.data, targets[t], stride, i, x + i * width, width);
        }
        guarded whole = guard(cot_packed_bytes(targets[t], k, n));
        if (by_column)
            cot_pack_columns(whole.data, targets[t], k, n, 0, n, x, COT_F32, k);
        else
            cot_pack_rows(whole.data, targets[t], k, n, 0, k, x, COT_F32, n);
        for (int64_t p = 0; p < cot_panels(n); p++) {
            CHECK(memcmp((char *)b.data + p * stride, (char *)whole.data + p * panel, (size_t)panel) == 0,
                  "k %lld n %lld", (long long)k, (long long)n);
            if (p + 1 < cot_panels(n))
                CHECK(*((unsigned char *)b.data + p * stride + panel) == 0xff, "wrote between panels");
        }
        unguard(whole);
        unguard(b);
        free(x);
    }
}

static void every_half(void)
{ // infinities, NaNs and subnormals among them
    float wide;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        uint16_t half = (uint16_t)bits;
        int exponent = half >> 10 & 31, mantissa = half & 1023;
        double exact = exponent == 31  ? (mantissa ? NAN : INFINITY)
                       : exponent == 0 ? ldexp(mantissa, -24)
                                       : ldexp(mantissa + 1024, exponent - 25);
        if (half & 0x8000) exact = -exact;
        float b[64];
        cot_pack_columns(b, COT_FORMAT_FP32, 1, 1, 0, 1, &half, COT_F16, 1);
        wide = b[0];
        CHECK(isnan(exact) ? isnan(wide) : (double)wide == exact && !signbit(wide) == !signbit(exact),
              "half %04x", bits);
    }
}

int main(int argc, char **argv)
{
    check_draws drawn = check_start(argc, argv), *draws = &drawn;
    CHECK(cot_panel_bytes(COT_FORMAT_FP32, 1) == 256 && cot_panel_bytes(COT_FORMAT_BF16, 2) == 128 &&
              cot_panel_bytes(COT_FORMAT_BF16, 3) == 256 && cot_panel_bytes(COT_FORMAT_INT8, 5) == 128 + 1024,
          "panels");
    CHECK(cot_packed_bytes(COT_FORMAT_BF16, 3, 33) == 2 * 256 &&
              cot_packed_bytes(COT_FORMAT_FP32, 2, 32) == 256,
          "bytes");
    every_half();
    for (int i = 0; i < 60; i++) {
        int64_t k = random_between(draws, 1, 150), n = random_between(draws, 1, 140);
        columns(draws, k, n);
        rows(draws, k, n);
        page(draws, k, n, true);
        page(draws, k, n, false);
    }
    columns(draws, 1, 1);
    rows(draws, 1, 1);
    columns(draws, 64, 64);
    rows(draws, 64, 64);
    return 0;
}
