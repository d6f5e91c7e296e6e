#include "strips.h"

#include "pairs.h"

#include <string.h>

/* Pixels that are split into strips before the next ones are looked at, so that their lines are read from memory once;
 * the numbers that one conversion to the arithmetic's dtype gives; and the pixels x channels that are turned around at
 * once, where channels lie further apart than pixels.  Tuned on an AMD EPYC 7003. */
enum { AHEAD = 4, CONVERTED = 2048, TURNED_PIXELS = 64, TURNED_CHANNELS = CONVERTED / TURNED_PIXELS };

/* Copies `count` neighbouring strips of n pixels each. */
typedef void (*copy_fn)(char *to, int64_t to_step, int64_t strip_bytes, const char *from, int64_t from_step,
                        int64_t count, int64_t n);

/* Numbers of a known size are copied by a few vector instructions. */
#define COPY(BYTES)                                                                                                    \
    static void copy_##BYTES(char *to, int64_t to_step, int64_t strip_bytes, const char *from, int64_t from_step,     \
                             int64_t count, int64_t n)                                                                 \
    {                                                                                                                  \
        for (int64_t s = 0; s < count; s++)                                                                            \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                const char *pixel = from + s * BYTES + i * from_step;                                                  \
                __builtin_prefetch(pixel + AHEAD * from_step);                                                         \
                memcpy(to + s * strip_bytes + i * to_step, pixel, BYTES);                                              \
            }                                                                                                          \
    }
#define EACH_SIZE(DO)                                                                                                  \
    DO(4) DO(8) DO(12) DO(16) DO(20) DO(24) DO(28) DO(32) DO(36) DO(40) DO(44) DO(48) DO(52) DO(56) DO(60) DO(64)     \
    DO(68) DO(72) DO(76) DO(80) DO(84) DO(88) DO(92) DO(96) DO(100) DO(104) DO(108) DO(112) DO(116) DO(120) DO(124)   \
    DO(128)
#define ENTRY(BYTES) [BYTES / 4] = copy_##BYTES,

EACH_SIZE(COPY)

static const copy_fn COPIES[] = {EACH_SIZE(ENTRY)};

typedef struct {
    const ck_pixels *pixels;
    int64_t channels, strip, size, strip_bytes; /* strip_bytes: from one strip to the next */
} layer;

static void copy_strips(char *to, int64_t to_step, int64_t strip_bytes, const char *from, int64_t from_step,
                        int64_t bytes, int64_t count, int64_t n)
{
    if (bytes / 4 < (int64_t)(sizeof COPIES / sizeof *COPIES))
        COPIES[bytes / 4](to, to_step, strip_bytes, from, from_step, count, n);
    else
        for (int64_t s = 0; s < count; s++)
            for (int64_t i = 0; i < n; i++)
                memcpy(to + s * strip_bytes + i * to_step, from + s * bytes + i * from_step, (size_t)bytes);
}

/* Splits n pixels into strips; from one pixel to the next are `step` bytes, and channels are dense. */
static void split(const layer *l, char *to, const char *from, int64_t step, int64_t channels, int64_t n)
{
    int64_t pitch = l->strip * l->size, whole = channels / l->strip, rest = channels % l->strip;
    copy_strips(to, pitch, l->strip_bytes, from, step, pitch, whole, n);
    if (rest) {
        to += whole * l->strip_bytes;
        memset(to, 0, (size_t)(n * pitch));
        copy_strips(to, pitch, l->strip_bytes, from + whole * pitch, step, rest * l->size, 1, n);
    }
}

typedef int32_t quad __attribute__((vector_size(16)));

#if defined(__clang__) || __GNUC__ >= 12
#define MIX(A, B, I, J, K, L) __builtin_shufflevector(A, B, I, J, K, L)
#else
#define MIX(A, B, I, J, K, L) __builtin_shuffle(A, B, (quad){I, J, K, L})
#endif

/* Four channels of four pixels, channel by channel, as four pixels. */
static inline void turn_quad(char *to, int64_t to_step, const char *from, int64_t across)
{
    quad c[4];
    for (int i = 0; i < 4; i++)
        memcpy(&c[i], from + i * across, sizeof *c);
    quad low01 = MIX(c[0], c[1], 0, 4, 1, 5), low23 = MIX(c[2], c[3], 0, 4, 1, 5);
    quad high01 = MIX(c[0], c[1], 2, 6, 3, 7), high23 = MIX(c[2], c[3], 2, 6, 3, 7);
    const quad pixels[] = {MIX(low01, low23, 0, 1, 4, 5), MIX(low01, low23, 2, 3, 6, 7),
                           MIX(high01, high23, 0, 1, 4, 5), MIX(high01, high23, 2, 3, 6, 7)};
    for (int i = 0; i < 4; i++)
        memcpy(to + i * to_step, &pixels[i], sizeof *pixels);
}

