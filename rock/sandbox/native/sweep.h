/* All processes of the sandbox at once. */
#ifndef ROCK_SWEEP_H
#define ROCK_SWEEP_H

#include "wire.h"

int handle_sweep(int conn, const struct frame *frame);
int handle_freeze(int conn, const struct frame *frame);
int handle_count(int conn, const struct frame *frame);

#endif
