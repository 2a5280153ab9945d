/* Root directories made of layers. */
#ifndef ROCK_LAYERS_H
#define ROCK_LAYERS_H

#include "wire.h"

#include <stdint.h>

struct hidden {
    int root; /* where layers hang: below the root directory, out of reach; or NO_FD */
    uint64_t bytes, inodes; /* bounds of one layer */
    const char *made_of[2]; /* what every root is above, the topmost first; relative to root */
};
extern struct hidden hidden;

int handle_swap(int conn, const struct frame *frame);
int handle_drop(int conn, const struct frame *frame);
int handle_tree(int conn, const struct frame *frame);
int handle_adopt(int conn, const struct frame *frame);
int handle_prepare(int conn, const struct frame *frame);
int handle_attach(int conn, const struct frame *frame);

#endif