/* Turns channels `across` bytes apart, pixels neighbours, into n pixels `to_step` bytes apart, channels neighbours. */
static void turn(char *to, int64_t to_step, const char *from, int64_t across, int64_t channels, int64_t n, int64_t size)
{
    int64_t quads = size == 4 ? n / 4 * 4 : 0, by_four = channels / 4 * 4;
    for (int64_t i = 0; i < quads; i += 4)
        for (int64_t c = 0; c < by_four; c += 4)
            turn_quad(to + i * to_step + c * size, to_step, from + i * size + c * across, across);
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = i < quads ? by_four : 0; c < channels; c++)
            if (size == 4)
                memcpy(to + i * to_step + c * 4, from + i * 4 + c * across, 4);
            else
                memcpy(to + i * to_step + c * 8, from + i * 8 + c * across, 8);
}

/* Lays down n pixels of one strip from an array whose pixels are nearer to each other than the channels of one. */
static void lay_planes(const layer *l, char *to, const char *from, int64_t step, int64_t channels, int64_t n)
{
    const ck_pixels *p = l->pixels;
    int64_t pitch = l->strip * l->size, across = p->array.stride[3];
    bool numbers_already = p->array.type == (l->size == 8 ? CK_F64 : CK_F32) && !p->array.swapped && step == l->size;
    double numbers[CONVERTED];
    for (int64_t c = 0; c < channels; c += TURNED_CHANNELS)
        for (int64_t i = 0; i < n; i += TURNED_PIXELS) {
            int64_t run = ck_min(TURNED_CHANNELS, channels - c), count = ck_min(TURNED_PIXELS, n - i);
            const char *source = from + i * step + c * across;
            char *target = to + i * pitch + c * l->size;
            if (numbers_already) {
                turn(target, pitch, source, across, run, count, l->size);
                continue;
            }
            for (int64_t k = 0; k < run; k++)
                p->load((char *)numbers + k * TURNED_PIXELS * l->size, 1, source + k * across, step, count);
            turn(target, pitch, (char *)numbers, TURNED_PIXELS * l->size, run, count, l->size);
        }
}

/* Whether channels are nearer to each other than pixels, in an array that needs conversion. */
static bool runs_along_channels(const layer *l, int64_t step)
{
    int64_t across = l->pixels->array.stride[3];
    return (across < 0 ? -across : across) <= (step < 0 ? -step : step);
}

/* Lays down n pixels of a row, `step` bytes apart. */
static void lay(const layer *l, char *to, const char *from, int64_t step, int64_t n)
{
    const ck_pixels *p = l->pixels;
    int64_t pitch = l->strip * l->size, across = p->array.stride[3], most = CONVERTED / AHEAD / l->strip * l->strip;
    if (p->plain && l->channels == l->strip && step == pitch) {
        memcpy(to, from, (size_t)(n * pitch));
    } else if (p->plain) {
        for (int64_t i = 0; i < n; i += AHEAD)
            split(l, to + i * pitch, from + i * step, step, l->channels, ck_min(AHEAD, n - i));
    } else if (most > 0 && runs_along_channels(l, step)) {
        double numbers[CONVERTED];
        for (int64_t i = 0; i < n; i += AHEAD)
            for (int64_t c = 0; c < l->channels; c += most) {
                int64_t run = ck_min(most, l->channels - c), count = ck_min(AHEAD, n - i);
                ck_load_block(p->load, l->size, (char *)numbers, run, 1, from + i * step + c * across, step, across,
                              count, run);
                split(l, to + c / l->strip * l->strip_bytes + i * pitch, (char *)numbers, run * l->size, run, count);
            }
    } else {
        for (int64_t c = 0; c < l->channels; c += l->strip, to += l->strip_bytes, from += l->strip * across) {
            int64_t run = ck_min(l->strip, l->channels - c);
            if (run < l->strip)
                memset(to, 0, (size_t)(n * pitch));
            lay_planes(l, to, from, step, run, n);
        }
    }
}

/* Zeros for n pixels in every strip. */
static void lay_zeros(const layer *l, char *to, int64_t n)
{
    for (int64_t c = 0; c < l->channels && n > 0; c += l->strip, to += l->strip_bytes)
        memset(to, 0, (size_t)(n * l->strip * l->size));
}

/* One axis of a window over a block: the first pixel it meets, how many it meets, and how far apart these are. */
typedef struct {
    int64_t low, first, count, every;
} range;

static range range_of(const int64_t *at, int64_t taps, int64_t first, int64_t count, int64_t step)
{
    int64_t low = at[0], high = at[0], every = step;
    for (int64_t t = 1; t < taps; t++) {
        low = ck_min(low, at[t]);
        high = ck_max(high, at[t]);
        every = (at[t] - at[0]) % step == 0 ? every : 1;
    }
    return (range){low, first * step + low, ((count - 1) * step + high - low) / every + 1, every};
}

/* The first number of a range that is at least `bound`, and `count` if there is none. */
static int64_t first_from(const range *r, int64_t bound)
{
    return r->first >= bound ? 0 : ck_min(r->count, ck_ceil_div(bound - r->first, r->every));
}

