/* Tests of im2col, and of the conversion of the region of an image that a block of pixels reaches. */
#include "check.h"
#include "patches.h"
#include "strided.h"

enum { MOST_TAPS = 5 };

typedef struct {
    ck_window window;
    int64_t row_at[MOST_TAPS], col_at[MOST_TAPS];
    ck_type arithmetic;
    strided image;
    ck_pixels pixels;
    int64_t channels, pixel0, count, k0, k1;
} patch_case;

static int64_t random_offsets(generator *r, int64_t *at)
{
    int64_t taps = between(r, 1, MOST_TAPS), step = one_in(r, 2) ? 1 : between(r, 2, 3), first = between(r, -6, 4);
    bool scattered = one_in(r, 6); /* as no convolution has them */
    for (int64_t t = 0; t < taps; t++)
        at[t] = scattered ? between(r, -6, 10) : first + t * step;
    return taps;
}

static void set_up(patch_case *c, uint64_t seed)
{
    generator r = seeded(seed);
    ck_window *w = &c->window;
    c->arithmetic = one_in(&r, 4) ? CK_F64 : CK_F32;
    c->channels = one_in(&r, 4) ? between(&r, 6, 40) : between(&r, 1, 5);
    int64_t images = between(&r, 1, 3), taps, total;
    w->height = between(&r, 1, 9);
    w->width = between(&r, 1, 9);
    w->out_height = between(&r, 1, 6);
    w->out_width = between(&r, 1, 6);
    w->row_step = between(&r, 1, 3);
    w->col_step = between(&r, 1, 3);
    w->rows = random_offsets(&r, c->row_at);
    w->cols = random_offsets(&r, c->col_at);
    w->row_at = c->row_at;
    w->col_at = c->col_at;
    c->image = strided_random(&r, (int64_t[]){images, w->height, w->width, c->channels}, PIXELS, c->arithmetic);
    strided_fill(&r, &c->image, any_number);
    c->pixels = (ck_pixels){.array = c->image.array, .load = ck_loader(&c->image.array, c->arithmetic)};
    c->pixels.plain = strided_usable(&c->image, c->arithmetic) && c->image.array.stride[3] == ck_size(c->arithmetic);
    total = images * w->out_height * w->out_width;
    taps = w->rows * w->cols * c->channels;
    c->pixel0 = between(&r, 0, total - 1);
    c->count = one_in(&r, 3) ? total - c->pixel0 : between(&r, 1, total - c->pixel0);
    c->k0 = one_in(&r, 2) ? 0 : between(&r, 0, taps - 1);
    c->k1 = one_in(&r, 2) ? taps : between(&r, c->k0 + 1, taps);
}

static double expected(const patch_case *c, int64_t pixel, int64_t k)
{
    const ck_window *w = &c->window;
    int64_t grid = w->out_height * w->out_width, tap = k / c->channels;
    int64_t row = pixel % grid / w->out_width * w->row_step + w->row_at[tap / w->cols];
    int64_t col = pixel % w->out_width * w->col_step + w->col_at[tap % w->cols];
    if (row < 0 || row >= w->height || col < 0 || col >= w->width)
        return 0;
    return element(c->image.array.type, c->image.array.swapped,
                   strided_at(&c->image, pixel / grid, row, col, k % c->channels));
}

static bool copies_right(const patch_case *c, const ck_pixels *pixels)
{
    int64_t columns = c->k1 - c->k0, size = ck_size(c->arithmetic);
    strided matrix = strided_new(NULL, (int64_t[]){1, 1, c->count, columns}, c->arithmetic, false,
                                 (int[]){0, 1, 2, 3}, DENSE, false);
    double *values = malloc((size_t)(c->count * columns) * sizeof *values);
    for (int64_t q = 0; q < c->count; q++)
        for (int64_t k = 0; k < columns; k++)
            values[q * columns + k] = expected(c, c->pixel0 + q, c->k0 + k);
    ck_im2col(&c->window, pixels, size, c->channels, c->pixel0, c->count, c->k0, c->k1, matrix.array.data);
    bool right = strided_holds(&matrix, values);
    free(values);
    strided_free(&matrix);
    return right;
}

static bool merges(const patch_case *c)
{
    bool merged = c->image.array.stride[2] == c->channels * c->image.array.stride[3];
    for (int64_t b = 1; b < c->window.cols; b++)
        merged = merged && c->col_at[b] == c->col_at[b - 1] + 1;
    return merged;
}

/* Converts the region that the pixels reach into a block of exactly its size; false if they reach nothing. */
static bool stage(const patch_case *c, ck_pixels *staged, char **memory)
{
    ck_region region = ck_reach(&c->window, c->pixel0, c->count);
    *memory = NULL;
    if (region.rows <= 0 || region.cols <= 0)
        return false;
    CHECK(region.row >= 0 && region.row + region.rows <= c->window.height);
    CHECK(region.col >= 0 && region.col + region.cols <= c->window.width);
    CHECK(region.image >= 0 && region.image + region.images <= c->image.length[0]);
    int64_t size = ck_size(c->arithmetic);
    *memory = malloc((size_t)(region.images * region.rows * region.cols * c->channels * size));
    *staged = ck_stage(&c->pixels, &region, size, c->channels, c->arithmetic, *memory);
    return true;
}

enum { CASES = 3000 };

static void patches_are_what_each_tap_sees(void)
{
    int counts[2][2] = {{0}};
    for (int seed = 0; seed < CASES; seed++) {
        patch_case c;
        set_up(&c, (uint64_t)seed);
        bool right = copies_right(&c, &c.pixels);
        if (c.pixels.plain) { /* which is permission, not duty */
            ck_pixels loaded = c.pixels;
            loaded.plain = false;
            right = copies_right(&c, &loaded) && right;
        }
        if (!right)
            fprintf(stderr, "seed %d\n", seed);
        CHECK(right);
        counts[c.pixels.plain][merges(&c)]++;
        strided_free(&c.image);
    }
    CHECK(counts[0][0] > CASES / 20 && counts[0][1] > CASES / 20 && counts[1][0] > CASES / 20 &&
          counts[1][1] > CASES / 20);
}

static void a_staged_region_gives_the_same_patches(void)
{
    int reached = 0, missed = 0;
    for (int seed = 0; seed < CASES; seed++) {
        patch_case c;
        ck_pixels staged;
        char *memory;
        set_up(&c, (uint64_t)seed);
        if (stage(&c, &staged, &memory)) {
            bool right = copies_right(&c, &staged);
            if (!right)
                fprintf(stderr, "seed %d\n", seed);
            CHECK(right && staged.plain);
            reached++;
        } else { /* nothing but padding, whose pixels must not be read */
            ck_pixels nowhere = c.pixels;
            nowhere.load = NULL;
            nowhere.plain = false;
            CHECK(copies_right(&c, &nowhere));
            missed++;
        }
        free(memory);
        strided_free(&c.image);
    }
    CHECK(reached > CASES / 2 && missed > CASES / 100);
}

int main(void)
{
    RUN(patches_are_what_each_tap_sees);
    RUN(a_staged_region_gives_the_same_patches);
    return summary();
}
