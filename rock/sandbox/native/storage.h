/* A bound on what a container writes. */
#ifndef ROCK_STORAGE_H
#define ROCK_STORAGE_H

#include "wire.h"

int handle_store(int conn, const struct frame *frame);
int handle_unstore(int conn, const struct frame *frame);
void keep_own_mounts(void); /* of the keeper, which alone may STORE */

#endif
