/* Bytes that grow at one end and are taken from the other: what waits to be sent, or has come in parts. */
#include "bytes.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void append(struct bytes *bytes, const void *data, size_t size) {
    if (!size) return; /* memcpy wants real pointers, also for nothing */
    if (bytes->from == bytes->to) bytes->from = bytes->to = 0;
    if (bytes->to + size > bytes->room && bytes->from) {
        memmove(bytes->data, bytes->data + bytes->from, bytes->to - bytes->from);
        bytes->to -= bytes->from;
        bytes->from = 0;
    }
    if (bytes->to + size > bytes->room) {
        bytes->room = (bytes->to + size) * 2;
        bytes->data = realloc(bytes->data, bytes->room);
        if (!bytes->data) _exit(70);
    }
    memcpy(bytes->data + bytes->to, data, size);
    bytes->to += size;
}

size_t left_in(const struct bytes *bytes) {
    return bytes->to - bytes->from;
}