/* What a window meets from a block, and where it is laid down; false if that takes more than `bytes`. */
static bool place_strips(const ck_window *w, const ck_block *block, int64_t channels, int64_t strip, int64_t size,
                         const char *to, int64_t bytes, range *rows, range *cols, ck_strips *view)
{
    *rows = range_of(w->row_at, w->rows, block->row0, block->rows, w->row_step);
    *cols = range_of(w->col_at, w->cols, block->col0, block->cols, w->col_step);
    int64_t row_pitch = cols->count * strip, image_step = rows->count * row_pitch;
    int64_t strip_step = block->images * image_step;
    *view = (ck_strips){to,
                        strip_step,
                        image_step,
                        w->row_step / rows->every * row_pitch,
                        w->col_step / cols->every * strip,
                        rows->low,
                        rows->every,
                        row_pitch,
                        cols->low,
                        cols->every,
                        strip};
    return ck_ceil_div(channels, strip) * strip_step * size <= bytes;
}

bool ck_lay_strips(const ck_window *w, const ck_pixels *pixels, const ck_block *block, int64_t channels, int64_t strip,
                   int64_t size, char *to, int64_t bytes, ck_strips *view)
{
    range rows, cols;
    if (!place_strips(w, block, channels, strip, size, to, bytes, &rows, &cols, view))
        return false;
    int64_t row_pitch = cols.count * strip;
    const layer l = {pixels, channels, strip, size, view->strip_step * size};
    const ck_array *a = &pixels->array;
    int64_t left = first_from(&cols, 0), right = ck_max(left, first_from(&cols, w->width));
    for (int64_t n = 0; n < block->images; n++)
        for (int64_t i = 0; i < rows.count; i++, to += row_pitch * size) {
            int64_t row = rows.first + i * rows.every;
            if (row < 0 || row >= w->height || left == right) {
                lay_zeros(&l, to, cols.count);
                continue;
            }
            lay_zeros(&l, to, left);
            lay_zeros(&l, to + right * strip * size, cols.count - right);
            lay(&l, to + left * strip * size,
                a->data + n * a->stride[0] + row * a->stride[1] + (cols.first + left * cols.every) * a->stride[2],
                cols.every * a->stride[2], right - left);
        }
    return true;
}

/* A row of a block's pixels: those from `left` on and before `right` lie inside the image. */
typedef struct {
    const char *data; /* of pixel 0, which need not be inside */
    int64_t left, right;
} row_of_pixels;

static row_of_pixels row_of(const ck_window *w, const int64_t stride[4], const ck_part *part, int64_t image, int64_t i)
{
    if (part == NULL)
        return (row_of_pixels){NULL, 0, 0};
    const range rows = range_of(w->row_at, w->rows, part->block.row0, part->block.rows, w->row_step);
    const range cols = range_of(w->col_at, w->cols, part->block.col0, part->block.cols, w->col_step);
    int64_t row = rows.first + i * rows.every, left = first_from(&cols, 0), right = first_from(&cols, w->width);
    if (row < 0 || row >= w->height || left >= right)
        return (row_of_pixels){NULL, 0, 0};
    return (row_of_pixels){part->data + image * stride[0] + row * stride[1] + cols.first * stride[2], left, right};
}

static const char *pixel_of(const row_of_pixels *r, int64_t pixel, int64_t step)
{
    return pixel >= r->left && pixel < r->right ? r->data + pixel * step : NULL;
}

/* The first pixel after this one at which a row enters the image or leaves it. */
static int64_t next_edge(const row_of_pixels *r, int64_t pixel, int64_t count)
{
    return pixel < r->left ? r->left : pixel < r->right ? r->right : count;
}

bool ck_lay_pairs(const ck_window *w, const ck_pairing *bulk, const int64_t stride[4], const ck_part *first,
                  const ck_part *second, int64_t channels, int64_t strip, char *to, int64_t bytes, ck_strips *view)
{
    range rows, cols;
    if (!place_strips(w, &first->block, channels, strip, sizeof(ck_pair), to, bytes, &rows, &cols, view))
        return false;
    int64_t step = cols.every * stride[2];
    ck_pair *pairs = (ck_pair *)to;
    for (int64_t n = 0; n < first->block.images; n++)
        for (int64_t i = 0; i < rows.count; i++, pairs += cols.count * strip) {
            const row_of_pixels a = row_of(w, stride, first, n, i), b = row_of(w, stride, second, n, i);
            for (int64_t pixel = 0, next; pixel < cols.count; pixel = next) {
                next = ck_min(next_edge(&a, pixel, cols.count), next_edge(&b, pixel, cols.count));
                const char *at_a = pixel_of(&a, pixel, step), *at_b = pixel_of(&b, pixel, step);
                ck_pair *strips = pairs + pixel * strip;
                for (int64_t c = 0; c < channels; c += strip, strips += view->strip_step) {
                    int64_t count = ck_min(strip, channels - c);
                    ck_pair_up(bulk, strips, strip, 1, at_a ? at_a + c * stride[3] : NULL,
                               at_b ? at_b + c * stride[3] : NULL, step, stride[3], next - pixel, count);
                    ck_pair_up(bulk, strips + count, strip, 1, NULL, NULL, 0, 0, next - pixel, strip - count);
                }
            }
        }
    return true;
}
