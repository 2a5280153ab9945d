/* Whole trees, in and out. */
#ifndef ROCK_TREE_H
#define ROCK_TREE_H

#include "wire.h"

int handle_put(int conn, const struct frame *frame);
int handle_get(int conn, const struct frame *frame);

#endif
