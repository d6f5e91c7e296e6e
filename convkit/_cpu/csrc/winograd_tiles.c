#include "winograd_tiles.h"

bool ck_view_tiles(const ck_tile_source *s, const char *data, const ck_block *tiles, int64_t channels, int64_t size,
                   char *to, int64_t bytes, ck_tile_view *view)
{
    const int64_t *stride = s->pixels.array.stride;
    *view = (ck_tile_view){data, stride[0], stride[1], stride[2]};
    if (s->in_place)
        return true;
    const int64_t rows[] = {s->row_at, s->row_at + s->reach - 1}, cols[] = {s->col_at, s->col_at + s->reach - 1};
    const ck_window window = {.height = s->height, .width = s->width, .row_step = s->tile, .col_step = s->tile,
                              .rows = 2, .cols = 2, .row_at = rows, .col_at = cols};
    ck_pixels pixels = s->pixels;
    ck_view v;
    pixels.array.data = (char *)data;
    if (!ck_stage_padded(&window, &pixels, tiles, channels, size, to, bytes, &v))
        return false;
    *view = (ck_tile_view){v.data - (v.row0 * v.row_step + v.col0 * v.col_step) * size, v.image_step * size,
                           v.row_step * size, v.col_step * size};
    return true;
}

void ck_tile_pixels(const ck_tile_source *s, const ck_tile_view *v, int64_t image, int64_t row, int64_t col,
                    const void *zeros, const void **pixels)
{
    int64_t row0 = row * s->tile + s->row_at, col0 = col * s->tile + s->col_at;
    for (int64_t i = row0; i < row0 + s->reach; i++)
        for (int64_t j = col0; j < col0 + s->reach; j++) {
            bool inside = i >= 0 && i < s->height && j >= 0 && j < s->width;
            *pixels++ = inside ? v->data + image * v->image_step + i * v->row_step + j * v->col_step : zeros;
        }
}
