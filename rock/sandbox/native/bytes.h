/* Bytes that grow at one end and are taken from the other. */
#ifndef ROCK_BYTES_H
#define ROCK_BYTES_H

#include <stddef.h>

struct bytes {
    unsigned char *data;
    size_t from, to, room;
};
void append(struct bytes *bytes, const void *data, size_t size); /* ends the process without memory */
size_t left_in(const struct bytes *bytes);

#endif
